"""Topics: those of the workloads, and the workload that creates, changes, looks at and deletes topics of its own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from dledger_client.aio import Admin
from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.recorder import Recorder, outcome_of
from dledger_wire.errors import DledgerError


async def noted(
    recorder: Recorder,
    process: str,
    action: str,
    name: str,
    call: Callable[[], Awaitable[Any]],
    describe: Callable[[Any], Any] = lambda _: None,
) -> DledgerError | None:
    """Do something as an administrator and record it; the error that it ended with."""
    of_round, invoked_ns = recorder.round, time.monotonic_ns()
    result, outcome, failed = None, Outcome.OK, None
    try:
        result = describe(await call())
    except DledgerError as error:
        result, outcome, failed = error.code, outcome_of(error), error
    recorder.record(
        process, OperationKind.ADMIN, invoked_ns, outcome, {"action": action, "name": name, "result": result}, of_round=of_round
    )
    return failed


class Administration(Workload):
    """Takes one topic after the other through its life."""

    def __init__(self, around: Surroundings, process: str) -> None:
        super().__init__(around)
        self.process = process
        self._number = self.spec.first_number
        self._step = 0

    async def run(self) -> None:
        async with Admin(self.spec.bootstrap, **self.spec.security) as admin:
            await self.paced(self.spec.rate("admin"), lambda: self._one(admin))
            while self._step:  # the topic at hand goes through the rest of its life
                await self._one(admin)

    async def _one(self, admin: Admin) -> None:
        topic = f"{self.spec.topic('admin')}-{self._number}"
        groups = len(self.spec.groups)
        if self._step == 0:
            await self._do("create_topic", topic, lambda: admin.create_topic(topic, queues=groups, if_not_exists=True))
        elif self._step == 1:
            await self._do("alter_topic", topic, lambda: admin.update_topic(topic, queues=2 * groups))
        elif self._step == 2:
            await self._do(
                "describe_topic", topic, lambda: admin.describe_topic(topic), lambda parts: sum(part.read_queues for part in parts)
            )
        else:
            await self._do("delete_topic", topic, lambda: admin.delete_topic(topic))
            self._number += 1
        self._step = (self._step + 1) % 4

    async def _do(
        self, action: str, topic: str, call: Callable[[], Awaitable[Any]], describe: Callable[[Any], Any] = lambda _: None
    ) -> None:
        """A topic may be missing or half made after a fault; the outcome says so."""
        await noted(self.recorder, self.process, action, topic, call, describe)
