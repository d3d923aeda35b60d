"""Applies committed entries to the state machine, in order, and wakes callers that wait for an index.

Owns the applied index.  Entries are read in batches of bounded size, so a long catch-up after a restart keeps memory flat.  A damaged
entry is repaired from a peer first; until a peer can provide it, applying waits.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dledger.core.effects import RoleChanged
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.snapshot.plan import StateSnapshot
from dledger_wire.check import require
from dledger_wire.errors import DledgerError, StorageDamagedError

BATCH_BYTES = 8 << 20
RETRY_S = 1.0

_logger = logging.getLogger(__name__)


class StateMachine(Protocol):
    """What is replicated: it gets every committed entry (no-op and configuration entries too), in order, each once per start."""

    @property
    def applied_index(self) -> int:
        """Entries up to this index need not be applied again after a restart."""
        ...

    async def apply(self, entries: Sequence[RawEntry]) -> None: ...
    @property
    def applies_now(self) -> bool:
        """Whether ``apply_now`` has nothing to wait for."""
        ...

    def apply_now(self, entries: Sequence[RawEntry]) -> None:
        """The same as ``apply``, done when this returns.  Only while it ``applies_now``."""
        ...

    def role_changed(self, event: RoleChanged) -> None: ...
    def capture_state(self) -> Awaitable[StateSnapshot]:
        """The state as it is at this call, as files of the data folder from which a restart makes it again together with the log."""
        ...

    async def suspend(self) -> None:
        """Release log and files: both are being replaced.  ``log_opened`` of the node follows with the new log, then ``apply``."""
        ...


class Applier:
    """Runs behind the commit index.  ``opened`` is awaited first: until then nothing new counts as applied.

    ``on_applied`` gets entries that were applied, ``on_committed`` those that are applied before the callback ends in which it is called.
    """

    def __init__(
        self,
        log: Log,
        machine: StateMachine,
        on_committed: Callable[[Sequence[RawEntry]], None],
        on_applied: Callable[[Sequence[RawEntry]], None],
        repair: Callable[[StorageDamagedError], Awaitable[bool]],
        opened: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._opened = opened
        self.applied = machine.applied_index
        self._log = log
        self._machine = machine
        self._on_committed, self._on_applied = on_committed, on_applied
        self._repair = repair
        self.commit_index = self.applied
        self._wake = asyncio.Event()
        self._is_idle = False  # ``run`` waits for something to apply
        self._waiters: list[tuple[int, int, asyncio.Future[int]]] = []
        self._numbers = 0
        self._reported = ""  # the damage that applying waits for, as it was logged

    def commit_to(self, index: int) -> None:
        """Entries up to ``index`` are committed; ``apply_soon`` follows."""
        self.commit_index = max(self.commit_index, index)

    def apply_soon(self, *, at_once: bool) -> None:
        """Something that is committed is not applied yet; ``at_once``: it is when this returns, if nothing has to be read or waited for."""
        if not self._is_idle:
            return
        if not at_once or not self._apply_cached() or self.applied < self.commit_index:
            self._wake.set()

    def _apply_cached(self) -> bool:
        entries = self._log.cached(self.applied + 1, BATCH_BYTES, min(self.commit_index, self._log.last.index))
        if not entries or not self._machine.applies_now:
            return False
        self._is_idle = False
        try:
            self._on_committed(entries)
            self._machine.apply_now(entries)
            self._note(entries)
        finally:
            self._is_idle = True
        return True

    def wait_for(self, index: int) -> asyncio.Future[int]:
        """Resolves with ``index`` once it is applied."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if index <= self.applied:
            future.set_result(index)
        else:
            self._numbers += 1
            heapq.heappush(self._waiters, (index, self._numbers, future))
        return future

    def fail_waiters(self, make: Callable[[], Exception]) -> None:
        waiters, self._waiters = self._waiters, []
        for _index, _number, future in waiters:
            if not future.done():
                future.set_exception(make())

    def take_over(self, before: Applier) -> None:
        """Take over the waiters of an applier that has stopped."""
        self._waiters, before._waiters, self._numbers = before._waiters, [], before._numbers

    async def run(self) -> None:
        if self._opened is not None:
            await self._opened()
            self.applied = self._machine.applied_index
            self._wake_waiters()
        while True:
            while self.applied < self.commit_index:
                entries = await self._read()
                require(entries and entries[0].index == self.applied + 1, "entry %d to apply is not in the log", self.applied + 1)
                await self._machine.apply(entries)
                self._note(entries)
            self._wake.clear()
            self._is_idle = True
            try:
                await self._wake.wait()
            finally:
                self._is_idle = False

    def _note(self, entries: Sequence[RawEntry]) -> None:
        self.applied = entries[-1].index
        self._on_applied(entries)
        self._wake_waiters()

    async def _read(self) -> list[RawEntry]:
        while True:
            try:
                return await self._log.read(self.applied + 1, BATCH_BYTES, self.commit_index)
            except StorageDamagedError as damage:
                if "index" not in damage.details:
                    raise
                await self._repair_entry(damage)

    async def _repair_entry(self, damage: StorageDamagedError) -> None:
        reason = f"{damage.message}: no peer could provide its bytes"
        try:
            whole = await self._repair(damage)
        except DledgerError as error:
            whole, reason = False, error.message
        if whole:
            return
        if self._reported != damage.message:  # it is tried again every second
            self._reported = damage.message
            _logger.warning("cannot apply, waiting for an intact entry: %s", reason, extra={"event": "apply_waits"})
        await asyncio.sleep(RETRY_S)

    def _wake_waiters(self) -> None:
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.applied:
            index, _number, future = heapq.heappop(waiters)
            if not future.done():
                future.set_result(index)
