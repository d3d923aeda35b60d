"""How fast an empty node catches up by copy, against a plain copy of the same files in the same run.

    python -m benchmarks.catch_up [--size-mb 1024] [--body 512-1536] [--segment-mb 256] [--loaded]

Starts a private cluster, fills it, deletes the log's first segments so that entries are missing, empties one node's folder and lets it join
as a learner.  The copy's seconds go from the node's first word of it to its last; with --loaded a producer sends all the while, and
its rate before and during the copy is told.  The plain copy reads the other follower's files and writes and syncs them elsewhere on the
same disk.  Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies, parse_size

ROOT = Path(__file__).resolve().parent.parent

TOPIC = "bench"


class Sender:
    """Sends messages and counts what was acknowledged."""

    def __init__(self, bootstrap: str, bodies: Bodies) -> None:
        from dledger_client import Producer

        self._producer = Producer(bootstrap)
        self._bodies, self._numbers = bodies, count()
        self.acknowledged = 0
        self._going = False
        self._thread = threading.Thread(target=self._run)

    def send(self, messages: int) -> None:
        from dledger_client import Message

        for number in islice(self._numbers, messages):
            self._producer.send_async(Message(TOPIC, self._bodies.body(number))).add_done_callback(self._done)
        self._producer.flush()

    def _done(self, future: Any) -> None:
        if future.exception() is None:
            self.acknowledged += 1

    def start(self) -> None:
        self._going = True
        self._thread.start()

    def _run(self) -> None:
        while self._going:
            self.send(2000)

    def stop(self) -> None:
        self._going = False
        if self._thread.ident is not None:
            self._thread.join()
        self._producer.close()


def wait(what: str, ready: Callable[[], bool], limit_s: float = 3600.0) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def expire(cluster: Any, older_than_ms: int) -> None:
    from dledger_client import Admin

    with Admin(cluster.bootstrap, timeout_ms=60_000) as admin:
        for done in admin.expire_messages(older_than_ms=older_than_ms):
            if done.error is not None:
                raise done.error


def change_members(cluster: Any, change: Callable[[Any], object]) -> None:
    from dledger_client import Admin

    with Admin(cluster.bootstrap, timeout_ms=30_000) as admin:
        change(admin)


def copy_seconds(log: Path) -> float:
    """From the begin of the copy until it was installed, by the node's own log."""
    moments: dict[str, datetime] = {}
    for line in log.read_text().splitlines():
        for key in (": copying entries", "a copy is installed"):
            if key in line:
                moments.setdefault(key, datetime.fromisoformat(json.loads(line)["at"]))
    return (moments["a copy is installed"] - moments[": copying entries"]).total_seconds()


def plain_copy(source: Path, target: Path) -> tuple[int, float]:
    """Copy the files of a folder and sync them."""
    target.mkdir()
    start, size = time.perf_counter(), 0
    for path in sorted(source.iterdir()):
        with open(path, "rb") as reader, open(target / path.name, "wb") as writer:
            while data := reader.read(1 << 20):
                size += writer.write(data)
            writer.flush()
            os.fsync(writer.fileno())
    return size, time.perf_counter() - start


def measure(work: Path, arguments: argparse.Namespace) -> dict[str, object]:
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin

    settings = {"raft": {"peerPushQuota": 0}, "store": {"mappedFileSizeCommitLog": f"{arguments.segment_mb}MiB"}}
    with PrivateCluster(work / "nodes", settings=settings) as cluster:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, queues=4)
        sender = Sender(cluster.bootstrap, Bodies(arguments.body))
        per_mb = (1 << 20) // (sum(parse_size(arguments.body)) // 2 + 160)
        sender.send(per_mb * arguments.segment_mb * 5 // 4)
        time.sleep(2)
        filled_at = time.monotonic()
        sender.send(per_mb * arguments.size_mb)
        cluster.wait_equal()
        expire(cluster, int((time.monotonic() - filled_at + 1) * 1000))
        leader = cluster.leader()
        victim, other = (node_id for node_id in cluster.local.node_ids() if node_id != leader)
        address = next(node.address for _, node in cluster.config.all_nodes() if node.id == victim)
        cluster.kill(victim)
        shutil.rmtree(cluster.data / victim)
        cluster.local.log_file(victim).unlink()
        change_members(cluster, lambda admin: admin.remove_member(victim))
        before = 0.0
        if arguments.loaded:
            sender.start()
            time.sleep(2)
            count = sender.acknowledged
            time.sleep(3)
            before = (sender.acknowledged - count) / 3
        cluster.start(victim, wait=False)
        change_members(cluster, lambda admin: admin.add_member(victim, address))
        log = cluster.local.log_file(victim)
        wait("the copy begins", lambda: ": copying entries" in log.read_text())
        count, start = sender.acknowledged, time.perf_counter()
        wait("the copy ends", lambda: ": goes on behind" in log.read_text())
        during = (sender.acknowledged - count) / (time.perf_counter() - start)
        sender.stop()
        wait("the node follows", lambda: _follows(cluster, victim, leader))
        caught_up_s = time.perf_counter() - start
        installed_s = copy_seconds(log)
        size = next(int(line.split(", 0 of ")[1].split()[0]) for line in log.read_text().splitlines() if ": copying entries" in line)
        plain_size, plain_s = plain_copy(cluster.data / other / "commitlog", work / "plain")
    return {
        "copied_mb": round(size / 1e6, 1),
        "seconds": round(installed_s, 2),
        "seconds_until_all_is_applied": round(caught_up_s, 2),
        "copy_mb_per_s": round(size / installed_s / 1e6, 1),
        "plain_copy_mb_per_s": round(plain_size / plain_s / 1e6, 1),
        "sent_per_s_before": round(before),
        "sent_per_s_during": round(during) if arguments.loaded else 0,
    }


def _follows(cluster: Any, victim: str, leader: str) -> bool:
    statuses = cluster.statuses()
    return bool(statuses[victim].applied_index >= statuses[leader].committed_index > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size-mb", type=int, default=1024)
    parser.add_argument("--body", default="512-1536")
    parser.add_argument("--segment-mb", type=int, default=256)
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument("--data", default="", help="a folder on the disk to measure; default: the one for temporary files")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    work = Path(tempfile.mkdtemp(prefix="dledger-catch-up-", dir=arguments.data or None))
    try:
        print(json.dumps(measure(work, arguments)))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
