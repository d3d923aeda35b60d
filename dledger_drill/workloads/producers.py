"""Producers: plain, by key, with an identity of their own, delayed, and the probe of each replica group."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

from dledger_client.aio import Producer
from dledger_client.types import AsyncSendFuture, Message, QueueNumber
from dledger_drill.history.records import PROBE, OperationKind, Outcome
from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.bodies import body_of
from dledger_drill.workloads.recorder import outcome_of
from dledger_wire.errors import DledgerError

KEYS = 8
MOST_IN_FLIGHT = 500
LEVEL_MS = {1: 1_000, 2: 5_000}  # of the default messageDelayLevel
DELAY_MS = (1_000, 5_000)


class ProducerWorkload(Workload):
    """Numbers its messages and notes how each send ended."""

    workload = ""
    kind = OperationKind.SEND

    def __init__(self, around: Surroundings, process: str) -> None:
        super().__init__(around)
        self.process = process
        self.topic = self.spec.topic(self.workload)
        self.draw = random.Random(f"{self.spec.seed}/{process}")
        self._number = self.spec.first_number

    async def run(self) -> None:
        async with Producer(self.spec.bootstrap, **self.spec.security) as producer:
            await self.paced(self.spec.rate(self.workload), lambda: self.send_one(producer))

    async def send_one(self, producer: Producer) -> None:
        await self.answered(self.send(producer, {"key": None}))

    def next_value(self) -> str:
        self._number += 1
        return f"{self.process}/{self._number}"

    def send(
        self, producer: Producer, more: dict[str, Any], queue_id: QueueNumber | None = None, *, level: int = 0, at_ms: int = 0
    ) -> AsyncSendFuture:
        """Send the next message; its operation is recorded when the answer is there."""
        value, key = self.next_value(), more["key"]
        data = {"topic": self.topic, "value": value, "idempotent": True} | more
        message = Message(self.topic, body_of(value), keys=key or "", delay_level=level, deliver_at_ms=at_ms)
        of_round, invoked_ns = self.recorder.round, time.monotonic_ns()

        def note(done: AsyncSendFuture) -> None:
            error = done.exception()
            if error is None:
                result = done.result()
                data.update(group=result.replica_group, queue=result.queue_id)
                if self.kind is OperationKind.SEND:
                    data["offset"] = result.queue_offset
                self.recorder.undelivered.expect(self.topic, value)
            self.recorder.record(self.process, self.kind, invoked_ns, outcome_of(error) if error else Outcome.OK, data, of_round=of_round)

        future = producer.send_async(message, queue_key=key, queue_id=queue_id)
        future.add_done_callback(note)
        return future

    async def answered(self, future: AsyncSendFuture) -> None:
        with contextlib.suppress(DledgerError):  # it is recorded
            await future


class PlainProducer(ProducerWorkload):
    """One message after the other, without a key: each goes where the client likes."""

    workload = "plain"


class KeyedProducer(ProducerWorkload):
    """By key and without waiting, as most applications send."""

    workload = "keyed"

    def __init__(self, around: Surroundings, process: str) -> None:
        super().__init__(around, process)
        self._in_flight = asyncio.Semaphore(MOST_IN_FLIGHT)

    async def send_one(self, producer: Producer) -> None:
        await self._in_flight.acquire()
        future = self.send(producer, {"key": f"k{self.draw.randrange(KEYS)}"})
        future.add_done_callback(lambda _: self._in_flight.release())


class IdempotentProducer(KeyedProducer):
    """With a ``producer_id``; closed and opened again in each round, as an application that is restarted."""

    workload = "idempotent"

    def __init__(self, around: Surroundings, process: str) -> None:
        super().__init__(around, process)
        self._restart = asyncio.Event()

    async def new_round(self) -> None:
        self._restart.set()

    async def run(self) -> None:
        producer = self._open()
        try:

            async def send_one() -> None:
                nonlocal producer
                if self._restart.is_set():
                    self._restart.clear()
                    await producer.close()
                    producer = self._open()
                await self.send_one(producer)

            await self.paced(self.spec.rate(self.workload), send_one)
        finally:
            await producer.close()

    def _open(self) -> Producer:
        return Producer(self.spec.bootstrap, producer_id=f"{self.spec.prefix}-{self.process}", **self.spec.security)


class DelayedProducer(ProducerWorkload):
    """Messages for a time in 1 to 5 seconds, by level or by time."""

    workload = "delayed"
    kind = OperationKind.DELAYED

    async def send_one(self, producer: Producer) -> None:
        now_ms = time.time_ns() // 1_000_000
        if self.draw.random() < 0.5:
            level = self.draw.choice(list(LEVEL_MS))
            future = self.send(producer, {"key": None, "deliver_at_ms": now_ms + LEVEL_MS[level], "level": level}, level=level)
        else:
            at_ms = now_ms + self.draw.randint(*DELAY_MS)
            future = self.send(producer, {"key": None, "deliver_at_ms": at_ms}, at_ms=at_ms)
        await self.answered(future)


class Probe(ProducerWorkload):
    """One message after the other to one queue of a replica group: gaps between its acknowledgements are outages."""

    workload = "probe"

    def __init__(self, around: Surroundings, group: str) -> None:
        super().__init__(around, f"{PROBE}{group}")
        self._group = group

    async def send_one(self, producer: Producer) -> None:
        await self.answered(self.send(producer, {"key": None}, queue_id=(self._group, 0)))
