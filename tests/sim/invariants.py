"""What must hold at every step of every run, whatever clients see: Raft's safety, watched from inside the nodes.

Owns the global record: who led which term, what stood at which (index, term), what was ever committed and applied.  It wraps methods of
a node's core and state machine and changes nothing of what they do.  It knows the safety properties of the paper, not the code's reasons.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from broker.node import BrokerNode
from dledger.core.effects import Append, CommitTo, CutTail, Effect, MessageRefused
from dledger.core.events import Event, HardStateStored, Received, SnapshotInstalled, Stored
from dledger.core.raft import Raft
from dledger.core.types import EntryId, EntryMeta, NodeId, Role
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.node import RaftNode
from tests.sim import coverage
from tests.sim.archive import Archive
from tests.sim.coverage import Coverage
from tests.sim.service_watch import ServiceWatch
from tests.sim.trace import Trace


class SafetyViolationError(AssertionError):
    """Something happened that no history of a correct group contains."""


@dataclass(slots=True)
class _Seen:
    """One run of one node after its last step."""

    node_id: str
    role: Role
    term: int
    vote: NodeId | None
    commit: int
    last_index: int


@dataclass(frozen=True, slots=True)
class Promises:
    """What a folder holds for certain: the newest entry called durable there, term and vote."""

    stored: EntryId | None
    durable: tuple[int, NodeId | None] | None


class Invariants:
    """Election safety, leader append-only, log matching, leader completeness, state machine safety, that nothing goes back, and
    (``service_watch.py``) that master-only services never run in two terms at once.

    ``committed`` and ``applied`` are for ever: no restart, no loss of power takes anything out of them, except from ``forgetful_from`` on,
    where a majority may have lost it with its power under ASYNC_FLUSH: there a leader of a newer term may commit something else.
    ``strangers``: the nodes of other groups; none may ever take part in this one.
    """

    def __init__(self, trace: Trace, archive: Archive | None = None) -> None:
        self._trace = trace
        self.strangers: set[str] = set()
        self.archive = archive
        self.steps = 0
        self.coverage = Coverage()
        self.leaders: dict[int, str] = {}
        self.committed: list[int] = [0]  # index -> term
        self._commit_terms: list[int] = [0]  # index -> the term in which it was committed first
        self._commit_times: list[float] = [0.0]  # index -> when that was
        self.forgetful_from = 1 << 62
        self.voters: frozenset[NodeId] = frozenset()  # of the newest configuration that was committed, once one was
        self._voters_index = 0
        self.applied: dict[int, tuple[int, int, str]] = {}  # index -> (term, checksum, first node that applied it)
        self.violations: list[str] = []
        self.on_cut: list[Callable[[str], None]] = []  # who wants to know that a node cuts its log's tail
        self._entries: dict[tuple[int, int], tuple[int, EntryMeta]] = {}  # (index, term) -> (term of the entry before, what it is)
        self.services = ServiceWatch(trace.loop, self._violated)
        self._stored: dict[str, EntryId] = {}  # the newest entry each node called durable
        self._durable: dict[str, tuple[int, NodeId | None]] = {}  # newest hard state known to be on stable storage

    def watch(self, node_id: str, node: BrokerNode) -> None:
        """Look at everything ``node`` does from now on."""
        if node_id in self.strangers:
            self._violated(f"groups mixed: {node_id} runs as a node of {node.settings.group.name}")
        store = node.store
        apply, apply_now, recover, expire = store.apply, store.apply_now, store.recover, store.expire_with

        async def watched_apply(entries: Sequence[RawEntry]) -> None:
            for entry in entries:
                self._check_applied(node_id, entry)
            await apply(entries)

        def watched_apply_now(entries: Sequence[RawEntry]) -> None:
            for entry in entries:
                self._check_applied(node_id, entry)
            apply_now(entries)

        async def watched_recover(log: Log) -> None:
            await recover(log)
            incompatibility = log.incompatibility

            def watched_misfit(prev: EntryId, entries: Sequence[RawEntry]) -> str | None:
                fault = incompatibility(prev, entries)
                if fault is not None:
                    self._violated(f"{node_id} refused a correct peer's entries: {fault}")
                return fault

            log.incompatibility = watched_misfit  # type: ignore[method-assign]

        def watched_expire(raft: RaftNode, *settings: Any) -> None:
            """What a node calls first when its replica is open: nothing has happened to the core yet."""
            if raft.recovery.torn is not None:
                self.coverage.count(coverage.TORN)
            self.services.watch_proposals(raft)
            self._watch_core(node_id, raft._replica.core)
            expire(raft, *settings)

        store.apply, store.recover = watched_apply, watched_recover  # type: ignore[assignment, method-assign]
        store.apply_now = watched_apply_now  # type: ignore[method-assign]
        store.expire_with = watched_expire  # type: ignore[assignment, method-assign]
        self.services.watch(node_id, node)

    def forget(self, node_id: str) -> Promises:
        """Its folder is gone, and what it promised with it."""
        return Promises(self._stored.pop(node_id, None), self._durable.pop(node_id, None))

    def forget_stored(self, node_id: str) -> None:
        """Its log may have lost what it called stored."""
        self._stored.pop(node_id, None)

    def may_forget(self, since_s: float) -> None:
        """What was committed since then may be gone."""
        self.forgetful_from = min(self.forgetful_from, bisect_left(self._commit_times, since_s))

    def remember(self, node_id: str, promises: Promises) -> None:
        """The folder that had promised this is back."""
        if promises.stored is not None:
            self._stored[node_id] = promises.stored
        if promises.durable is not None:
            self._durable[node_id] = promises.durable

    def of_new_lineage(self, first: int, terms: Sequence[int]) -> Invariants:
        """What goes on holding after an unsafe recovery from a log of these terms from entry ``first`` on; what was before is committed."""

        def is_kept(index: int, term: int) -> bool:
            return index < first or (index < first + len(terms) and terms[index - first] == term)

        kept = next((at for at, term in enumerate(self.committed) if not is_kept(at, term)), len(self.committed))
        applied = {index: found for index, found in self.applied.items() if is_kept(index, found[0])}
        heir = Invariants(self._trace, self.archive.of(applied) if self.archive is not None else None)
        heir.strangers, heir.applied = self.strangers, applied
        heir.committed, heir._commit_terms, heir._commit_times = self.committed[:kept], self._commit_terms[:kept], self._commit_times[:kept]
        heir._entries = {place: found for place, found in self._entries.items() if is_kept(*place)}
        return heir

    def _watch_core(self, node_id: str, core: Raft) -> None:
        term, vote = self._durable.get(node_id, (0, None))
        if core.term < term or (core.term == term and vote is not None and core.vote != vote):
            self._violated(f"hard state: {node_id} started with {(core.term, core.vote)}, had saved {(term, vote)}")
        stored = self._stored.get(node_id)
        if stored is not None and core.term_at(stored.index) != stored.term and stored.index >= core.status().first_index:
            self._violated(f"durable entry lost: {node_id} started with its log ending at {core.last}, had stored {stored}")
        seen = _Seen(node_id, core.role, core.term, core.vote, core.commit, core.last.index)
        step = core.step

        def watched_step(event: Event, now_ms: int) -> list[Effect]:
            if isinstance(event, Received) and event.source in self.strangers:
                self._violated(f"groups mixed: {node_id} takes {type(event.message).__name__} of {event.source}, of another group")
            effects = step(event, now_ms)
            self._after_step(core, seen, event, effects)
            return effects

        core.step = watched_step  # type: ignore[method-assign]

    # After every step

    def _after_step(self, core: Raft, seen: _Seen, event: Event, effects: Sequence[Effect]) -> None:
        self.steps += 1
        self.services.check_told()
        was_leader = seen.role is Role.LEADER and seen.term == core.term
        self.coverage.after_step(core, was_leader, event, effects)
        if isinstance(event, Stored | SnapshotInstalled) or any(isinstance(effect, CutTail) for effect in effects):
            self._stored[seen.node_id] = EntryId(core.durable, core.term_at(core.durable) or 0)
        if isinstance(event, HardStateStored):
            self._durable[seen.node_id] = (event.term, event.vote)
        if not effects:
            return
        core.check_invariants()
        role, term, vote, last_index = core.role, core.term, core.vote, core.last.index
        if term < seen.term or (term == seen.term and seen.vote is not None and vote != seen.vote):
            self._violated(f"hard state: {seen.node_id} went from {(seen.term, seen.vote)} to {(term, vote)}")
        if role is Role.LEADER and not was_leader:
            self._check_leader(seen.node_id, core)
        for effect in effects:
            if isinstance(effect, CommitTo):
                self._check_committed(core, seen, effect.index)
            elif isinstance(effect, MessageRefused):
                self._violated(f"{seen.node_id} refused a correct peer's message: {effect.source}: {effect.reason}")
            elif isinstance(effect, Append):
                self._check_appended(core, seen.node_id, effect)
            elif isinstance(effect, CutTail):
                if was_leader and role is Role.LEADER:
                    self._violated(f"leader append-only: {seen.node_id} cut {effect.from_index} in its term {term}")
                for listener in list(self.on_cut):
                    listener(seen.node_id)
        seen.role, seen.term, seen.vote, seen.last_index = role, term, vote, last_index

    def _check_leader(self, node_id: str, core: Raft) -> None:
        first = self.leaders.setdefault(core.term, node_id)
        if first != node_id:
            self._violated(f"election safety: {first} and {node_id} both lead term {core.term}")
        # Late votes may make a leader of a term that others have left: it need not hold what they committed in a newer one.
        who = f"leader completeness: {node_id}, elected in term {core.term},"
        self._check_holds_committed(who, core, before_term=core.term, upto=self.forgetful_from)

    def _check_holds_committed(self, who: str, core: Raft, *, before_term: int = 1 << 62, upto: int = 1 << 62) -> None:
        for index, term in enumerate(self.committed[:upto]):
            if self._commit_terms[index] >= before_term:
                break
            held = core.term_at(index)
            if index and held != term and (held is not None or index > core.last.index):
                self._violated(f"{who} has term {held} at {index}, term {term} was committed there")

    def _check_committed(self, core: Raft, seen: _Seen, index: int) -> None:
        if index < seen.commit:
            self._violated(f"commit index: {seen.node_id} went from {seen.commit} to {index}")
        committed = self.committed
        for at in range(seen.commit + 1, index + 1):
            term = core.term_at(at)
            if term is None:
                continue  # came with a copy
            if at == len(committed):
                committed.append(term)
                self._commit_terms.append(core.term)
                self._commit_times.append(self._trace.loop.now_s)
            elif at >= self.forgetful_from and committed[at : at + 1] != [term]:
                self._commit_anew(at, term, core.term)
            elif at > len(committed):
                self._violated(f"commit: {seen.node_id} committed {at}, but nobody {len(committed)}")
            elif committed[at] != term:
                self._violated(f"committed entry changed: {seen.node_id} committed term {term} at {at}, before it was {committed[at]}")
        seen.commit = index
        if self._voters_index < core.membership_index <= index:
            membership = core.membership
            self._voters_index, self.voters = core.membership_index, frozenset(membership.voters)
            if self.strangers.intersection(membership.members):
                self._violated(f"groups mixed: {seen.node_id} committed the members {membership}")

    def _commit_anew(self, at: int, term: int, leader_term: int) -> None:
        """Behind what a majority lost, the newest term says what is committed; a leader of before may still say something else."""
        if at < len(self.committed) and self._commit_terms[at] <= leader_term:
            self.coverage.count(coverage.FORGOTTEN)
            for kept in (self.committed, self._commit_terms, self._commit_times):
                del kept[at:]
            self.committed.append(term)
            self._commit_terms.append(leader_term)
            self._commit_times.append(self._trace.loop.now_s)

    def _check_appended(self, core: Raft, node_id: str, effect: Append) -> None:
        """Log matching by induction: the same index and term always come with the same content behind the same entry."""
        before = core.term_at(effect.first_index - 1) or 0
        for index, meta in enumerate(effect.entries, effect.first_index):
            known = self._entries.setdefault((index, meta.term), (before, meta))
            if known != (before, meta):
                self._violated(f"log matching: {node_id} has {(before, meta)} at {index} in term {meta.term}, somebody had {known}")
            before = meta.term

    def _check_applied(self, node_id: str, entry: RawEntry) -> None:
        checksum = zlib.crc32(b"".join(bytes(buffer) for buffer in entry.buffers))
        if self.archive is not None and entry.index not in self.applied:
            self.archive.add(entry)
        known = self.applied.setdefault(entry.index, (entry.term, checksum, node_id))
        if entry.index >= self.forgetful_from and known[0] != entry.term:
            if known[0] < entry.term:
                self.applied[entry.index] = (entry.term, checksum, node_id)
            return
        if known[:2] != (entry.term, checksum):
            text = f"{node_id} applied term {entry.term} crc {checksum:08x}, {known[2]} term {known[0]} crc {known[1]:08x}"
            self._violated(f"state machine safety: index {entry.index}: {text}")
        if entry.index >= len(self.committed) and entry.index < self.forgetful_from:
            self._violated(f"{node_id} applied {entry.index}, which nobody had committed")

    # Reads and the end

    def check_read_index(self, node_id: str, index: int, committed_before: int) -> None:
        """A linearizable read that began when ``committed_before`` was committed somewhere must not be older."""
        if index < min(committed_before, self.forgetful_from - 1):
            self._violated(f"stale read: {node_id} answered {index}, {committed_before} was committed before it was asked")

    def check_nothing_lost(self, nodes: Sequence[BrokerNode]) -> None:
        """After the dust has settled every node holds all that was ever committed."""
        for node in nodes:
            self._check_holds_committed(f"committed entry lost: {node.settings.node.id}", node.raft._replica.core)

    def _violated(self, text: str) -> None:
        self._trace.note("VIOLATED", "safety", text)
        self.violations.append(text)
        raise SafetyViolationError(text)


async def check_logs_match(nodes: Sequence[BrokerNode]) -> None:
    """Log matching after the dust has settled: byte for byte the same entries on every node, as far as heads are not deleted."""
    wanted, upto = None, min(node.raft.log.last.index for node in nodes)
    first = max(node.raft.log.first_index for node in nodes)
    for node in nodes:
        log = node.raft.log
        data = []
        index = first
        while index <= upto:
            entries = await log.read(index, 1 << 20, upto)
            if not entries:  # its head is being deleted while we look: look again
                await check_logs_match(nodes)
                return
            data += [(entry.index, entry.term, zlib.crc32(b"".join(bytes(buffer) for buffer in entry.buffers))) for entry in entries]
            index = entries[-1].index + 1
        if wanted is not None and data != wanted:
            different = next((pair for pair in zip(data, wanted, strict=False) if pair[0] != pair[1]), (len(data), len(wanted)))
            raise SafetyViolationError(f"log matching: {node.settings.node.id} differs: {different}")
        wanted = data
