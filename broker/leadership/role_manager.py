"""The role state machine: when the services that only a master may run are started and stopped.

    REPLICA --leader of T--> CATCHING_UP --own tail applied, offsets restored--> WAITING --lease of T begins--> STARTING --> MASTER(T)
       ^                          |                                                 |  ^                            |            |
       |                          |                                                 |  +-- lease lapsed, own tail --+------------+
       |                          |                                                 |      applied again
       +------ STOPPING <---------+------- leadership lost, or a newer term --------+----------------------------------+

Owns that state machine and the registry of master-only services.  Clients are served from WAITING on: their requests go through the log,
which has only one leader.  Services wait for the lease (``lease.py``), so that services of two terms never run at the same time on any
nodes.  Invariants: ``master_term`` and ``services_term`` are 0 from the very step in which leadership is lost, and in that step every task
of every service is cancelled, before anything is awaited; services of term T are all stopped before one of a later term starts; one
handler runs at a time, and a promotion is cancelled by any newer role change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker.context import MasterService, RoleState
from broker.leadership.lease import ServiceLease
from dledger.core.effects import RoleChanged
from dledger.core.types import Role
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

KEPT_STEPS = 64


class RoleTarget(Protocol):
    """What the state machine needs from the rest of the node."""

    async def wait_tail_applied(self, term: int) -> None:
        """Return once everything that the leader's log has, or was proposed to it, is committed and applied."""

    def become_master(self, term: int) -> None:
        """Restore queue offsets and accept batches in that term."""

    def resign(self) -> None:
        """Refuse batches from now on."""

    async def confirm_leader(self) -> None:
        """Return once a majority has confirmed, after the call, that this node leads."""

    def fail(self, error: BaseException) -> None:
        """A handler broke, which is a bug: the node stops."""


@dataclass(slots=True)
class _Running:
    service: MasterService
    tasks: BackgroundTasks


class RoleManager:
    """The role of one replica.  Implements ``broker.context.Roles``.

    ``role_changed`` is called by the log's driver, everything else by the node.
    """

    def __init__(self, clock: Clock, target: RoleTarget, log: Callable[[str], None], *, lease_ms: int) -> None:
        self.state = RoleState.REPLICA
        self.master_term = 0
        self.steps: deque[str] = deque(maxlen=KEPT_STEPS)
        self._clock = clock
        self._target = target
        self._log = log
        self._lease = ServiceLease(clock, target.confirm_leader, lease_ms)
        self._services: list[MasterService] = []
        self._running: list[_Running] = []
        self._running_term = 0
        self._target_term = 0  # 0: not leader
        self._changed = asyncio.Event()
        self._promotion: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None

    @property
    def services_term(self) -> int:
        """The term whose services run here now; 0 when none may."""
        return self._running_term if self._lease.holds else 0

    def register(self, service: MasterService) -> None:
        """Run ``service`` on the master only.  Services start in the order registered and stop in reverse."""
        self._services.append(service)

    def start(self) -> None:
        self._worker = asyncio.get_running_loop().create_task(self._work(), name="role changes")

    async def stop(self) -> None:
        """Stop every master service, then the handler itself.  Idempotent."""
        self._set_target(0, "the node is stopping")
        worker, self._worker = self._worker, None
        if worker is not None:
            if self._promotion is not None:
                self._promotion.cancel()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        await self._stop_services()
        self._enter(RoleState.REPLICA)

    def role_changed(self, event: RoleChanged) -> None:
        """Take a role change of Raft.  Losing leadership takes effect before this returns."""
        if event.role is Role.LEADER:
            self._set_target(event.term, f"leader of term {event.term}")
        else:
            self._set_target(0, f"{event.role.value} in term {event.term}, leader {event.leader or 'unknown'}")

    def _set_target(self, term: int, why: str) -> None:
        if term == self._target_term:
            return
        self._target_term = term
        self._step(why)
        if self.master_term:
            self.master_term = 0
            self._target.resign()
        self._cancel_services()
        if term:
            self._lease.elected()
        if self._promotion is not None:
            self._promotion.cancel()
        self._changed.set()

    async def _work(self) -> None:
        handled = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            while handled != self._target_term:
                handled = self._target_term
                try:
                    await self._handle(handled)
                except Exception as error:  # noqa: BLE001 - supervisor: whatever breaks a role change stops the node
                    self._target.fail(error)
                    return

    async def _handle(self, term: int) -> None:
        """Run the services in ``term`` (0: stop them).  Stopping always completes; everything else is cancelled by a newer role change."""
        await self._stop_services()
        if term == 0:
            self._enter(RoleState.REPLICA)
            return
        if term != self._target_term:  # it changed while the services were stopping
            return
        self._promotion = asyncio.get_running_loop().create_task(self._serve(term), name=f"master of term {term}")
        try:
            await asyncio.wait([self._promotion])
            if not self._promotion.cancelled():
                await self._promotion
        finally:
            self._promotion = None

    async def _serve(self, term: int) -> None:
        """Become master of ``term``, and run the services while the lease lasts; until cancelled."""
        await self._promote(term)
        while True:
            self._enter(RoleState.WAITING, term)
            await self._lease.begin()
            await self._start_services(term)
            await self._lease.keep()
            self._cancel_services()
            self._step(f"term {term}: no majority confirmed it in time")
            await self._stop_services()
            await self._tail_applied(term)  # the services' last proposals may still be in flight, and they restart from the applied state

    async def _promote(self, term: int) -> None:
        """Apply the log's tail and start to serve clients."""
        try:
            self._enter(RoleState.CATCHING_UP, term)
            await self._tail_applied(term)
        except asyncio.CancelledError:
            self._step(f"term {term}: cancelled")
            raise
        self._target.become_master(term)
        self.master_term = term
        self._step(f"term {term}: tail applied, queue offsets restored")

    async def _tail_applied(self, term: int) -> None:
        """Wait until the tail is applied; errors (a read barrier that timed out) are retried while the term lasts."""
        while True:
            try:
                await self._target.wait_tail_applied(term)
            except DledgerError as error:
                self._step(f"term {term}: tail not applied yet: {error}")
                await asyncio.sleep(0.05)
            else:
                return

    # Services

    async def _start_services(self, term: int) -> None:
        self._enter(RoleState.STARTING, term)
        self._running_term = term
        for service in self._services:
            tasks = BackgroundTasks(f"{service.name} in term {term}", self._target.fail)
            self._running.append(_Running(service, tasks))  # before it starts: a half-started one is stopped too
            await service.start(term, tasks)
            self._step(f"term {term}: {service.name} on")
        self._enter(RoleState.MASTER, term)

    def _cancel_services(self) -> None:
        """Mark the services as stopped and cancel every task of theirs, without waiting."""
        self._running_term = 0
        self._lease.end()
        for running in reversed(self._running):
            running.tasks.cancel()

    async def _stop_services(self) -> None:
        if self._running:
            self._enter(RoleState.STOPPING)
        while self._running:
            running = self._running[-1]
            await running.tasks.stop()
            await running.service.stop()
            self._running.pop()
            self._step(f"{running.service.name} off")

    def _enter(self, state: RoleState, term: int = 0) -> None:
        if state is not self.state or term:
            self.state = state
            self._step(f"term {term}: {state.value}" if term else state.value)

    def _step(self, text: str) -> None:
        self.steps.append(f"{self._clock.wall_ms()} {text}")
        self._log(text)
