"""The quickstart: a group loses its leader while messages are produced, and Spark finds every acknowledged one on the followers.

Owns one run: its own ports and data folder, its processes, its report.  Everything it shows is counted here from what was sent,
acknowledged and read back; nothing is assumed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dledger_cli.local.private_cluster import PrivateCluster
from dledger_cli.output import error_line
from dledger_cli.status_text import show_status
from dledger_client import Admin, Message, Producer
from dledger_wire.errors import DledgerError

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "scripts" / "sample" / "orders.jsonl"
TOPIC = "quickstart"
QUEUES = 4
LEAST_SECONDS = 3.0  # a small input is spread over that long, so that the leader dies in the middle
WINDOW = 4096


@dataclass
class Line:
    """One message to send."""

    body: bytes
    tags: str = ""
    queue_key: str | None = None


def read_lines(path: Path, *, as_json: bool) -> list[Line]:
    """One message a line, byte for byte (a CR before the line end belongs to it).  JSON: every line must be a JSON value; of an object
    with a text ``body``, body, tags and queue_key are taken, anything else is sent as it stands."""
    raw = path.read_bytes().split(b"\n")
    if raw and raw[-1] == b"":
        raw.pop()
    if not as_json:
        return [Line(body) for body in raw]
    lines: list[Line] = []
    for number, body in enumerate(raw, 1):
        try:
            value = json.loads(body)
        except ValueError as error:
            raise DledgerError(f"{path}:{number}: not a JSON value: {error}") from error
        if isinstance(value, dict) and isinstance(value.get("body"), str):
            lines.append(Line(value["body"].encode(), str(value.get("tags") or ""), value.get("queue_key")))
        else:
            lines.append(Line(body))
    return lines


@dataclass
class Load:
    """Sends every line, and remembers for each whether and when it was acknowledged."""

    producer: Producer
    lines: Sequence[Line]
    acknowledged: np.ndarray = field(init=False)
    sent_at: np.ndarray = field(init=False)
    acknowledged_at: np.ndarray = field(init=False)
    errors: list[str] = field(default_factory=list)
    count: int = 0
    a_third: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.acknowledged = np.zeros(len(self.lines), dtype=bool)
        self.sent_at = np.zeros(len(self.lines))
        self.acknowledged_at = np.zeros(len(self.lines))
        self._window = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()

    def send_all(self) -> None:
        start = time.monotonic()
        pace_s = LEAST_SECONDS / len(self.lines)
        for number, line in enumerate(self.lines):
            ahead = start + number * pace_s - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)
            self._window.acquire()
            self.sent_at[number] = time.monotonic()
            message = Message(TOPIC, line.body, tags=line.tags, keys=f"line-{number}")
            future = self.producer.send_async(message, queue_key=line.queue_key)
            future.add_done_callback(functools.partial(self._done, number))
        self.producer.flush()

    def _done(self, number: int, future: Any) -> None:
        self._window.release()
        error = future.exception()
        with self._lock:
            if error is not None:
                self.errors.append(f"line {number + 1}: {error}")
                return
            self.acknowledged_at[number] = time.monotonic()
            self.acknowledged[number] = True
            self.count += 1
            if self.count * 3 >= len(self.lines):
                self.a_third.set()

    def pause_after(self, moment: float) -> float:
        """Seconds from ``moment`` to the acknowledgement of a message that was sent after it."""
        later = self.acknowledged & (self.sent_at > moment)
        return float(self.acknowledged_at[later].min() - moment) if later.any() else float("nan")


@dataclass
class Findings:
    """What Spark read, compared with what was sent."""

    rows: int
    lost: int
    duplicated: int
    changed: int
    out_of_order: int
    replicas: list[str]


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send what the Java side prints to a file; shown only if something fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def python_for_spark(work: Path) -> str:
    """The interpreter by a path without spaces: Spark asks a shell for it, unquoted, and finds no Python data source without it."""
    if not any(character.isspace() for character in sys.executable):
        return sys.executable
    link = work / "python"
    link.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    link.chmod(0o755)
    return str(link)


def reason_of(error: Exception) -> str:
    """The line that has Spark's name of the error, such as ``[DATA_SOURCE_NOT_FOUND]``; without one the error's type and first line."""
    lines = str(error).splitlines()
    named = next((line.strip() for line in lines if re.search(r"\[[A-Z][A-Z0-9_.]+\]", line)), "")
    return named or ": ".join([type(error).__name__, *lines[:1]])


def read_with_spark(bootstrap: str, work: Path) -> Any:
    """(keys, crc of the body, queue, offset, replica) of every message, read by a Spark job from the followers."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python_for_spark(work)
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("dledger quickstart").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(work / "warehouse")).config("spark.local.dir", str(work / "spark"))
    builder = (
        builder.config("spark.log.level", "ERROR").config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    )
    spark = builder.getOrCreate()
    try:
        reader = spark.read.format("dledger").option("bootstrap", bootstrap).option("topic", TOPIC).option("readFrom", "follower")
        columns = ("keys", "crc32(body) AS crc", "queue_id", "queue_offset", "replica")
        return reader.load().selectExpr(*columns).toArrow()
    finally:
        spark.stop()


