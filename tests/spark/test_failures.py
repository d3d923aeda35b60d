"""Killed while Spark is at work: a follower, the leader, the driver, an executor.  Rows and checksums equal the truth."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from dledger_client import Admin, Message, Producer
from tests.cluster.harness import Cluster
from tests.spark.conftest import environment
from tests.spark.test_batch_write import make, messages_of
from tests.waiting import LIMIT_S, wait_until

BIG, BIG_COUNT = "big", 12_000


def body_of(number: int) -> bytes:
    return b"%d|" % number + hashlib.sha256(b"%d" % number).digest() * 32


@pytest.fixture(scope="module")
def big(cluster: Cluster) -> Iterator[Cluster]:
    """A topic of 12 MB in one queue: more than all buffers between a replica and the end of a Spark stage hold."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(BIG, queues=1)
    with Producer(cluster.bootstrap) as producer:
        for number in range(BIG_COUNT):
            producer.send_oneway(Message(BIG, body_of(number)))
        producer.flush()
    cluster.wait_equal()
    yield cluster
    cluster.start()


@pytest.mark.parametrize("read_from", ["follower", "leader"])
def test_the_replica_a_task_reads_from_is_killed_in_the_middle(spark: Any, big: Cluster, tmp_path: Path, read_from: str) -> None:
    """The stage behind the source holds at its first rows until the replica they came from is dead."""
    folder = str(tmp_path)

    def hold(rows: Any) -> Iterator[tuple[str, int, str]]:
        for place, row in enumerate(rows):
            if place == 0:
                (Path(folder) / "reading").write_text(row.replica)
                while not (Path(folder) / "go").exists():
                    time.sleep(0.01)
            yield row.replica, row.queue_offset, hashlib.sha256(row.body).hexdigest()

    frame = spark.read.format("dledger").option("bootstrap", big.bootstrap).option("topic", BIG).option("readFrom", read_from)
    rows = frame.option("fetchBytes", 1 << 20).load().select("replica", "queue_offset", "body").rdd.mapPartitions(hold)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(rows.collect)
        victim = wait_until(lambda: (tmp_path / "reading").read_text() if (tmp_path / "reading").exists() else "", "the first row")
        big.kill(victim)
        (tmp_path / "go").touch()
        found = reading.result(LIMIT_S)
    big.start(victim)
    expected = [(number, hashlib.sha256(body_of(number)).hexdigest()) for number in range(BIG_COUNT)]
    assert [(offset, digest) for _, offset, digest in found] == expected
    from_victim = [replica == victim for replica, _, _ in found]
    assert from_victim[0]
    assert not from_victim[-1]
    assert from_victim == sorted(from_victim, reverse=True), "nothing comes from it after it was dead"


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_replica_is_killed_in_the_middle_of_a_stream(spark: Any, big: Cluster, tmp_path: Path, role: str) -> None:
    """A stream from topic to topic goes on over the others: each message is stored once."""
    make(big, f"survived-{role}")
    stream = spark.readStream.format("dledger").option("bootstrap", big.bootstrap).option("topic", BIG)
    frame = stream.option("maxMessagesPerTrigger", BIG_COUNT // 4).load().select("body").repartition(2)
    writer = frame.writeStream.format("dledger").option("bootstrap", big.bootstrap).option("topic", f"survived-{role}")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    wait_until(lambda: query.lastProgress is not None or query.exception() is not None, "the first batch")
    leader = big.leader()
    victim = leader if role == "leader" else next(node_id for node_id in big.processes if node_id != leader)
    big.kill(victim)
    assert query.awaitTermination(LIMIT_S)
    assert query.exception() is None
    big.start(victim)
    check(big, f"survived-{role}")


def check(cluster: Cluster, topic: str) -> None:
    """Every body of BIG is in the topic, once."""
    bodies = [message.body for message in messages_of(cluster, topic)]
    assert len(bodies) == BIG_COUNT
    digests = [hashlib.sha256(b"".join(sorted(each))).hexdigest() for each in (bodies, map(body_of, range(BIG_COUNT)))]
    assert digests[0] == digests[1]


DRIVER = '''
"""A user's job: copies a topic.  Beside it lie modules of his own that are called as the cluster's packages are."""
import json, sys
import store, broker  # his own
assert store.MINE and broker.MINE
from pyspark.sql import SparkSession
master, bootstrap, source, target, checkpoint, per_trigger = sys.argv[1:]
spark = SparkSession.builder.master(master).appName("copy").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = spark.config("spark.executor.memory", "600m").config("spark.sql.shuffle.partitions", "2").getOrCreate()
stream = spark.readStream.format("dledger").option("bootstrap", bootstrap).option("topic", source)
frame = stream.option("maxMessagesPerTrigger", per_trigger).option("minPartitions", 2).load().select("body").repartition(2)
writer = frame.writeStream.format("dledger").option("bootstrap", bootstrap).option("topic", target)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
shown = -1
while True:
    ended = query.awaitTermination(0.1)
    last = query.lastProgress
    if last is not None and last.batchId != shown:
        shown = last.batchId
        print(json.dumps({"batch": shown, "rows": last.numInputRows}), flush=True)
    if ended:
        print(json.dumps({"ended": str(query.exception())}), flush=True)
        break
spark.stop()
'''


class Driver:
    """A user's job in a process of its own."""

    def __init__(self, folder: Path, master: str, cluster: Cluster, target: str, per_trigger: int) -> None:
        for name in ("store.py", "broker.py"):
            (folder / name).write_text("MINE = True\n")
        (folder / "job.py").write_text(DRIVER)
        arguments = [master, cluster.bootstrap, BIG, target, str(folder / "checkpoint"), str(per_trigger)]
        self._errors = (folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "job.py"), *arguments],
            env=environment(folder),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._pool = ThreadPoolExecutor(1)
        self._lines = self.process.stdout

    def next(self) -> dict[str, Any]:
        """What it says next; {} when it ended."""
        line = self._pool.submit(self._lines.readline).result(LIMIT_S)
        return dict(json.loads(line)) if line else {}

    def kill(self) -> None:
        """SIGKILL to the whole of it: Python and its Java."""
        family: list[Any] = (
            [self.process, *psutil.Process(self.process.pid).children(recursive=True)] if self.process.poll() is None else []
        )
        for process in family:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(LIMIT_S)
        self._pool.shutdown(wait=False)
        self._errors.close()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A standalone master with one worker, from the pip package: (its URL, the worker)."""
    from dledger_cli.local.ports import free_ports

    port, other = free_ports(2)
    variables = environment(tmp_path) | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOG_DIR": str(tmp_path)}
    url = f"spark://127.0.0.1:{port}"
    own = ["--host", "127.0.0.1"]
    commands = [
        ["org.apache.spark.deploy.master.Master", *own, "--port", str(port), "--webui-port", str(other)],
        [
            "org.apache.spark.deploy.worker.Worker",
            "-c",
            "2",
            "-m",
            "1g",
            "-d",
            str(tmp_path / "work"),
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            url,
        ],
    ]
    started = []
    try:
        with (tmp_path / "standalone.log").open("wb") as log:
            for command in commands:
                spark_class = [f"{variables['SPARK_HOME']}/bin/spark-class", *command]
                started.append(subprocess.Popen(spark_class, env=variables, stdout=log, stderr=log, start_new_session=True))
        yield url, psutil.Process(started[1].pid)
    finally:
        for process in started:
            family: list[Any] = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for each in (*family, process):
                try:
                    each.kill()
                except (psutil.NoSuchProcess, ProcessLookupError):
                    continue
            process.wait(LIMIT_S)


def executor_of(worker: psutil.Process) -> psutil.Process:
    """The Java process of the worker's executor."""
    for each in worker.children(recursive=True):
        try:
            if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()):
                return each
        except psutil.Error:
            continue  # one that has just ended
    raise AssertionError("the worker has no executor")


@pytest.mark.timeout(500)
def test_a_killed_driver_and_a_killed_executor_cost_no_row(big: Cluster, standalone: tuple[str, psutil.Process], tmp_path: Path) -> None:
    """A stream begun in a local cluster of separate executors, killed with its driver; gone on with on a standalone cluster, where its
    executor is killed; all from one checkpoint."""
    make(big, "outlived")
    first = Driver(tmp_path, "local-cluster[1,2,700]", big, "outlived", BIG_COUNT // 5)
    try:
        told = [first.next() for _ in range(2)]
        assert all("batch" in each for each in told), (tmp_path / "stderr").read_text()[-2000:]
    finally:
        first.kill()
    url, worker = standalone
    second = Driver(tmp_path, url, big, "outlived", BIG_COUNT // 5)
    try:
        told = [second.next()]
        assert "batch" in told[0], (tmp_path / "stderr").read_text()[-2000:]
        executor_of(worker).kill()
        while told[-1] and "ended" not in told[-1]:
            told.append(second.next())
        assert told[-1] == {"ended": "None"}, (tmp_path / "stderr").read_text()[-2000:]
    finally:
        second.kill()
    check(big, "outlived")
