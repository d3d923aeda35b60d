"""How long a start takes against how much is stored, and what a message takes on disk.

    .venv/bin/python -m benchmarks.recovery [--folder DIR] [--gigabytes 1,5,20] [--behind-mb 0,64,512] [--body BYTES]
    .venv/bin/python -m benchmarks.recovery --sizes

The log grows to each size; a snapshot is written, then some more behind it; the process ends without a word (os._exit), and another one
starts from what is there, everything out of the page cache: log opened, snapshot found, the rest applied again.  A start must depend on
what lies behind the snapshot and on the part of the log that is always checked byte by byte (LogConfig.verify_bytes), not on the size.

One replica without Raft and network: the appender also commits.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dledger.core.types import EntryKind
from dledger.log.config import LogConfig
from dledger.log.log import Log
from dledger.runtime.env import Environment
from dledger.runtime.real_env import real_environment
from dledger_client.message import Message
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire.layout import ENTRY_HEADER_SIZE
from store.append.prepared import PreparedBatches, PreparedCommand
from store.commands.topics import CreateTopic
from store.settings import StoreSettings
from store.store import MessageStore
from tests.grpc_network import GrpcNetwork

QUEUES = 4
NEVER_MS = 1_000_000_000
FLUSH_BYTES = 16 << 20
SPAWN = multiprocessing.get_context("spawn")


def fail(error: BaseException) -> None:
    raise error


@dataclass(slots=True)
class Replica:
    """Log and store in one folder."""

    log: Log
    store: MessageStore
    opened_s: float
    recovered_s: float
    applied_s: float
    snapshot_index: int
    unflushed: int = 0

    @classmethod
    async def start(cls, folder: str) -> Replica:
        env: Environment = real_environment(folder, GrpcNetwork())
        begin = time.perf_counter()
        log, report = await Log.open(env.disk, LogConfig())
        if report.damaged:
            raise SystemExit(report.summary())
        opened = time.perf_counter()
        settings = StoreSettings(snapshot_interval_ms=NEVER_MS, store_host="127.0.0.1:10911")
        store = MessageStore(settings, env, role_changed=lambda _event: None, failed=fail)
        await store.recover(log)
        recovered = time.perf_counter()
        replica = cls(log, store, opened - begin, recovered - opened, 0, store.applied_index)
        await replica.apply()
        replica.applied_s = time.perf_counter() - recovered
        store.become_master(max(1, log.last.term))
        return replica

    async def apply(self) -> None:
        while self.store.applied_index < self.log.last.index:
            await self.store.apply(await self.log.read(self.store.applied_index + 1, 8 << 20, self.log.last.index))

    async def append(self, payload: PreparedBatches | PreparedCommand[Any]) -> None:
        pos = self.log.place(ENTRY_HEADER_SIZE + payload.size_bytes)
        index, term = self.log.last.index + 1, max(1, self.log.last.term)
        self.log.append(self.log.encode(term, EntryKind.NORMAL, payload.seal(pos + ENTRY_HEADER_SIZE, index, term)))
        self.unflushed += payload.size_bytes
        if self.unflushed >= FLUSH_BYTES:
            await self.commit()

    async def commit(self) -> None:
        self.unflushed = 0
        await self.log.flush()
        await self.apply()

    async def topic(self) -> None:
        if self.store.topics.get("t") is None:
            self.log.save_hard_state(max(1, self.log.last.term), None)
            await self.append(self.store.command(CreateTopic(name="t", write_queues=QUEUES)))
            await self.commit()

    async def close(self) -> None:
        await self.commit()
        await self.store.close()
        await self.log.close()


def records(body_bytes: int, count: int) -> list[bytes]:
    """One batch for every queue."""
    draw = random.Random(1)
    ids = np.frombuffer(draw.randbytes(16 * count).hex().upper().encode(), np.uint8).reshape(count, 32)
    messages = [Message("t", draw.randbytes(body_bytes), tags="created", keys=f"o-{number}") for number in range(count)]
    return [
        b"".join(bytes(part) for part in encode_messages("t", queue, messages, ids, born_ms=1, born_host=bytes(8)))
        for queue in range(QUEUES)
    ]


async def grow(folder: str, upto_bytes: int, body_bytes: int, *, crash: bool) -> None:
    """Append until the log ends at ``upto_bytes``; then stop in order, or not at all."""
    replica = await Replica.start(folder)
    await replica.topic()
    batches = records(body_bytes, max(1, (1 << 20) // (body_bytes + 180)))
    number = 0
    while replica.log.end_pos < upto_bytes:
        await replica.append(replica.store.prepare(batches[number % QUEUES]))
        number += 1
    await replica.commit()
    if crash:
        os._exit(0)
    await replica.close()


async def measure(folder: str) -> None:
    replica = await Replica.start(folder)
    behind = replica.log.last.index - replica.snapshot_index
    total_s = replica.opened_s + replica.recovered_s + replica.applied_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    stop = "clean stop" if replica.store.recovery.clean else "crash"
    held = f"log {replica.log.end_pos / (1 << 30):6.2f} GiB, {replica.store.applied.messages:>9} messages, {behind:>5} entries behind"
    parts = f"log {replica.opened_s:5.2f} + snapshot {replica.recovered_s:5.2f} + applying {replica.applied_s:5.2f}"
    print(f"{held}, {stop:<10}: {total_s:6.2f} s = {parts}; peak RSS {peak_mb} MB", flush=True)
    await replica.close()


def _run(step: Callable[..., Awaitable[None]], arguments: tuple[object, ...], options: dict[str, bool]) -> None:
    async def main() -> None:
        await step(*arguments, **options)

    asyncio.run(main())


def in_a_process_of_its_own(step: Callable[..., Awaitable[None]], *arguments: object, **options: bool) -> None:
    process = SPAWN.Process(target=_run, args=(step, arguments, options))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{step.__name__} ended with {process.exitcode}")


def forget_pages(folder: Path) -> None:
    """Nothing of the folder stays in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDWR)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def starts(folder: Path, gigabytes: list[float], behind_mb: list[int], body_bytes: int) -> None:
    for size in gigabytes:
        in_a_process_of_its_own(grow, str(folder), int(size * (1 << 30)), body_bytes, crash=False)
        forget_pages(folder)
        in_a_process_of_its_own(measure, str(folder))
        for behind in behind_mb:
            end = log_end(folder)
            in_a_process_of_its_own(grow, str(folder), end + (behind << 20), body_bytes, crash=True)
            forget_pages(folder)
            in_a_process_of_its_own(measure, str(folder))


