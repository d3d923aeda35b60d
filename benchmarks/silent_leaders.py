"""How long writes wait when the leader falls silent or is killed twice in a row: real processes, by fault, after a quiet time of their own.

    python -m benchmarks.silent_leaders --faults partition,pause,kill-twice --rounds 20 --quiet 130

A group that has just started waits for a silent leader as long as it is configured to, and shorter the longer all comes in time
(docs/adr/0031); hence the quiet time.  A leader is cut off or stands still for ``SILENT_S``: one that came back within the configured
timeout would have been given up too early, and the group would wait for it the next time.  Every message is accounted for, as ``dledger
bench failover`` does, whose load this is.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Producer
from dledger_drill.bench.bodies import Bodies
from dledger_drill.bench.failover import FAULTS, QUEUES, TOPIC, FailoverResult, _account, _Load
from dledger_drill.cluster.cuttable import CuttableCluster

SILENT_S = 2.0
BODY_BYTES = 1024


def _kill_twice(cluster: PrivateCluster, first: str) -> Callable[[], None]:
    """The leader, and the next one as soon as the first runs again; the pause counts from the second one's end."""
    cluster.kill(first)
    second = cluster.leader()
    cluster.start(first)
    cluster.kill(second)

    def start() -> None:
        cluster.start(second)
        cluster.wait_healthy()

    return start


def _for_a_while(fault: str) -> Callable[[PrivateCluster, str], Callable[[], None]]:
    """The fault, and its end ``SILENT_S`` after it began."""

    def start(cluster: PrivateCluster, leader: str) -> Callable[[], None]:
        since = time.perf_counter()
        end = _STARTS[fault](cluster, leader)

        def go_on() -> None:
            time.sleep(max(0.0, since + SILENT_S - time.perf_counter()))
            end()

        return go_on

    return start


def _pause(cluster: PrivateCluster, leader: str) -> Callable[[], None]:
    cluster.pause(leader)

    def resume() -> None:
        cluster.resume(leader)
        cluster.wait_healthy()

    return resume


_STARTS = {"partition": FAULTS["partition"], "pause": _pause}
KINDS = {"partition": _for_a_while("partition"), "kill": FAULTS["kill"], "pause": _for_a_while("pause"), "kill-twice": _kill_twice}


def measure(fault: str, rounds: int, quiet_s: float, rate: float) -> FailoverResult:
    result, bodies = FailoverResult(), Bodies(BODY_BYTES, BODY_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="dledger-silent-"))
    try:
        with (CuttableCluster if fault == "partition" else PrivateCluster)(folder) as cluster:
            cluster.start()
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic(TOPIC, queues=QUEUES)
            with Producer(cluster.bootstrap, group="bench", send_timeout_ms=30_000) as producer:
                load = _Load(producer, bodies, rate)
                try:
                    time.sleep(quiet_s)
                    for _ in range(rounds):
                        time.sleep(1.5)
                        victim, since = cluster.leader(), time.perf_counter()
                        end = KINDS[fault](cluster, victim)
                        if fault == "kill-twice":
                            since = time.perf_counter()
                        load.watch()
                        result.figures.latencies_ms.append(load.pause_ms(since))
                        end()
                finally:
                    load.stop()
            _account(cluster.bootstrap, bodies, load.acknowledged, result)
            result.figures.acknowledged = len(load.acknowledged)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="partition,pause,kill-twice")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quiet", type=float, default=130.0, help="seconds before the first round")
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second")
    arguments = parser.parse_args()
    for fault in arguments.faults.split(","):
        result = measure(fault, arguments.rounds, arguments.quiet, arguments.rate)
        found = sorted(result.figures.latencies_ms)
        spread = ", ".join(f"{each:.0f}" for each in found)
        account = f"{result.lost} lost, {result.duplicated} doubled, {result.reordered} reordered"
        print(
            f"{fault}: {len(found)} rounds, median {statistics.median(found):.0f} ms, worst {found[-1]:.0f} ms; "
            f"{result.figures.acknowledged} acknowledged, {account}  [{spread}]",
            flush=True,
        )


if __name__ == "__main__":
    main()