def compare(load: Load, table: Any) -> Findings:
    """Find every acknowledged line in what was read: once, unchanged, and in the order it was sent within its queue."""
    numbers = np.array([int(key.removeprefix("line-")) for key in table.column("keys").to_pylist()], dtype=np.int64)
    times = np.bincount(numbers, minlength=len(load.lines))
    sent_crcs = np.array([zlib.crc32(line.body) for line in load.lines], dtype=np.int64)
    changed = int((sent_crcs[numbers] != table.column("crc").to_numpy()).sum())
    queues, offsets = table.column("queue_id").to_numpy(), table.column("queue_offset").to_numpy()
    order = np.lexsort((offsets, queues))
    same_queue = np.diff(queues[order]) == 0
    out_of_order = int(((np.diff(numbers[order]) <= 0) & same_queue).sum())
    replicas = sorted(set(table.column("replica").to_pylist()))
    return Findings(len(numbers), int((load.acknowledged & (times == 0)).sum()), int((times > 1).sum()), changed, out_of_order, replicas)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="quickstart", description="A local group loses its leader and no message; Spark reads its followers."
    )
    parser.add_argument("--input", type=Path, default=SAMPLE, metavar="FILE", help="any text file, one message a line")
    parser.add_argument("--json", action="store_true", help="FILE has JSON lines; of an object, body, tags and queue_key are taken")
    arguments = parser.parse_args()
    try:
        lines = read_lines(arguments.input, as_json=arguments.json)
    except (OSError, DledgerError) as error:
        error_line(f"{arguments.input}: {error.strerror}" if isinstance(error, OSError) else str(error))
        return 1
    if not lines:
        error_line(f"{arguments.input}: no lines to send")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="dledger-quickstart-"))
    try:
        with PrivateCluster(work / "data", settings={"store": {"mappedFileSizeCommitLog": "64MiB"}}) as cluster:
            good = rehearse(cluster, lines, work, str(arguments.input))
    except (DledgerError, KeyboardInterrupt) as error:
        error_line(str(error) or "interrupted")
        print(f"logs kept in {work}", file=sys.stderr)
        return 1
    if good:
        shutil.rmtree(work, ignore_errors=True)
    else:
        print(f"logs kept in {work}", file=sys.stderr)
    return 0 if good else 1


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def rehearse(cluster: PrivateCluster, lines: list[Line], work: Path, source: str) -> bool:
    step("starting three nodes on this machine")
    cluster.start()
    show_status(cluster.config, cluster.groups(), as_json=False)
    with Admin(bootstrap=cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)

    step(f"producing {len(lines)} messages from {source}; after a third of them the leader is killed (SIGKILL)")
    with Producer(bootstrap=cluster.bootstrap, group="quickstart") as producer:
        load = Load(producer, lines)
        sender = threading.Thread(target=load.send_all, name="load", daemon=True)
        sender.start()
        while not load.a_third.wait(0.1) and sender.is_alive():
            pass
        victim = cluster.leader()
        killed_at = time.monotonic()
        cluster.kill(victim)
        print(f"killed {victim} after {load.count} acknowledged messages", flush=True)
        leader = cluster.leader()
        sender.join()
    pause_s = load.pause_after(killed_at)
    print(f"new leader {leader}; first message sent after the kill was acknowledged {pause_s * 1000:.0f} ms after it", flush=True)

    step(f"starting {victim} again; it catches up")
    cluster.start(victim)
    cluster.wait_equal()
    show_status(cluster.config, cluster.groups(), as_json=False)

    step("reading the topic with Spark from the followers")
    leader = cluster.leader()
    log = work / "spark.log"
    try:
        with quiet(log):
            table = read_with_spark(cluster.bootstrap, work)
    except Exception as error:  # whatever Spark throws: show the end of its log, and fail
        sys.stderr.write(log.read_text(errors="replace")[-3000:])
        raise DledgerError(f"the Spark job failed: {reason_of(error)}") from error
    findings = compare(load, table)
    with Admin(bootstrap=cluster.bootstrap, timeout_ms=60_000) as admin:
        comparisons = admin.compare_replicas()
    cluster.stop()
    return report(load, findings, comparisons[0].equal and not comparisons[0].unreachable, comparisons[0].difference, leader, pause_s)


def report(load: Load, found: Findings, equal: bool, difference: str, leader: str, pause_s: float) -> bool:
    step("report")
    for error in load.errors[:5]:
        print(f"not acknowledged: {error}")
    print(f"sent                    {len(load.lines)}")
    print(f"acknowledged            {load.count}")
    print(f"lost                    {found.lost}")
    print(f"duplicated              {found.duplicated}")
    print(f"changed                 {found.changed}")
    print(f"out of order            {found.out_of_order}")
    print(f"rows Spark read         {found.rows} from {', '.join(found.replicas)} (leader: {leader})")
    print(f"pause at the failover   {pause_s * 1000:.0f} ms")
    print(f"checksum on all replicas {'equal' if equal else 'DIFFERENT: ' + difference}")
    good = not (found.lost or found.duplicated or found.changed or found.out_of_order) and equal and found.rows >= load.count > 0
    print("PASS: nothing acknowledged was lost, doubled, changed or reordered" if good else "FAIL", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
