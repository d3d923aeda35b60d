"""Transactions a second against plain sends, on one private cluster, turn and turn about.

    python -m benchmarks.transactions [--rounds 5] [--seconds 4] [--at-once 256] [--size 128-384] [--json]

Plain: each of ``--at-once`` tasks sends a message and waits until it is stored.  Transactions: each stores a half message, runs a local
transaction that does nothing, commits, and waits until that is stored.  The rounds alternate; the medians are compared.  A transaction is
two waits and writes its message twice, so half of the plain rate is what could be had for nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

from benchmarks.bodies import Bodies

TOPIC = "paid"


async def rate(work: Callable[[], Awaitable[object]], at_once: int, seconds: float) -> tuple[float, list[float]]:
    """(done a second, how long each took in ms)"""
    took: list[float] = []
    end = time.monotonic() + seconds

    async def one() -> None:
        while (start := time.monotonic()) < end:
            await work()
            took.append((time.monotonic() - start) * 1000)

    start = time.monotonic()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return len(took) / (time.monotonic() - start), took


async def measure(bootstrap: str, arguments: argparse.Namespace) -> dict[str, object]:
    from dledger_client.aio import Admin, Message, TransactionProducer, TransactionState

    async with Admin(bootstrap) as admin:
        await admin.create_topic(TOPIC, queues=4)
    bodies, numbers = Bodies(arguments.size), count()
    plain: list[float] = []
    transactions: list[float] = []
    took: dict[str, list[float]] = {"plain": [], "transaction": []}
    async with TransactionProducer(bootstrap, "bench", lambda _: TransactionState.UNKNOWN) as producer:

        async def send() -> None:
            await producer.send(Message(TOPIC, bodies.body(next(numbers))))

        async def transact() -> None:
            result = await producer.send_in_transaction(Message(TOPIC, bodies.body(next(numbers))), lambda *_: TransactionState.COMMIT)
            assert result.outcome.name == "COMMITTED", result

        await rate(transact, arguments.at_once, 1.0)
        for number in range(arguments.rounds):
            for work, rates, name in ((send, plain, "plain"), (transact, transactions, "transaction")):
                found, each = await rate(work, arguments.at_once, arguments.seconds)
                rates.append(found)
                took[name] += each
            print(f"round {number}: plain {plain[-1]:.0f}/s, transactions {transactions[-1]:.0f}/s", file=sys.stderr)
    figures: dict[str, object] = {"at_once": arguments.at_once, "size": arguments.size, "rounds": arguments.rounds}
    figures |= {"plain_per_s": round(statistics.median(plain)), "transactions_per_s": round(statistics.median(transactions))}
    figures["ratio"] = round(statistics.median(transactions) / statistics.median(plain), 3)
    for name, each in took.items():
        cuts = statistics.quantiles(each, n=100)
        figures |= {f"{name}_p50_ms": round(cuts[49], 1), f"{name}_p99_ms": round(cuts[98], 1)}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--size", default="128-384")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    from dledger_cli.local.private_cluster import PrivateCluster

    data = Path(tempfile.mkdtemp(prefix="dledger-transactions-"))
    cluster = PrivateCluster(data)
    try:
        cluster.start()
        figures = asyncio.run(measure(cluster.bootstrap, arguments))
    finally:
        cluster.kill_all()
        shutil.rmtree(data, ignore_errors=True)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:>22}  {value}")


if __name__ == "__main__":
    main()
