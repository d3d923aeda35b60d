"""Snapshots of a large state: how long one takes, and for how long nothing else runs on the event loop meanwhile.

    .venv/bin/python -m benchmarks.snapshot [--producers 10000] [--queues 8] [--runs 32] [--groups 1000] [--rounds 3] [--changed 100]

Every producer has stored in every queue and is remembered by so many runs; every group reads every queue.  Between two snapshots some of
the producers store a batch, as in a cluster at work.  One replica without Raft and network; the state is made in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time

from benchmarks.recovery import fail
from dledger.log.log import Log
from dledger.runtime.real_env import real_environment
from dledger_wire.batches.batch import Sequence64
from dledger_wire.rpc.grpc_network import GrpcNetwork
from store.settings import StoreSettings
from store.state.offset_history import MAX_POINTS
from store.store import MessageStore

NEVER_MS = 1_000_000_000
NOW_MS = 1_700_000_000_000


class Gaps:
    """The most that the event loop's thread computed at a time, without letting this task run."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.worst_s, last = max(self.worst_s, now - last), now

    def take_ms(self) -> float:
        worst_s, self.worst_s = self.worst_s, 0.0
        return worst_s * 1e3

    def stop(self) -> None:
        self._task.cancel()


def fill(store: MessageStore, arguments: argparse.Namespace) -> None:
    queues = [("orders", number) for number in range(arguments.queues)]
    runs = [[number * 20, 10, number * 1000] for number in range(arguments.runs)]
    producers = range(1, arguments.producers + 1)
    store.sequences.load([[number, 0, NOW_MS, [[*queue, runs] for queue in queues]] for number in producers])
    names = [f"orders@group-{number}" for number in range(arguments.groups)]
    store.consumer_offsets.load({"offsetTable": {name: {str(number): 123_456_789 for _, number in queues} for name in names}})
    points = [[number * 1000, NOW_MS + number] for number in range(MAX_POINTS)]
    store.offset_history.load({"commitTable": {f"{name}@{number}": points for name in names for _, number in queues}})


async def measure(folder: str, arguments: argparse.Namespace) -> None:
    env = real_environment(folder, GrpcNetwork())
    log, _ = await Log.open(env.disk)
    settings = StoreSettings(snapshot_interval_ms=NEVER_MS, flushIntervalConsumeQueue=NEVER_MS, store_host="127.0.0.1:10911")
    store = MessageStore(settings, env, role_changed=lambda _event: None, failed=fail)
    await store.recover(log)
    fill(store, arguments)
    gc.collect()
    gc.freeze()
    persistence = store._persistence
    if persistence is None:
        raise SystemExit("the store is not open")
    gaps = Gaps()
    for number in range(1, arguments.rounds + 1):
        begin, cpu = time.perf_counter(), time.process_time()
        gaps.take_ms()
        await persistence.save(force=True)
        used_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        print(
            f"snapshot {number}: {used_s * 1e3:.0f} ms, CPU {cpu_s * 1e3:.0f} ms, longest without a break {gaps.take_ms():.1f} ms",
            flush=True,
        )
        for producer in range(1, arguments.changed + 1):
            store.sequences.store(("orders", 0), Sequence64(producer, 0, number * 10**6), 1, number * 10**6, NOW_MS)
    gaps.stop()
    await log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("producers", 10_000), ("queues", 8), ("runs", 32), ("groups", 1000), ("rounds", 3), ("changed", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    with tempfile.TemporaryDirectory(prefix="dledger-snapshot-") as folder:
        asyncio.run(measure(folder, parser.parse_args()))


if __name__ == "__main__":
    main()
