"""Memory of three nodes whose links are cut and mended again and again under load: the nodes' anonymous memory, every ten rounds.

    python -m benchmarks.cut_links --rounds 200

First the same load for as long without a cut, so that what caches take is not counted against the cuts.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dledger_client import Admin, Message, Producer
from dledger_drill.cluster.cuttable import CuttableCluster
from dledger_wire.errors import DledgerError

BODY = b"x" * 1024
CUT_S = 1.0
WHOLE_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quiet-rounds", type=int, default=50, help="rounds without a cut before")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = CuttableCluster(Path(folder), settings={"store": {"mappedFileSizeCommitLog": "64MiB"}})
        try:
            cluster.start()
            under_load(cluster, lambda: rounds(cluster, arguments.quiet_rounds, arguments.rounds))
        finally:
            cluster.kill_all()


def under_load(cluster: CuttableCluster, work: Callable[[], None]) -> None:
    """Some 700 messages of 1 KiB a second, as long as there is somebody to take them."""
    stop = threading.Event()

    def produce() -> None:
        with Producer(cluster.bootstrap, send_timeout_ms=60_000) as producer:
            while not stop.is_set():
                with contextlib.suppress(DledgerError):
                    producer.send_batch([Message("t", BODY)] * 50)
                time.sleep(0.07)

    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", queues=1)
    thread = threading.Thread(target=produce)
    thread.start()
    try:
        work()
    finally:
        stop.set()
        thread.join()


def rounds(cluster: CuttableCluster, quiet: int, count: int) -> None:
    draw, names = random.Random(1), sorted(cluster.local.node_ids())
    for number in range(quiet + count):
        if number % 10 == 0:
            show(cluster, number, cut=number >= quiet)
        if number < quiet:
            time.sleep(CUT_S + WHOLE_S)
            continue
        one, other = draw.sample(names, 2)
        if draw.random() < 0.3:
            cluster.isolate(one)
        else:
            cluster.cables.cut(one, other)
            if draw.random() < 0.7:
                cluster.cables.cut(other, one)
        time.sleep(CUT_S)
        cluster.cables.heal()
        time.sleep(WHOLE_S)
    show(cluster, quiet + count, cut=True)


def show(cluster: CuttableCluster, number: int, *, cut: bool) -> None:
    sizes = {}
    for name, node in cluster.statuses().items():
        if node.reachable:
            sizes[name] = f"{node.anonymous_bytes >> 20} MiB, to entry {node.committed_index}"
    print(f"round {number} ({'cut' if cut else 'whole'}): {sizes}", flush=True)


if __name__ == "__main__":
    main()
