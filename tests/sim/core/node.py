"""One core with its data folder, its clock and its state machine: what survives a crash, what waits for a sync, what was applied.

Owns a replica's memory and disk, not the time things take (that is the world's).  The write streams follow the driver's rule: writes
reach the disk in the order returned, none before the hard states returned before it, which have a stream of their own; a ``Send`` with
``after_sync`` waits for every write before it, one with ``after_promise`` for the hard state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dledger.core.config import CoreConfig
from dledger.core.effects import Append, CutTail, Effect, SaveHardState, Send
from dledger.core.events import Event, HardStateStored, LogTrimmed, Stored
from dledger.core.messages import AppendResponse
from dledger.core.raft import Raft
from dledger.core.types import EntryId, EntryKind, EntryMeta, Membership, NodeId, Role
from tests.sim.core.machine import FIRST_SIZE, Machine, Operation
from tests.unit.core.harness import Disk


@dataclass
class Folder(Disk):
    """A data folder."""

    state: list[EntryMeta] = field(default_factory=list)  # the entries of which the state machine's snapshot is all that is left
    lineage: str = ""  # the recovery that its log comes from


class CoreNode:
    """A replica.  ``up`` is false between a crash and the restart; ``starts`` numbers its runs."""

    def __init__(self, name: NodeId, first: Membership, config: CoreConfig, seed: str) -> None:
        self.name = name
        self.first = first  # whom an empty folder takes for the members
        self.store = f"{name}/1"  # the folder in place, and all that were ever made under this name
        self.disk = Folder(membership=first)
        self.folders = {self.store: self.disk}
        self._made = 1  # folders
        self.config = config
        self.seed = seed
        self.up = False
        self.starts = 0
        # Faults that are on
        self.paused = False
        self.full = False
        self.sync_fails = False
        self.slow_ms = 0.0
        self.sync_factor = 1.0
        # The clock: local time is base + (world's - since) * rate
        self.rate = 1.0
        self.base_ms = 0.0
        self.since_ms = 0.0
        self.on_platter: list[EntryMeta] = []  # what a loss of power leaves for certain

    # Clock

    def local_ms(self, now_ms: float) -> int:
        return int(self.base_ms + (now_ms - self.since_ms) * self.rate)

    def world_ms(self, local_ms: int) -> float:
        return self.since_ms + (local_ms - self.base_ms) / self.rate + 0.001

    def set_clock(self, now_ms: float, *, rate: float, leap_ms: float = 0.0) -> None:
        self.base_ms += (now_ms - self.since_ms) * self.rate + leap_ms
        self.since_ms = now_ms
        self.rate = rate

    # Lifecycle

    def boot(self, now_ms: float, operations: Sequence[Operation]) -> None:
        """Start from the disk; everything in memory is new."""
        self.up, self.paused = True, False
        self.starts += 1
        self.pending: list[tuple[int, Effect]] = []  # writes not on disk yet, in order; each with the number of the promise before it
        self.promises: list[SaveHardState] = []  # the same of the hard state
        self.flushing = self.promising = False
        self.told_full = False
        self.naming = False
        self.held: list[tuple[int, int, Send]] = []  # until a write and a promise are on the disk
        self.written = self.synced = self.promised = self.kept = 0
        self.inbox: list[tuple[object, ...]] = []  # what fell due while it was paused
        self.heard: dict[NodeId, float] = {}  # when it last heard from whom, in the world's time
        self.steady_since_ms = now_ms  # since when nothing happened to its time, its role or its group
        self.timer_local_ms: int | None = None
        self.timer_number = 0
        self.waiting: dict[int, tuple[int, Operation]] = {}  # index -> (term, the operation whose client waits here)
        self.reads: dict[int, Operation] = {}  # token -> operation
        self.ready_reads: list[tuple[int, Operation]] = []  # (read index, operation)
        self.log = Disk(self.disk.hard_state, self.disk.before, list(self.disk.entries), self.disk.membership, self.disk.commit)
        draws = random.Random(f"{self.seed}/{self.name}/{self.starts}")
        self.core = Raft(
            self.config, self.name, self.disk.membership, self.disk.saved(), draws, self, store=self.store, now_ms=self.local_ms(now_ms)
        )
        self.applied = self.commit_sent = self.disk.commit
        self.applying = False
        self._rebuild(operations)

    def crash(self, keep_writes: int, keep_promises: int, snapshot: int) -> None:
        """Of what is not synced the first writes and promises survive; the state machine's snapshot lies at ``snapshot``."""
        self.keep(keep_promises)
        self.sync(min(keep_writes, self.may_sync))
        self.up = False
        self.disk.commit = min(max(snapshot, self.disk.before.index), self.disk.last.index)

    def put(self, store: str) -> None:
        """Put the folder ``store`` in place while the node is down: an old one, or an empty one."""
        self.store, self.disk = store, self.folders[store]
        self.on_platter = list(self.disk.entries)

    def new_store(self, folder: Folder | None = None) -> str:
        """A folder that was not there before, empty unless it is given; its name."""
        self._made += 1
        store = f"{self.name}/{self._made}"
        self.folders[store] = folder or Folder(membership=self.first)
        return store

    @property
    def syncs(self) -> bool:
        """SYNC_FLUSH."""
        return not self.config.loses_unsynced

    def set_flush(self, *, sync: bool) -> None:
        """While it is down.  A start under SYNC_FLUSH syncs what it finds."""
        self.config = replace(self.config, loses_unsynced=not sync)
        if sync:
            self.on_platter = list(self.disk.entries)

    def lose_unsynced(self, draw: random.Random) -> None:
        """Power lost under ASYNC_FLUSH: of what was acknowledged and not synced a part survives, the oldest first."""
        entries = self.disk.entries
        kept = 0
        for ours, safe in zip(entries, self.on_platter, strict=False):
            if ours != safe:
                break
            kept += 1
        del entries[draw.randint(kept, len(entries)) :]
        self.on_platter = list(entries)
        self.disk.commit = min(self.disk.commit, self.disk.before.index + kept)  # snapshots wait for the log
        self.disk.suspect = True

    def metas(self, first_index: int, last_index: int) -> Sequence[EntryMeta]:
        """The core's view of old entries."""
        before = self.log.before.index
        return self.log.entries[first_index - before - 1 : last_index - before] if first_index > before else ()

    # The log's head

    def trim(self, index: int) -> LogTrimmed | None:
        """Delete entries up to ``index``, or as many as a snapshot of the state machine replaces and every sync has reached."""
        disk, before = self.disk, self.disk.before.index
        index = min(index, self.applied, before + len(self.on_platter), disk.last.index)
        if index <= before:
            return None
        last = self.log.meta(index)
        if disk.meta(index) != last or self.on_platter[index - before - 1] != last:
            return None
        at = EntryId(index, last.term)
        disk.state += disk.entries[: index - before]
        del self.on_platter[: index - before]
        for log in (self.log, disk):
            log.trim(at)
        disk.commit = max(disk.commit, index)
        return LogTrimmed(index + 1, at)

    def replace_log(self, copied: Folder, operations: Sequence[Operation]) -> None:
        """A copy of another replica's takes the place of log and state; nothing waits to be written."""
        disk = self.disk
        disk.before, disk.membership, disk.state, disk.commit = copied.before, copied.membership, list(copied.state), copied.commit
        disk.entries, self.on_platter = list(copied.entries), list(copied.entries)
        self.log = Disk(disk.hard_state, disk.before, list(disk.entries), disk.membership, disk.commit)
        self.waiting.clear()  # whether those were carried out is not known
        self.applied = self.commit_sent = disk.commit
        self._rebuild(operations)

    def copy(self) -> Folder:
        """What another replica is given: all that is applied here."""
        log, disk = self.log, self.disk
        entries = log.entries[: self.applied - log.before.index]
        return Folder(disk.hard_state, log.before, entries, log.membership, self.applied, state=list(disk.state))

    # Looking

    @property
    def role(self) -> Role:
        return self.core.role

    @property
    def commit(self) -> int:
        return self.core.commit

    @property
    def lineage(self) -> str:
        return self.disk.lineage

    @property
    def is_blank(self) -> bool:
        """Whether its log has never had an entry, so that it may become a replica of any group."""
        return not self.log.last.index

    # The write stream

    def write(self, effect: SaveHardState | Append | CutTail) -> None:
        if isinstance(effect, SaveHardState):
            self.promises.append(effect)
            self.promised += 1
        else:
            self.pending.append((self.promised, effect))
            self.written += 1
        self.log.write(effect)

    def hold(self, send: Send) -> bool:
        """Keep a message back until what it waits for is on the disk; False when nothing holds it."""
        written, promised = self.written if send.after_sync else 0, self.promised if send.after_sync or send.after_promise else 0
        if written <= self.synced and promised <= self.kept:
            return False
        self.held.append((written, promised, send))
        return True

    @property
    def may_sync(self) -> int:
        """How many of the oldest writes have the promises before them on the disk."""
        return next((at for at, (number, _effect) in enumerate(self.pending) if number > self.kept), len(self.pending))

    def keep(self, count: int) -> list[Event]:
        """The oldest ``count`` promises reach the disk; returns the completion."""
        done = self.promises[:count]
        del self.promises[:count]
        for effect in done:
            self.disk.write(effect)
        self.kept += len(done)
        return [HardStateStored(self.disk.hard_state.term, self.disk.hard_state.vote)] if done else []

    def sync(self, count: int) -> list[Event]:
        """The oldest ``count`` writes reach the disk; returns their completions, which nobody has heard of yet."""
        done = [effect for _number, effect in self.pending[:count]]
        del self.pending[:count]
        for effect in done:
            self.disk.write(effect)
        self.synced += len(done)
        if self.syncs or any(map(self.counts_only_synced, done)):
            self.on_platter = list(self.disk.entries)
        return [Stored(self.disk.last)] if done else []

    @staticmethod
    def counts_only_synced(effect: Effect) -> bool:
        """Under ASYNC_FLUSH, too."""
        return isinstance(effect, Append) and any(meta.kind is EntryKind.CONFIG for meta in effect.entries)

    def released(self) -> list[Send]:
        """Messages whose writes are on disk by now.  What an older term acknowledged is not sent any more, as in the driver."""
        free: list[Send] = []
        held, self.held = self.held, []
        for written, promised, send in held:
            if written <= self.synced and promised <= self.kept:
                free.append(send)
            else:
                self.held.append((written, promised, send))
        term = self.core.term
        return [send for send in free if not isinstance(send.message, AppendResponse) or send.message.term >= term]

    # The state machine

    def apply_upto(self, index: int, operations: Sequence[Operation]) -> list[tuple[Operation, tuple[bool, Any] | None]]:
        """Apply committed entries; returns what became of the operations whose clients wait here, None for one that is gone for good."""
        answers: list[tuple[Operation, tuple[bool, Any] | None]] = []
        for at in range(self.applied + 1, index + 1):
            meta = self.log.meta(at)
            result = self._apply(meta, operations)
            waiting = self.waiting.pop(at, None)
            if waiting is not None:
                term, operation = waiting
                answers.append((operation, result if term == meta.term else None))
        self.applied = max(self.applied, index)
        return answers

    def _rebuild(self, operations: Sequence[Operation]) -> None:
        """The state machine as its snapshot has it."""
        self.machine = Machine()
        for meta in (*self.disk.state, *self.disk.entries[: self.applied - self.disk.before.index]):
            self._apply(meta, operations)

    def _apply(self, meta: EntryMeta, operations: Sequence[Operation]) -> tuple[bool, Any] | None:
        if meta.kind is not EntryKind.NORMAL:
            return None
        return self.machine.apply(operations[meta.size_bytes - FIRST_SIZE])