def log_end(folder: Path) -> int:
    """Where the log ends, by its checkpoint."""
    return int.from_bytes((folder / "checkpoint").read_bytes()[24:32], "big")


async def disk_use(folder: str, body_bytes: int, each: int, total: int) -> None:
    """Bytes on disk for every message, ``each`` of them a batch."""
    replica = await Replica.start(folder)
    await replica.topic()
    before, index_before = replica.log.end_pos, replica.log.last.index
    batches = records(body_bytes, each)
    for number in range(total // each):
        await replica.append(replica.store.prepare(batches[number % QUEUES]))
    await replica.commit()
    count = total // each * each
    log = (replica.log.end_pos - before) / count
    units = (replica.log.last.index - index_before) * 32 / count
    print(
        f"body {body_bytes:>7} B, {each:>5} a batch: {log + units + 20:>9.1f} B on disk a message and replica"
        f" (log {log:.1f}, index units {units:.1f}, queue 20), {(log + units + 20) / body_bytes:.3f} times the body",
        flush=True,
    )
    await replica.close()


def sizes(folder: Path) -> None:
    for body_bytes in (16, 100, 1024, 16 << 10, 256 << 10):
        most = max(1, (1 << 20) // (body_bytes + 180))
        for each in sorted({1, most}):
            total = max(each, min(20_000, (64 << 20) // body_bytes) // each * each)
            part = folder / f"{body_bytes}-{each}"
            in_a_process_of_its_own(disk_use, str(part), body_bytes, each, total)
            shutil.rmtree(part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--folder", help="where the data goes (removed at the end); default: a temporary one")
    parser.add_argument("--gigabytes", default="1,5,20", help="sizes of the log, rising")
    parser.add_argument("--behind-mb", default="0,64,512", help="what lies behind the snapshot when the process dies")
    parser.add_argument("--body", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--sizes", action="store_true", help="what a message takes on disk, instead")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="recovery-", dir=options.folder))
    try:
        if options.sizes:
            sizes(base)
        else:
            starts(
                base, [float(size) for size in options.gigabytes.split(",")], [int(mb) for mb in options.behind_mb.split(",")], options.body
            )
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
