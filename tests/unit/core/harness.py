"""Several cores joined by a bag of messages, each with a disk of its own: what the scenario tests speak through.

Two ways to run it.  By hand: ``step`` an event, look at the bag, ``deliver`` what you like, ``persist`` when you like.  By the clock:
``run`` lets time pass, fires timers, delivers every message after ``delay_ms`` over the links that are up, and completes writes.

A payload is known by its size: every proposal takes a size of its own, so equal (term, size) means equal entry.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dledger.core.config import CoreConfig
from dledger.core.effects import (
    Append,
    CommitTo,
    CutTail,
    Effect,
    ReadFailed,
    ReadReady,
    Refused,
    SaveHardState,
    Send,
)
from dledger.core.events import (
    Campaign,
    ChangeRequested,
    Event,
    HardStateStored,
    LogTrimmed,
    PeerLost,
    Propose,
    ReadRequested,
    Received,
    SnapshotInstalled,
    Stored,
    Tick,
    TransferRequested,
)
from dledger.core.messages import AppendRequest, AppendResponse, Message, VoteResponse
from dledger.core.raft import Raft
from dledger.core.saved import Saved
from dledger.core.types import ZERO_ENTRY, EntryId, EntryKind, EntryMeta, HardState, Membership, NodeId, Role

HEARTBEAT_MS = 100
ELECTION_MS = 600
NO_VOTERS = Membership(())


def node_id(name: object) -> NodeId:
    return NodeId(str(name))


def ids(*names: object) -> tuple[NodeId, ...]:
    return tuple(node_id(name) for name in names)


def log_of(terms: Sequence[int]) -> list[EntryMeta]:
    """A log by its terms; entry i of term t is the same wherever it is made."""
    return [EntryMeta(term, 1000 + index) for index, term in enumerate(terms, 1)]


def runs_of(entries: Sequence[EntryMeta], first_index: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for index, meta in enumerate(entries, first_index):
        if not runs or runs[-1][0] != meta.term:
            runs.append((meta.term, index))
    return runs


@dataclass
class Disk:
    """What survives a crash: hard state, and the log behind ``before``."""

    hard_state: HardState = field(default_factory=HardState)
    before: EntryId = ZERO_ENTRY
    entries: list[EntryMeta] = field(default_factory=list)
    membership: Membership = NO_VOTERS  # the one below the log's first entry
    commit: int = 0
    suspect: bool = False

    @property
    def last(self) -> EntryId:
        return EntryId(self.before.index + len(self.entries), self.entries[-1].term if self.entries else self.before.term)

    def write(self, effect: Effect) -> None:
        if isinstance(effect, SaveHardState):
            self.hard_state = HardState(effect.term, effect.vote)
        elif isinstance(effect, Append):
            assert effect.first_index == self.last.index + 1, (effect, self.last)
            self.entries.extend(effect.entries)
        elif isinstance(effect, CutTail):
            del self.entries[effect.from_index - self.before.index - 1 :]

    def meta(self, index: int) -> EntryMeta:
        return self.entries[index - self.before.index - 1]

    def membership_at(self, index: int) -> Membership:
        found = self.membership
        for at, meta in enumerate(self.entries, self.before.index + 1):
            if at <= index and meta.config is not None:
                found = meta.config
        return found

    def trim(self, before: EntryId) -> None:
        """Head truncation: ``before`` is the last entry to go."""
        self.membership = self.membership_at(before.index)
        del self.entries[: before.index - self.before.index]
        self.before = before

    def holds(self, entry: EntryId) -> bool:
        place = entry.index - self.before.index  # counted from 1: asked several times in each step of each simulated core
        return place <= 0 or (place <= len(self.entries) and self.entries[place - 1].term == entry.term)

    def saved(self) -> Saved:
        first = self.before.index + 1
        configs = [(index, meta.config) for index, meta in enumerate(self.entries, first) if meta.config is not None]
        return Saved(
            hard_state=self.hard_state,
            terms=runs_of(self.entries, first),
            before=self.before,
            last=self.last,
            commit=max(self.commit, self.before.index),
            configs=configs,
            suspect=self.suspect,
        )


@dataclass
class Envelope:
    """One message under way."""

    source: NodeId
    to: NodeId
    message: Message
    due_ms: int = 0


_MessageT = TypeVar("_MessageT")


class Node:
    """A core, its disk, and what it asked for."""

    lineage = ""

    def __init__(self, cluster: Cluster, name: NodeId, disk: Disk, config: CoreConfig) -> None:
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.store = ""
        self.config = config
        self.up = True
        self.starts = 0
        # This node's clock beside the cluster's: how fast it runs, and by how much it is off.
        self.clock_rate = 1.0
        self.clock_offset_ms = 0
        self.boot()

    @property
    def folders(self) -> dict[str, Disk]:
        return {self.store: self.disk}

    @property
    def now_ms(self) -> int:
        return int(self.cluster.now_ms * self.clock_rate) + self.clock_offset_ms

    def wakeup_ms(self) -> int | None:
        """When the core wants to be woken, by the cluster's clock; a clock that stands still never gets there."""
        due_ms = self.core.next_wakeup_ms()
        if due_ms is None or not self.clock_rate:
            return due_ms if due_ms is not None and due_ms <= self.now_ms else None
        return math.ceil((due_ms - self.clock_offset_ms) / self.clock_rate)

    def boot(self) -> None:
        """Start from the disk; everything in memory is new."""
        self.starts += 1
        self.pending: list[Effect] = []  # writes not on disk yet, in order
        self.held: list[tuple[int, Send]] = []  # sends with the number of the write they wait for
        self.written = 0
        self.promised = 0  # the number of the newest hard state's write
        self.synced = 0
        self.log = Disk(self.disk.hard_state, self.disk.before, list(self.disk.entries), self.disk.membership, self.disk.commit)
        draws = random.Random(f"{self.cluster.seed}/{self.name}/{self.starts}")
        saved = self.disk.saved()
        self.core = Raft(self.config, self.name, self.disk.membership, saved, draws, self, now_ms=self.now_ms)
        self.effects: list[Effect] = []
        self.commits: list[int] = []
        self.reads: dict[int, int | None] = {}

    def metas(self, first_index: int, last_index: int) -> Sequence[EntryMeta]:
        if first_index <= self.log.before.index:
            return ()
        return self.log.entries[first_index - self.log.before.index - 1 : last_index - self.log.before.index]

    # Looking

    @property
    def role(self) -> Role:
        return self.core.role

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def commit(self) -> int:
        return self.core.commit

    @property
    def last(self) -> EntryId:
        return self.core.last

    @property
    def terms(self) -> list[int]:
        """The log by its terms."""
        return [meta.term for meta in self.log.entries]

    def sent(self, kind: type[_MessageT], to: object | None = None) -> list[_MessageT]:
        """Messages of this node in the bag."""
        return [
            envelope.message
            for envelope in self.cluster.bag
            if envelope.source == self.name and isinstance(envelope.message, kind) and (to is None or envelope.to == node_id(to))
        ]

    def told(self, kind: type) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    # Acting

    def step(self, event: Event) -> list[Effect]:
        effects = self.core.step(event, self.now_ms)
        for effect in effects:
            self._carry_out(effect)
        self.effects.extend(effects)
        self.core.check_invariants()
        self.cluster.after_step(self, effects)
        if self.cluster.auto_persist and self.pending:
            self.persist()
        return effects

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SaveHardState | Append | CutTail):
            self.pending.append(effect)
            self.written += 1
            if isinstance(effect, SaveHardState):
                self.promised = self.written
            self.log.write(effect)
        elif isinstance(effect, Send):
            number = self.written if effect.after_sync else self.promised if effect.after_promise else 0
            if self.synced < number:
                self.held.append((number, effect))
            else:
                self._send(effect)
        elif isinstance(effect, CommitTo):
            self.commits.append(effect.index)
        elif isinstance(effect, ReadReady):
            self.reads[effect.token] = effect.index
        elif isinstance(effect, ReadFailed):
            self.reads[effect.token] = None

    def _send(self, send: Send) -> None:
        self.cluster.post(Envelope(self.name, send.to, send.message, self.cluster.now_ms + self.cluster.delay_ms))

    def sync(self, count: int | None = None) -> list[Event]:
        """The next ``count`` writes reach the disk; returns the completions, which nobody has heard of yet."""
        count = len(self.pending) if count is None else count
        done, self.pending = self.pending[:count], self.pending[count:]
        for effect in done:
            self.disk.write(effect)
        self.synced += len(done)
        events: list[Event] = []
        if any(isinstance(effect, SaveHardState) for effect in done):
            events.append(HardStateStored(self.disk.hard_state.term, self.disk.hard_state.vote))
        if any(isinstance(effect, Append | CutTail) for effect in done):
            events.append(Stored(self.disk.last))
        return events

    def release_held(self) -> None:
        held, self.held = self.held, []
        for number, send in held:
            if number <= self.synced:
                self._send(send)
            else:
                self.held.append((number, send))

    def persist(self, count: int | None = None) -> None:
        """Writes reach the disk and everybody hears of it."""
        events = self.sync(count)
        self.release_held()
        for event in events:
            self.step(event)

    def crash(self, keep_writes: int = 0) -> None:
        """Power loss: of the writes not synced the first ``keep_writes`` survive."""
        self.sync(keep_writes)
        self.pending, self.held = [], []
        self.up = False
        self.disk.commit = self.disk.before.index

    def restart(self) -> None:
        self.up = True
        self.boot()

    def campaign(self) -> None:
        self.step(Campaign())

    def timeout(self) -> None:
        """Let this node's timer fire."""
        due_ms = self.core.next_wakeup_ms()
        assert due_ms is not None
        self.cluster.now_ms = max(self.cluster.now_ms, due_ms)
        self.step(Tick())

    def tick(self) -> None:
        self.step(Tick())

    def propose(self, count: int = 1) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(count):
            effects = self.step(Propose(self.cluster.next_size()))
        return effects

    def refused(self) -> Refused | None:
        """The refusal of the last step, if it was one."""
        last = self.effects[-1] if self.effects else None
        return last if isinstance(last, Refused) else None

    def change(self, voters: Iterable[object], learners: Iterable[object] = ()) -> list[Effect]:
        return self.step(ChangeRequested(Membership(ids(*voters), ids(*learners)), self.cluster.next_size()))

    def transfer(self, target: object | None) -> list[Effect]:
        return self.step(TransferRequested(None if target is None else node_id(target)))

    def read(self, token: int) -> list[Effect]:
        return self.step(ReadRequested(token))

    def lost(self, peer: object) -> None:
        self.step(PeerLost(node_id(peer)))

    def receive(self, source: object, message: Message) -> list[Effect]:
        return self.step(Received(node_id(source), message))

    def trim(self, first_index: int) -> None:
        """Head truncation up to ``first_index``; the log on disk follows."""
        before = EntryId(first_index - 1, self.core.term_at(first_index - 1) or 0)
        for log in (self.log, self.disk):
            log.trim(before)
        self.step(LogTrimmed(first_index, before))

    def copy_from(self, source: Node) -> None:
        """The catch-up copy that was asked for: ``source``'s committed log takes the place of ours."""
        assert self.core.snapshot_wanted is not None
        self.persist()
        upto = min(self.core.snapshot_wanted.last.index, source.disk.last.index, source.commit)
        membership = source.disk.membership_at(upto)
        for log in (self.log, self.disk):
            log.before, log.membership = source.disk.before, source.disk.membership
            log.entries = source.disk.entries[: upto - source.disk.before.index]
        self.cluster.log_replaced(self)
        last, first = self.disk.last, self.disk.before.index + 1
        terms = tuple(runs_of(self.disk.entries, first))
        self.step(SnapshotInstalled(first, last, membership, self.disk.before, terms))


