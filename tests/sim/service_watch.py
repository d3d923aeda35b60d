"""That services of the master only are at work in one term at a time, on one node: watched where their tasks run, not where they say so.

Owns the record of which term's services ran last.  Every service that a node registers is wrapped, so that each step of each of its tasks
is seen, and whatever a task, or another one that it started, proposes to the log.  Three rules:

    nothing of an older term takes a step or proposes anything once something of a newer term has
    when a newer term's first service starts, no task of an older one is left that is not cancelled, unless its process stands still
    what a node says of itself (``services_term``) agrees: one term, one node

A process that stood still cannot know it before it has run for a moment: what it does in the very instant in which it goes on is held
against nobody.  It is why services propose through the log, which knows better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from broker.context import MasterService
from broker.node import BrokerNode
from dledger.core.causes import Cause
from dledger.node import RaftNode
from dledger_wire.tasks import BackgroundTasks
from tests.sim.loop import Process, SimLoop


@dataclass(frozen=True, slots=True)
class _Run:
    """The services of one term on one node."""

    node_id: str
    term: int
    process: Process


_of_service: ContextVar[_Run | None] = ContextVar("master-only service", default=None)


class ServiceWatch:
    """``violated`` is told in words.  ``running``: nodes whose processes live."""

    def __init__(self, loop: SimLoop, violated: Callable[[str], None]) -> None:
        self.running: Callable[[], Iterable[BrokerNode]] = lambda: ()
        self.steps = 0  # of tasks of services
        self._loop = loop
        self._violated = violated
        self._told: dict[int, str] = {}  # terms that nodes said they run services of, and which
        self._newest: _Run | None = None  # whose services took a step in the newest term so far
        self._tasks: list[tuple[_Run, asyncio.Task[None]]] = []

    def watch(self, node_id: str, node: BrokerNode) -> None:
        """Look at every service that ``node`` registers from now on."""
        roles = node.roles
        register, note = roles.register, roles._step

        def watched_register(service: MasterService) -> None:
            self._watch_service(node_id, service)
            register(service)

        def watched_note(text: str) -> None:
            note(text)
            self.check_told()

        roles.register, roles._step = watched_register, watched_note  # type: ignore[method-assign]

    def watch_proposals(self, raft: RaftNode) -> None:
        propose, transfer = raft.propose, raft.transfer

        def watched_propose(payload: Any) -> Any:
            self._proposes()
            return propose(payload)

        def watched_transfer(target: str | None, timeout_s: float, cause: Cause = Cause.TRANSFER) -> Any:
            self._proposes()
            return transfer(target, timeout_s, cause)

        raft.propose, raft.transfer = watched_propose, watched_transfer  # type: ignore[method-assign]

    def _proposes(self) -> None:
        run = _of_service.get()
        if run is not None:
            self._acts(run, "proposes")

    def _watch_service(self, node_id: str, service: MasterService) -> None:
        start = service.start

        async def watched_start(term: int, tasks: BackgroundTasks) -> None:
            run = _Run(node_id, term, self._loop.current())
            self._watch_tasks(run, service.name, tasks)
            self._acts(run, f"starts {service.name}")
            await start(term, tasks)

        service.start = watched_start  # type: ignore[method-assign]

    def _watch_tasks(self, run: _Run, name: str, tasks: BackgroundTasks) -> None:
        spawn = tasks.spawn

        def watched_spawn(work: Coroutine[Any, Any, None], task_name: str) -> asyncio.Task[None]:
            token = _of_service.set(run)
            try:
                task = spawn(_Steps(work, lambda: self._acts(run, f"runs {name}.{task_name}")), task_name)
            finally:
                _of_service.reset(token)
            self._tasks.append((run, task))
            return task

        tasks.spawn = watched_spawn  # type: ignore[assignment, method-assign]

    def _acts(self, run: _Run, what: str) -> None:
        self.steps += 1
        newest = self._newest
        if newest is run:
            return
        if newest is not None and newest.term >= run.term and (newest.node_id, newest.term) != (run.node_id, run.term):
            if run.process.resumed_s != self._loop.now_s:
                self._violated(f"master services: {run.node_id} {what} of term {run.term}, {newest.node_id} had begun with {newest.term}")
            return
        self._check_left(run)
        self._newest = run

    def _check_left(self, newer: _Run) -> None:
        """A newer term begins: nothing of an older one may be about to do anything."""
        self._tasks = [(run, task) for run, task in self._tasks if run.process.alive and not task.done()]
        for run, task in self._tasks:
            if run.term < newer.term and not run.process.paused and not task.cancelling() and run.process.resumed_s != self._loop.now_s:
                self._violated(f"master services: {newer.node_id} begins in term {newer.term}, {run.node_id} still has {task.get_name()}")

    def check_told(self) -> None:
        """One term at a time, on one node, also while nodes are cut off or stand still."""
        found = [(node.roles.services_term, node.settings.node.id) for node in self.running() if node.roles.services_term]
        if len(found) > 1:
            self._violated(f"master services: {' and '.join(f'{node_id} runs those of term {term}' for term, node_id in found)}")
        for term, node_id in found:
            first = self._told.setdefault(term, node_id)
            if first != node_id or term < max(self._told):
                self._violated(f"master services: {node_id} runs those of term {term}, {first} did; the newest were of {max(self._told)}")


class _Steps(Coroutine[Any, Any, None]):
    """A coroutine whose steps are told before they are taken; being cancelled is not one."""

    def __init__(self, work: Coroutine[Any, Any, None], step: Callable[[], None]) -> None:
        self._work = work
        self._step = step

    def send(self, value: Any) -> Any:
        self._step()
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()
