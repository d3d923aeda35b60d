"""The audit at the end: every queue of every topic, read whole from a replica that has everything acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterable

from dledger_client.aio import PullConsumer
from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.workloads.bodies import consecutive_runs, value_of
from dledger_drill.workloads.recorder import Recorder
from dledger_drill.workloads.spec import LoadSpec

RUN_MESSAGES = 1_000
TIMEOUT_MS = 60_000
PROCESS = "audit"


async def audit(spec: LoadSpec, recorder: Recorder, topics: Iterable[str]) -> int:
    """Write ``stored`` operations; returns how many messages there are.  DledgerError when a queue cannot be read for a minute."""
    count = 0
    async with PullConsumer(spec.bootstrap, timeout_ms=TIMEOUT_MS, **spec.security) as consumer:
        for topic in topics:
            for (group, queue), held in sorted((await consumer.offsets(topic)).items()):
                count += await _audit_queue(consumer, recorder, topic, group, queue, held.min_offset)
    return count


async def _audit_queue(consumer: PullConsumer, recorder: Recorder, topic: str, group: str, queue: int, offset: int) -> int:
    start, count = offset, 0
    while True:
        invoked_ns = time.monotonic_ns()
        messages = await consumer.fetch(topic, queue, offset, RUN_MESSAGES, replica_group=group, linearizable=True)
        runs = consecutive_runs((message.queue_offset, message) for message in messages)
        for first, run in runs or ([(offset, [])] if offset == start else []):  # also of an empty queue there is one row
            values, keys = [value_of(message.body) for message in run], [message.keys or None for message in run]
            data = {"topic": topic, "group": group, "queue": queue, "first_offset": first, "values": values, "keys": keys}
            recorder.record(PROCESS, OperationKind.STORED, invoked_ns, Outcome.OK, data)
            count += len(run)
        if not messages:
            return count
        offset = messages[-1].queue_offset + 1