class Cluster:
    """Nodes, the bag, the clock."""

    def __init__(
        self,
        voters: int | Sequence[object] = 3,
        *,
        learners: Sequence[object] = (),
        logs: dict[object, Sequence[int]] | None = None,
        term: int | None = None,
        commit: int = 0,
        seed: int = 1,
        auto_persist: bool = True,
        config: CoreConfig | None = None,
        configs: dict[object, CoreConfig] | None = None,
    ) -> None:
        names = ids(*(range(1, voters + 1) if isinstance(voters, int) else voters))
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ms = 0
        self.delay_ms = 1
        self.auto_persist = auto_persist
        self.bag: list[Envelope] = []
        self.blocked: set[tuple[NodeId, NodeId]] = set()
        self.dropping: Callable[[Envelope], bool] = lambda _envelope: False
        self.watchers: list[Callable[[Node, list[Effect]], None]] = []
        self.log_replaced: Callable[[Node], None] = lambda _node: None
        self._size = 100_000
        self.membership = Membership(names, ids(*learners))
        config = config or CoreConfig(heartbeat_interval_ms=HEARTBEAT_MS, election_timeout_ms=ELECTION_MS)
        self.config = config
        self.nodes: dict[NodeId, Node] = {}
        logs = {node_id(name): log for name, log in (logs or {}).items()}
        for name in (*names, *ids(*learners)):
            entries = log_of(logs.get(name, ()))
            last_term = entries[-1].term if entries else 0
            hard_state = HardState(max(term or 0, last_term))
            own = (configs or {}).get(name, config)
            self.nodes[name] = Node(self, name, Disk(hard_state, ZERO_ENTRY, entries, self.membership, min(commit, len(entries))), own)

    def __getitem__(self, name: object) -> Node:
        return self.nodes[node_id(name)]

    def add_node(self, name: object, membership: Membership = NO_VOTERS) -> Node:
        """A fresh replica that belongs to nothing yet."""
        node = Node(self, node_id(name), Disk(membership=membership), self.config)
        self.nodes[node.name] = node
        return node

    def next_size(self) -> int:
        self._size += 1
        return self._size

    def after_step(self, node: Node, effects: list[Effect]) -> None:
        for watcher in self.watchers:
            watcher(node, effects)

    # Network

    def post(self, envelope: Envelope) -> None:
        if (envelope.source, envelope.to) not in self.blocked and not self.dropping(envelope):
            self.bag.append(envelope)

    def cut(self, one: object, other: object, *, both: bool = True) -> None:
        """Messages from ``one`` to ``other`` are lost from now on, and those under way."""
        pairs = {(node_id(one), node_id(other))}
        if both:
            pairs.add((node_id(other), node_id(one)))
        self.blocked |= pairs
        self.bag = [envelope for envelope in self.bag if (envelope.source, envelope.to) not in pairs]

    def isolate(self, name: object) -> None:
        for other in self.nodes:
            if other != node_id(name):
                self.cut(name, other)

    def heal(self) -> None:
        self.blocked.clear()
        self.dropping = lambda _envelope: False

    def deliver(self, envelope: Envelope) -> None:
        """Hand one message over and take it out of the bag (a copy may be handed over again)."""
        if envelope in self.bag:
            self.bag.remove(envelope)
        node = self.nodes[envelope.to]
        if node.up:
            node.step(Received(envelope.source, envelope.message))

    def pick(self, *, source: object | None = None, to: object | None = None, kind: type | None = None) -> list[Envelope]:
        """Messages in the bag, oldest first."""
        return [
            envelope
            for envelope in self.bag
            if (source is None or envelope.source == node_id(source))
            and (to is None or envelope.to == node_id(to))
            and (kind is None or isinstance(envelope.message, kind))
        ]

    def deliver_all(self, *, source: object | None = None, to: object | None = None, kind: type | None = None) -> int:
        """What is in the bag now and fits; not what that brings about."""
        picked = self.pick(source=source, to=to, kind=kind)
        for envelope in picked:
            self.deliver(envelope)
        return len(picked)

    def drop(self, *, source: object | None = None, to: object | None = None, kind: type | None = None) -> int:
        picked = self.pick(source=source, to=to, kind=kind)
        for envelope in picked:
            self.bag.remove(envelope)
        return len(picked)

    def settle(self, limit: int = 2000) -> None:
        """Deliver everything and what that brings about; the clock stands still."""
        for _ in range(limit):
            if not self.bag:
                return
            self.deliver(self.bag[0])
        raise AssertionError(f"the cluster does not settle: {self.bag[:5]}")

    # Clock

    def run(self, duration_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as ``until`` holds."""
        end_ms = self.now_ms + duration_ms
        while True:
            if until is not None and until():
                return True
            due = [(envelope.due_ms, at) for at, envelope in enumerate(self.bag)]
            timers = [(wakeup_ms, node.name) for node in self.nodes.values() if node.up and (wakeup_ms := node.wakeup_ms()) is not None]
            next_ms = min([*(when for when, _at in due), *(when for when, _name in timers)], default=end_ms + 1)
            if next_ms > end_ms:
                self.now_ms = end_ms
                return until is not None and until()
            self.now_ms = max(self.now_ms, next_ms)
            if due and min(due)[0] <= self.now_ms:
                self.deliver(self.bag[min(due)[1]])
            else:
                self.nodes[min(timers)[1]].step(Tick())

    # Groups

    def leaders(self) -> list[Node]:
        """Who leads the newest term that has a leader."""
        leading = [node for node in self.nodes.values() if node.up and node.role is Role.LEADER]
        newest = max((node.term for node in leading), default=0)
        return [node for node in leading if node.term == newest]

    def leader(self) -> Node:
        leading = self.leaders()
        assert len(leading) == 1, [node.name for node in leading]
        return leading[0]

    def elect(self, name: object = 1) -> Node:
        """Make ``name`` the confirmed leader, by hand."""
        self[name].campaign()
        self.settle()
        assert self[name].core.is_confirmed_leader, self[name].core.status()
        return self[name]


def solo(
    log: Sequence[int] = (),
    *,
    term: int | None = None,
    vote: object | None = None,
    commit: int = 0,
    voters: int = 3,
    auto_persist: bool = True,
    config: CoreConfig | None = None,
) -> Node:
    """Node 1 of a group whose other nodes only exist by name: for tests that hand it every message themselves."""
    cluster = Cluster(voters, auto_persist=auto_persist, config=config)
    entries = log_of(log)
    last_term = entries[-1].term if entries else 0
    hard_state = HardState(last_term if term is None else term, None if vote is None else node_id(vote))
    node = cluster.nodes[node_id(1)] = Node(
        cluster, node_id(1), Disk(hard_state, ZERO_ENTRY, entries, cluster.membership, commit), cluster.config
    )
    return node


def leader_by_hand(node: Node) -> Node:
    """Make a solo node leader with the votes of 2 and 3; its append requests are left in the bag."""
    node.campaign()
    others = [voter for voter in node.core.membership.voters if voter != node.name]
    for voter in others:
        if node.role is Role.PRE_CANDIDATE:
            node.receive(voter, VoteResponse(term=node.term + 1, granted=True, pre_vote=True))
    if node.pending:
        node.persist()
    for voter in others:
        if node.role is Role.CANDIDATE:
            node.receive(voter, VoteResponse(term=node.term, granted=True))
    assert node.role is Role.LEADER
    return node


def append(term: int, prev: tuple[int, int], terms: Sequence[int] = (), commit: int = 0) -> AppendRequest:
    """An append request; ``prev`` is (index, term), entries by their terms."""
    index = prev[0]
    entries = tuple(EntryMeta(entry_term, 1000 + index + 1 + at) for at, entry_term in enumerate(terms))
    return AppendRequest(term=term, prev=EntryId(*prev), entries=entries, commit=commit)


def ack(term: int, index: int, entry_term: int) -> AppendResponse:
    return AppendResponse(term=term, success=True, match=EntryId(index, entry_term))


def config_entry(term: int, voters: Iterable[object], learners: Iterable[object] = (), size: int = 77) -> EntryMeta:
    return EntryMeta(term, size, EntryKind.CONFIG, Membership(ids(*voters), ids(*learners)))
