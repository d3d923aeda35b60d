"""Simple consumers as real processes on one queue, through kill -9 of the leader: every message of the account is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

from dledger_client import Message, Producer, SimpleConsumer
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

INVISIBLE_MS = 4_000
COUNT = 450
NAMES = ("a", "b")


@dataclass(frozen=True, slots=True)
class Line:
    """What became of a message."""

    at_ms: int
    name: str
    what: str
    attempt: int
    number: int


def lines(file: Path) -> list[Line]:
    text = file.read_text() if file.exists() else ""
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Line(int(at), name, what, int(attempt), int(number)) for at, name, what, attempt, number in rows]


def test_a_killed_leader_loses_no_acknowledgement_and_doubles_a_message_only_after_its_invisible_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    file = tmp_path / "lines"
    command = [sys.executable, "-m", "tests.cluster.simple_member", cluster.bootstrap, "g", "t"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    members = [subprocess.Popen([*command, name, str(file), str(INVISIBLE_MS)], cwd=ROOT, env=environment) for name in NAMES]
    try:
        with (
            Producer(cluster.bootstrap, "numbers", send_timeout_ms=LIMIT_MS) as producer,
            SimpleConsumer(cluster.bootstrap, "g", "t", invisible_ms=INVISIBLE_MS) as idle,
            ThreadPoolExecutor(1) as pool,
        ):
            kept: set[int] = set()
            for number in range(COUNT):
                producer.send(Message("t", b"%d" % number))
                if number == COUNT // 3:
                    wait_until(lambda: any(line.what == "acked" for line in lines(file)), "messages are acknowledged")
                    more = count(COUNT)  # no body is sent twice
                    received = pool.submit(idle.receive, wait_ms=60_000)
                    while not received.done():
                        producer.send(Message("t", b"%d" % next(more)))
                    kept = {int(message.body) for message in received.result()}
                    kept_ms = time.time_ns() // 1_000_000
                    cluster.kill(cluster.leader())
        wait_until(lambda: {line.number for line in lines(file) if line.what == "acked"} >= {*range(COUNT), *kept}, "all are acknowledged")
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.wait(LIMIT_S)
    got: dict[int, list[Line]] = defaultdict(list)
    acked: dict[int, list[Line]] = defaultdict(list)
    for line in sorted(lines(file), key=lambda line: line.at_ms):
        (got if line.what == "got" else acked)[line.number].append(line)
    assert [found for found in acked.values() if len(found) > 1] == [], "acknowledged once"
    for number, found in got.items():
        assert [line.attempt for line in found] == sorted({line.attempt for line in found}), "counted"
        assert all(later.at_ms - line.at_ms > INVISIBLE_MS - 1_000 for line, later in pairwise(found)), found
        if number in acked:
            assert found[-1].attempt == acked[number][0].attempt, "nothing comes again after its acknowledgement"
    for number in kept:
        assert got[number][0].attempt == 2
        assert got[number][0].at_ms - kept_ms > INVISIBLE_MS - 1_000
