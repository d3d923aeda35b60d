"""Push consumers: concurrent, and two members of an orderly group."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from dledger_client.aio import PushConsumer
from dledger_client.types import Action, ConsumeContext, ReceivedMessage
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.bodies import value_of

MESSAGES_A_CALL = 16
SENT_BACK = 0.003  # share of the calls whose messages are to be redelivered
SOON = 1  # delay level of what is sent back: the audit waits for it
ORDERLY_WORK_S = 0.002  # a call takes some time, as those of applications: calls of two owners would overlap
START_MS = 60_000  # the first round may strike while a consumer starts


class PushWorkload(Workload):
    """One member of a consumer group; writes a ``deliver`` for each message of each listener call."""

    stays = True
    mode = ""

    def __init__(self, around: Surroundings, process: str, topics: Sequence[str]) -> None:
        super().__init__(around)
        self.process = process
        self.group = f"{self.spec.prefix}-{self.mode}"
        self._topics = topics
        self._draw = random.Random(f"{self.spec.seed}/{process}")

    async def run(self) -> None:
        consumer = PushConsumer(
            self.spec.bootstrap,
            self.group,
            self._listen,
            client_id=f"{self.spec.prefix}-{self.process}",
            orderly=self.mode == "orderly",
            consume_message_batch_max_size=MESSAGES_A_CALL,
            timeout_ms=START_MS,
            **self.spec.security,
        )
        for topic in self._topics:
            consumer.subscribe(topic)
        await consumer.start()
        self.ready.set()
        try:
            await self._closing.wait()
        finally:
            await consumer.shutdown()

    async def _listen(self, messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        of_round, invoked_ns = self.recorder.round, time.monotonic_ns()
        wall_ms = time.time_ns() // 1_000_000
        action = await self.consume(messages)
        if sent_back := action is Action.RECONSUME_LATER:
            context.delay_level = SOON
        returned_ns = time.monotonic_ns()
        self.recorder.write(
            Operation(
                self.process,
                OperationKind.DELIVER,
                invoked_ns,
                returned_ns,
                Outcome.OK,
                of_round,
                {
                    "topic": message.topic,
                    "consumer_group": self.group,
                    "member": self.process,
                    "mode": self.mode,
                    "group": context.replica_group,
                    "queue": context.queue_id,
                    "offset": message.queue_offset,
                    "key": message.keys or None,
                    "value": value_of(message.body),
                    "redelivered": message.reconsume_times > 0,
                    "sent_back": sent_back,
                    "wall_ms": wall_ms,
                },
            )
            for message in messages
        )
        return action

    async def consume(self, messages: list[ReceivedMessage]) -> Action:
        raise NotImplementedError


class ConcurrentConsumer(PushWorkload):
    """Sends a few calls' messages back, so that the retry topic is used."""

    mode = "concurrent"

    async def consume(self, messages: list[ReceivedMessage]) -> Action:
        if self._draw.random() < SENT_BACK and not any(message.reconsume_times for message in messages):
            return Action.RECONSUME_LATER
        return Action.COMMIT


class OrderlyConsumer(PushWorkload):
    """Consumes each queue in order; the interval of each call shows whether a queue had two owners."""

    mode = "orderly"

    async def consume(self, messages: list[ReceivedMessage]) -> Action:
        await asyncio.sleep(ORDERLY_WORK_S)
        return Action.COMMIT
