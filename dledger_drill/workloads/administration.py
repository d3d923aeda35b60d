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


async def noted(recorder: Recorder, process: str, action: str, name: str, call: Callable[[], Awaitable[object]]) -> DledgerError | None:
    """Do something as an administrator and record it, with the number that it returns, if any; the error that it ended with."""
    of_round, invoked_ns, outcome, failed = recorder.round, time.monotonic_ns(), Outcome.OK, None
    data: dict[str, Any] = {"action": action, "name": name, "result": None}
    try:
        answer = await call()
        data["result"] = answer if isinstance(answer, int) else None
    except DledgerError as error:
        data["result"], outcome, failed = error.code, outcome_of(error), error
    recorder.record(process, OperationKind.ADMIN, invoked_ns, outcome, data, of_round=of_round)
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
        """A topic may be missing or half made after a fault; the outcome says so."""
        topic = f"{self.spec.topic('admin')}-{self._number}"
        queues = len(self.spec.groups)
        steps: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("create_topic", lambda: admin.create_topic(topic, queues=queues, if_not_exists=True)),
            ("alter_topic", lambda: admin.update_topic(topic, queues=2 * queues)),
            ("describe_topic", lambda: self._queues_of(admin, topic)),
            ("delete_topic", lambda: admin.delete_topic(topic)),
        ]
        action, call = steps[self._step]
        await noted(self.recorder, self.process, action, topic, call)
        self._step = (self._step + 1) % len(steps)
        if not self._step:
            self._number += 1

    async def _queues_of(self, admin: Admin, topic: str) -> int:
        return sum(part.read_queues for part in await admin.describe_topic(topic))
