"""The overload bench: what a cluster stores when it is offered a fraction or a multiple of what it can.

Owns the capacity (connections that send as fast as they get answers), the loads (messages offered at their times, whether or not earlier
ones are answered, and latencies counted from those times), what happens meanwhile (terms, how long ``status`` takes), and the account: at
least what was acknowledged is stored, and at most what else was left in doubt.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field

from dledger_client import Admin as SyncAdmin
from dledger_client.aio import Message, Producer
from dledger_drill.bench.report import Progress, percentiles
from dledger_wire.errors import DledgerError

TOPIC = "overload"
QUEUES = 8
LOADS = (0.2, 0.5, 1.0, 2.0, 5.0)
DEPTH = 8  # messages that each connection has in flight when the capacity is measured
TICK_S = 0.005
STATUS_EVERY_S = 0.5
SEND_TIMEOUT_MS = 3000
BUFFERED_BYTES = 256 << 20  # of all connections together


@dataclass
class Tally:
    """What became of the messages of one load."""

    offered: int = 0
    acknowledged: int = 0
    refused: int = 0  # certainly not stored
    unknown: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def count(self, error: BaseException | None, took_s: float) -> None:
        if error is None:
            self.acknowledged += 1
            self.latencies_ms.append(took_s * 1e3)
        elif isinstance(error, DledgerError) and not error.outcome_unknown:
            self.refused += 1
        else:
            self.unknown += 1


@dataclass(slots=True)
class Step:
    """One load.  ``load``: times the capacity; rates are bytes a second; ``goodput_share``: of the highest goodput of the run."""

    load: float
    offered_per_s: float
    goodput_per_s: float
    goodput_share: float
    p50_ms: float | None
    p99_ms: float | None
    refused_share: float
    unknown_share: float
    status_worst_s: float
    leader_changes: int


@dataclass
class OverloadResult:
    capacity_per_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    stored: int = 0

    @property
    def is_accounted(self) -> bool:
        return self.acknowledged <= self.stored <= self.acknowledged + self.unknown

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"is_accounted": self.is_accounted}


class _Watch:
    """Looks at the cluster as an operator does, all the time, beside the loop of the load."""

    def __init__(self, bootstrap: str) -> None:
        self.worst_s = 0.0
        self._terms: set[int] = set()
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def _run(self) -> None:
        with SyncAdmin(self._bootstrap) as admin:
            while not self._ended.wait(STATUS_EVERY_S):
                began = time.perf_counter()
                with suppress(DledgerError):
                    self._terms |= {node.term for group in admin.cluster_status() for node in group.nodes if node.term}
                self.worst_s = max(self.worst_s, time.perf_counter() - began)

    @property
    def leader_changes(self) -> int:
        return max(self._terms, default=0) - min(self._terms, default=0)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


class Overload:
    """One run against one cluster."""

    def __init__(self, bootstrap: str, size: int, connections: int, seconds: float) -> None:
        self._bootstrap, self._size, self._connections, self._seconds = bootstrap, size, connections, seconds
        self._body = os.urandom(size)  # the account is by offsets: all may be the same
        self._producers: list[Producer] = []
        self.result = OverloadResult()

    async def run(self, loads: Iterable[float] = LOADS) -> OverloadResult:
        result, wanted = self.result, list(loads)
        async with self._open():
            progress = Progress(len(wanted) + 1, "loads")
            capacity = result.capacity_per_s = await self._capacity()
            for done, load in enumerate(wanted, 1):
                progress.update(done, result.acknowledged)
                result.steps.append(await self._step(load, capacity))
            progress.end()
        peak = max([capacity, *(step.goodput_per_s for step in result.steps)])
        for step in result.steps:
            step.goodput_share = step.goodput_per_s / peak if peak else 0.0
        return result

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        buffered = max(2 * self._size + 4096, BUFFERED_BYTES // self._connections)
        async with AsyncExitStack() as stack:
            for number in range(self._connections):
                producer = Producer(
                    self._bootstrap,
                    f"overload-{number}",
                    compress_type="none",
                    send_timeout_ms=SEND_TIMEOUT_MS,
                    max_buffered_bytes=buffered,
                    max_message_bytes=max(4 << 20, self._size),
                )
                self._producers.append(await stack.enter_async_context(producer))
            yield

    async def _send(self, producer: Producer, tally: Tally, due_s: float) -> None:
        tally.offered += 1
        error: BaseException | None = None
        try:
            await producer.send(Message(TOPIC, self._body))
        except DledgerError as failed:
            error = failed
        tally.count(error, time.perf_counter() - due_s)

    async def _capacity(self) -> float:
        """Bytes a second that are stored when each connection sends as fast as it gets answers."""
        tally = Tally()

        async def lane(producer: Producer, until_s: float) -> None:
            while (now_s := time.perf_counter()) < until_s:
                await self._send(producer, tally, now_s)

        for seconds in (1.0, self._seconds):  # the first for routes, sessions and files
            self._add(tally)
            tally = Tally()
            began = time.perf_counter()
            lanes = (lane(producer, began + seconds) for producer in self._producers for _ in range(DEPTH))
            await asyncio.gather(*lanes)
        self._add(tally)
        return tally.acknowledged * self._size / (time.perf_counter() - began)

    async def _step(self, load: float, capacity: float) -> Step:
        tally, per_s = Tally(), load * capacity / self._size
        with _Watch(self._bootstrap) as watch:
            began = time.perf_counter()
            sends = await self._offer(tally, per_s, max(2 * self._connections, int(capacity * SEND_TIMEOUT_MS / 1000 / self._size)))
            offering_s = time.perf_counter() - began
            in_time = tally.acknowledged
            await asyncio.gather(*sends)
        self._add(tally)
        marks = percentiles(tally.latencies_ms)
        return Step(
            load=load,
            offered_per_s=tally.offered * self._size / offering_s,
            goodput_per_s=in_time * self._size / offering_s,
            goodput_share=0.0,
            p50_ms=marks.get(50.0),
            p99_ms=marks.get(99.0),
            refused_share=tally.refused / max(1, tally.offered),
            unknown_share=tally.unknown / max(1, tally.offered),
            status_worst_s=watch.worst_s,
            leader_changes=watch.leader_changes,
        )

    async def _offer(self, tally: Tally, per_s: float, most: int) -> set[asyncio.Task[None]]:
        """Send at the times that ``per_s`` gives, but what would wait behind ``most`` others, for longer than it may take, is refused here.
        Returns what is not answered at the end."""
        sends: set[asyncio.Task[None]] = set()
        began, sent = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - began) < self._seconds:
            while sent < passed_s * per_s:
                due_s = began + sent / per_s
                sent += 1
                if len(sends) >= most:
                    tally.offered += 1
                    tally.refused += 1
                    continue
                task = asyncio.ensure_future(self._send(self._producers[sent % len(self._producers)], tally, due_s))
                sends.add(task)
                task.add_done_callback(sends.discard)
            await asyncio.sleep(TICK_S)
        return sends

    def _add(self, tally: Tally) -> None:
        self.result.acknowledged += tally.acknowledged
        self.result.unknown += tally.unknown


def table(result: OverloadResult) -> list[str]:
    """The steps as lines of text."""
    head = "load   offered MB/s  stored MB/s  of peak  p50 ms  p99 ms  refused  in doubt  status s  new leaders"
    return [head, *map(_line, result.steps)]


def _line(step: Step) -> str:
    return (
        f"{step.load:<5g}{step.offered_per_s / 1e6:>14.1f}{step.goodput_per_s / 1e6:>13.1f}{step.goodput_share:>9.0%}"
        f"{step.p50_ms or 0:>8.0f}{step.p99_ms or 0:>8.0f}{step.refused_share:>9.1%}{step.unknown_share:>10.2%}"
        f"{step.status_worst_s:>10.2f}{step.leader_changes:>13}"
    )
