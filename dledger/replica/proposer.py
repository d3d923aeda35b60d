"""Proposing entries: when waiting payloads become an entry of the log, and which error their callers get.

Owns the offers to the core: payloads wait until an entry is due, go into it in order, and resolve when it is applied.  ``Proposals`` has
the queue and its arithmetic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dledger.core.effects import Effect, Refused, RefusedReason
from dledger.core.events import ChangeRequested, Event, Propose
from dledger.core.types import EntryId, EntryKind, EntryMeta, NodeId, Role
from dledger.log.log import Log
from dledger.measures import RaftMeasures
from dledger.membership.configuration import Configuration
from dledger.replica.proposals import Outcome, Payload, Proposals
from dledger.replica.refusals import refusal
from dledger.replica.room import RESERVE_BYTES, Room, Window
from dledger.runtime.env import Buffer
from dledger.settings import RaftSettings
from dledger_wire.check import InvariantBrokenError
from dledger_wire.errors import DledgerError, NotLeaderError, ReadOnlyError
from dledger_wire.layout import ENTRY_HEADER_SIZE


class ProposerOwner(Protocol):
    """What the proposer asks of its replica."""

    running: bool
    role: Role
    leader: NodeId | None
    commit_index: int
    log: Log

    @property
    def is_stepping(self) -> bool:
        """Whether the core is at work: then nothing can be offered to it."""
        ...

    def step(self, event: Event) -> list[Effect]: ...
    def not_leader(self) -> NotLeaderError: ...


class Proposer:
    """The proposals of one replica.  While it is ``held`` no payload goes into the log."""

    def __init__(self, owner: ProposerOwner, settings: RaftSettings, measures: RaftMeasures) -> None:
        self._measures = measures
        self._owner = owner
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.window = Window(settings.core.max_uncommitted_bytes)
        self.room = Room(self._has_room_beside, min(RESERVE_BYTES, settings.core.max_uncommitted_bytes // 8))
        self.proposals = Proposals(
            join_bytes=settings.join_bytes,
            entry_bytes=min(settings.join_bytes, settings.core.max_append_bytes, settings.log.max_entry_bytes) - ENTRY_HEADER_SIZE,
            payload_bytes=min(settings.max_payload_bytes, settings.log.max_entry_bytes - ENTRY_HEADER_SIZE),
            limit_bytes=settings.max_pending_bytes,
            max_rounds=settings.max_rounds,
            window=self.window,
            measures=measures,
        )
        self.held = False
        self._scheduled = False
        self._progress = asyncio.Event()  # payloads left the queue, or none will
        self._taking = 0  # payloads of the entry being proposed
        self._configuration: Configuration | None = None  # the one being proposed

    def propose(self, payload: Payload) -> asyncio.Future[EntryId]:
        """See ``RaftNode.propose``."""
        future: asyncio.Future[EntryId] = self._loop.create_future()
        try:
            self._add(payload, future, at_commit=False)
        except DledgerError as error:
            future.set_exception(error)
        return future

    def propose_for(self, payload: Payload, outcome: Outcome) -> None:
        """See ``RaftNode.propose_for``."""
        self._add(payload, outcome, at_commit=True)

    def _add(self, payload: Payload, outcome: Outcome, *, at_commit: bool) -> None:
        try:
            if self._owner.role is not Role.LEADER:
                raise self._owner.not_leader()
            self.proposals.add(payload, outcome, at_commit=at_commit)
        except DledgerError:
            self._measures.proposals["refused"] += 1
            raise
        if self._scheduled or self._is_in_flight or self._owner.is_stepping:
            self.schedule()
        else:
            self._offer()  # nothing is to be gained by waiting for others to join

    def _has_room_beside(self, granted_bytes: int) -> bool:
        """Whether more may be proposed beside ``granted_bytes``; always on a node that refuses it."""
        owner = self._owner
        if not owner.running or owner.role is not Role.LEADER:
            return True
        under_way = self.proposals.bytes_under_way + granted_bytes
        return under_way < self.window.size_bytes and self.proposals.pending_bytes + granted_bytes <= self._settings.max_pending_bytes // 2

    async def drain(self) -> None:
        """Wait until every payload accepted before this call is in the log or has failed."""
        accepted = self.proposals.accepted
        while self.proposals.left < accepted:
            self._progress.clear()
            await self._progress.wait()

    def fail_pending(self) -> None:
        """Fail what is not in the log: this node does not lead."""
        self.proposals.fail_pending(self._owner.not_leader)
        self._progress.set()
        self.room.grant()

    def stop(self, reason: str) -> None:
        """Fail everything that waits."""
        self.proposals.fail_pending(lambda: NotLeaderError(f"not stored: {reason}"))
        self._progress.set()
        self.proposals.fail_rounds(reason)
        self.room.grant()

    # Offers to the core

    @property
    def _is_in_flight(self) -> bool:
        """Whether an entry is on its way to being committed."""
        return self._owner.log.last.index > self._owner.commit_index

    def _is_due(self) -> bool:
        if not self.proposals.pending or self._owner.log.unwritten_bytes > self._settings.max_unwritten_bytes:
            return False  # followers may be faster than this disk; the backlog stays bounded
        return self.proposals.due(in_flight=self._is_in_flight)

    def schedule(self) -> None:
        """Offer what waits at the loop's next iteration, so that everything that arrives in this one joins."""
        if not self._scheduled and self._is_due():
            self._scheduled = True
            self._loop.call_soon(self._offer)

    def _offer(self) -> None:
        self._scheduled = False
        while self._owner.running and not self.held and self._is_due():
            if not self.offer_one():
                break
        self._progress.set()
        if self.room.waiting:
            self.room.grant()

    def offer_one(self) -> bool:
        """Make one entry of what waits; false when nothing waits or the core refuses."""
        self._taking, size_bytes = self.proposals.peek()
        if not self._taking:
            return False
        effects = self._owner.step(Propose(ENTRY_HEADER_SIZE + size_bytes))
        refused = next((effect for effect in effects if isinstance(effect, Refused)), None)
        if refused is not None:
            self._refused(refused)
        return refused is None

    def _refused(self, refused: Refused) -> None:
        if refused.reason in (RefusedReason.TRANSFERRING, RefusedReason.BUSY, RefusedReason.NOT_READY):
            return  # the payloads wait: for the end of the transfer, for a commit
        if refused.reason is RefusedReason.STORAGE:
            self.proposals.fail_pending(lambda: ReadOnlyError("the leader's disk takes no writes; nothing was stored"))
        else:
            self.proposals.fail_pending(self._owner.not_leader)

    def offer_configuration(self, configuration: Configuration, *, moves: bool) -> None:
        """Propose a membership change; ``moves``: a member gets another address.  Raises why it is refused."""
        self._configuration = configuration
        try:
            size_bytes = ENTRY_HEADER_SIZE + len(configuration.encode())
            self.raise_refused(self._owner.step(ChangeRequested(configuration.membership, size_bytes, moves)))
        finally:
            self._configuration = None

    def await_entry(self, entry: EntryId) -> asyncio.Future[EntryId]:
        """Resolves when ``entry``, which was just appended, is committed and applied."""
        future: asyncio.Future[EntryId] = self._loop.create_future()
        self.proposals.add_round(entry, future)
        return future

    def raise_refused(self, effects: Sequence[Effect]) -> None:
        """Raise the typed error for a refusal among ``effects``."""
        for effect in effects:
            if isinstance(effect, Refused):
                if effect.reason is RefusedReason.NOT_LEADER:
                    raise self._owner.not_leader()
                raise refusal(effect.reason)

    def make_body(self, meta: EntryMeta, pos: int, index: int, term: int) -> Sequence[Buffer]:
        """The body of the entry being proposed; its payloads learn their positions now, in log order."""
        if meta.kind is EntryKind.CONFIG:
            if self._configuration is None:
                raise InvariantBrokenError(f"a configuration entry at {index} without a request")
            return (self._configuration.encode(),)
        at = pos + ENTRY_HEADER_SIZE
        buffers: list[Buffer] = []
        for waiting in self.proposals.take(self._taking, EntryId(index, term)):
            payload = waiting.payload
            buffers.extend(payload.seal(at, index, term))
            at += payload.size_bytes
        return buffers
