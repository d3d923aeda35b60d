"""All workloads of a process together: started in order, drained, audited."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path

from dledger_client.aio import Admin, PullConsumer
from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.workloads.administration import Administration, noted
from dledger_drill.workloads.audit import audit
from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.consumers import ConcurrentConsumer, OrderlyConsumer
from dledger_drill.workloads.producers import DelayedProducer, IdempotentProducer, KeyedProducer, PlainProducer, Probe
from dledger_drill.workloads.readers import FollowerReader, LinearizableReader, Offsets
from dledger_drill.workloads.spark_child import SparkChild
from dledger_drill.workloads.transactional import Transactional
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.names import retry_topic

PRODUCERS = ("plain", "keyed", "idempotent", "transactional", "delayed")
PROCESS = "operator"
TOPICS_MS = 60_000
READERS = (ConcurrentConsumer, OrderlyConsumer, SparkChild)


class Load:
    """The workloads of a spec, each as a task."""

    def __init__(self, around: Surroundings, folder: Path) -> None:
        self._around, self._spec, self._recorder = around, around.spec, around.recorder
        self._folder = folder
        self._workloads: list[tuple[Workload, asyncio.Task[None]]] = []
        producing = [name for name in PRODUCERS if name in self._spec.workloads]
        self._topics = [self._spec.topic(name) for name in ("probe", *producing)]

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Topics are there and all workloads are ready to begin.  One that fails ends all of them."""
        queues = await self._create_topics()
        async with asyncio.TaskGroup() as tasks:
            for workload in self._make(queues):
                self._workloads.append((workload, tasks.create_task(workload.run(), name=type(workload).__name__)))
            for workload, _ in self._workloads:
                await workload.ready.wait()
            yield
            for workload, _ in self._workloads:
                workload.close()

    async def new_round(self) -> None:
        for workload, _ in self._workloads:
            await workload.new_round()

    async def drain(self) -> list[str]:
        """Stop the load, and wait until consumers were given everything, or nothing for ``drain_s``; some of what is left."""
        await self._stop(workload for workload, _ in self._workloads if not isinstance(workload, READERS))
        await self._stop(workload for workload, _ in self._workloads if isinstance(workload, SparkChild))  # they read to the end
        undelivered = self._recorder.undelivered
        with contextlib.suppress(TimeoutError):
            await undelivered.wait_for_none(self._spec.drain_s)
        for workload, _ in self._workloads:
            workload.close()
        await asyncio.wait([task for _, task in self._workloads])
        return undelivered.examples()

    async def _stop(self, workloads: Iterable[Workload]) -> None:
        """Return when nothing of theirs is under way."""
        stopped = list(workloads)
        for workload in stopped:
            workload.stop()
        for workload, task in self._workloads:
            if workload in stopped and isinstance(workload, Transactional):
                await workload.load_ended.wait()
            elif workload in stopped and not workload.stays:
                await task

    async def audit(self) -> int:
        """Read everything."""
        return await audit(self._spec, self._recorder, self._topics)

    async def delete(self) -> None:
        """What was made, if that was asked for.  DledgerError for a topic that stays."""
        if not self._spec.delete_topics:
            return
        stays: list[DledgerError] = []
        async with Admin(self._spec.bootstrap, **self._spec.security) as admin:
            for topic in self._topics:
                error = await noted(self._recorder, PROCESS, "delete_topic", topic, partial(admin.delete_topic, topic))
                if error is not None and not isinstance(error, TopicNotFoundError):
                    stays.append(error)
            for group in (f"{self._spec.prefix}-{mode}" for mode in ("concurrent", "orderly", "offsets")):
                with contextlib.suppress(DledgerError):  # it may have left nothing
                    await admin.delete_group(group)
                with contextlib.suppress(DledgerError):
                    await admin.delete_topic(retry_topic(group))
        if stays:
            raise stays[0]

    async def _create_topics(self) -> list[tuple[str, int]]:
        """The queues of the topic that readers read."""
        async with Admin(self._spec.bootstrap, **self._spec.security) as admin:
            for topic in self._topics:
                per_group = 1 if topic == self._spec.topic("probe") else self._spec.queues_per_group
                groups = self._spec.groups
                call = partial(admin.create_topic, topic, queues=per_group * len(groups), replica_groups=groups, if_not_exists=True)
                if error := await noted(self._recorder, PROCESS, "create_topic", topic, call):
                    raise error  # without these topics there is no load
        async with PullConsumer(self._spec.bootstrap, timeout_ms=TOPICS_MS, **self._spec.security) as consumer:
            return sorted(await consumer.offsets(self._spec.read_topic))

    def _make(self, queues: list[tuple[str, int]]) -> list[Workload]:
        """Those that stay first; the probes last."""
        around = self._around
        named: dict[str, Callable[[], list[Workload]]] = {
            "push": lambda: [ConcurrentConsumer(around, "push-0", self._subscribed("concurrent", PRODUCERS))],
            "orderly": self._orderly,
            "plain": lambda: [PlainProducer(around, "plain-0")],
            "keyed": lambda: [KeyedProducer(around, "keyed-0")],
            "idempotent": lambda: [IdempotentProducer(around, "idempotent-0")],
            "transactional": lambda: [Transactional(around, "transactional-0")],
            "delayed": lambda: [DelayedProducer(around, "delayed-0")],
            "pull": lambda: [LinearizableReader(around, "pull-0", queues)],
            "follower": lambda: [FollowerReader(around, "follower-0", queues)],
            "offsets": lambda: [Offsets(around, "offsets-0", queues)],
            "admin": lambda: [Administration(around, "admin-0")],
        }
        made = [workload for name, make in named.items() if name in self._spec.workloads for workload in make()]
        if any(name.startswith("spark-") for name in self._spec.workloads):
            spec_file = self._folder / "spark-spec.json"
            self._spec.write(spec_file)
            made.append(SparkChild(around, self._folder, spec_file))
        return [*made, *(Probe(around, group) for group in self._spec.groups)]

    def _orderly(self) -> list[Workload]:
        topics = self._subscribed("orderly", ("keyed", "idempotent"))
        return [OrderlyConsumer(self._around, f"orderly-{member}", topics) for member in range(2)] if topics else []

    def _subscribed(self, mode: str, producers: tuple[str, ...]) -> list[str]:
        """The topics of these producers, which a consumer group has to be given whole."""
        group = f"{self._spec.prefix}-{mode}"
        topics = [self._spec.topic(name) for name in producers if self._spec.topic(name) in self._topics]
        for topic in topics:
            self._recorder.undelivered.subscribe(topic, group)
            data = {"action": "subscribe", "name": group, "topic": topic, "result": None}
            self._recorder.record(PROCESS, OperationKind.ADMIN, time.monotonic_ns(), Outcome.OK, data)
        return topics
