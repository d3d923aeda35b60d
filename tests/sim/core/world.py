"""The world of the core simulator: one heap of things to come, links between nodes, disks that take their time, and the driver's rules.

Everything random is drawn from the seed, one source for each concern, so that leaving a fault out changes as little else as possible.
``Safety`` (tests/unit/core/safety.py) and the cores' own invariants are checked after every step.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from dledger.core.effects import (
    Append,
    CommitTo,
    CutTail,
    Effect,
    FetchSnapshot,
    MembershipChanged,
    ReadFailed,
    ReadReady,
    RoleChanged,
    SaveHardState,
    Send,
    Sound,
    UnregisteredMember,
)
from dledger.core.events import (
    Applied,
    ChangeRequested,
    Event,
    LeftBehind,
    PeerLost,
    Propose,
    ReadRequested,
    Received,
    StorageFailed,
    StorageRecovered,
    Tick,
)
from dledger.core.messages import AppendRequest, Heartbeat, Message, SnapshotOffer
from dledger.core.quorum import majority
from dledger.core.types import Membership, NodeId, Role
from tests.sim.core.copies import Copies
from tests.sim.core.machine import Operation
from tests.sim.core.node import CoreNode, Folder
from tests.sim.core.settings import ELECTION_MS, HEARTBEAT_MS, CoreSettings
from tests.unit.core.harness import NO_VOTERS, Envelope, ids
from tests.unit.core.safety import Safety, expect

FULL_DISK_RETRY_MS = 500.0
CONFIG_BYTES = 90
OF_LEADER = (AppendRequest, Heartbeat, SnapshotOffer)
Sender = tuple[str, str | None]  # the folder of a message's sender, and its lineage; None: of an empty one
SILENCE_MS = 3.0 * ELECTION_MS  # a leader that no majority answers steps down well before


class World:
    """Nodes, the clock, the network."""

    def __init__(self, seed: str, settings: CoreSettings, sink: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.now_ms = 0.0
        self.steps = 0
        self.trace_hash = 0
        self.operations: list[Operation] = []
        self.kept: dict[str, set[int]] = {}  # lineage -> the operations that were in the log it was recovered from
        self.answered: Callable[[Operation, tuple[bool, Any] | None], None] = lambda _operation, _result: None
        self.watchers: list[Callable[[CoreNode, list[Effect]], None]] = []
        self.log_replaced: Callable[[CoreNode], None] = lambda _node: None
        self.net, self.disk_draws = random.Random(f"{seed} net"), random.Random(f"{seed} disk")
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.extra_ms: dict[tuple[NodeId, NodeId], float] = {}
        self._arrivals: dict[tuple[NodeId, NodeId], float] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        self._sink = sink
        voters = ids(*(f"n{number}" for number in range(settings.voters)))
        spares = ids(*(f"s{number}" for number in range(settings.spares)))
        first = Membership(voters)
        self.nodes: dict[NodeId, CoreNode] = {}
        clocks = random.Random(f"{seed} clocks")
        for name in (*voters, *spares):
            node = self.nodes[name] = CoreNode(name, first if name in voters else NO_VOTERS, settings.core, seed)
            node.base_ms, node.rate = float(clocks.randrange(100_000)), 1.0 + clocks.uniform(-0.002, 0.002)
        for node in self.nodes.values():
            node.boot(0.0, self.operations)
        self.safety = Safety(self)
        for node in self.nodes.values():
            self._arm(node)
        self.copies = Copies(self, random.Random(f"{seed} copies"))
        self._syncs_in_background = False
        if settings.core.loses_unsynced:
            self._sync_later()

    @property
    def events(self) -> int:
        """How much was ever scheduled: messages, timers, syncs, completions, applications, clients' requests."""
        return self._number

    # Time

    def after(self, delay_ms: float, act: Callable[..., None], *facts: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._number, act, facts))

    def run(self, until_ms: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as ``until`` holds (looked at every few events)."""
        heap, count = self._heap, 0
        while heap and heap[0][0] <= until_ms:
            if until is not None and count & 31 == 0 and until():
                return True
            count += 1
            self.now_ms, _number, act, facts = heapq.heappop(heap)
            act(*facts)
        self.now_ms = until_ms
        return until is not None and until()

    def note(self, text: str) -> None:
        if self._sink is not None:
            self._sink(f"{self.now_ms:12.3f} {text}")

    # Steps

    def step(self, node: CoreNode, event: Event) -> list[Effect]:
        """Feed a core and carry out what it asks for."""
        effects = node.core.step(event, node.local_ms(self.now_ms))
        self.steps += 1
        if self._sink is not None:
            self.note(f"{node.name} {event} -> {effects}")
        for effect in effects:
            if isinstance(effect, Send):
                if not node.hold(effect):
                    self.post(node, effect.to, effect.message)
            elif isinstance(effect, SaveHardState | Append | CutTail):
                node.write(effect)
            elif isinstance(effect, CommitTo):
                self._commit(node, effect.index)
            elif isinstance(effect, RoleChanged | MembershipChanged):
                node.steady_since_ms = self.now_ms
                self._name_soon(node)
            elif isinstance(effect, UnregisteredMember):
                self._name_soon(node)
            elif isinstance(effect, Sound):
                node.disk.suspect = False
                self.safety.count("sound again")
            elif isinstance(effect, ReadReady):
                self._read_ready(node, effect)
            elif isinstance(effect, FetchSnapshot):
                self.copies.offered(node, effect)
            elif isinstance(effect, ReadFailed):
                self._answer(node.reads.pop(effect.token, None), None)
        core = node.core
        core.check_invariants()
        for watcher in self.watchers:
            watcher(node, effects)
        self.trace_hash = hash((self.trace_hash, self.now_ms, core.term, core.commit, len(effects)))
        self._start_writes(node)
        self._arm(node)
        return effects

    def _arm(self, node: CoreNode) -> None:
        """One timer a node; one that fires early finds nothing due and is set anew."""
        due_ms = node.core.next_wakeup_ms()
        if due_ms is None or (node.timer_local_ms is not None and node.timer_local_ms <= due_ms):
            return
        node.timer_local_ms = due_ms
        node.timer_number += 1
        delay_ms = max(node.world_ms(due_ms) - self.now_ms, 0.0)
        self.after(delay_ms + self._slowness(node), self._fire, node, node.starts, node.timer_number)

    def _fire(self, node: CoreNode, start: int, number: int) -> None:
        if node.starts != start or not node.up or node.timer_number != number:
            return
        if node.paused:
            node.inbox.append((self._fire, node, start, number))
            return
        node.timer_local_ms = None
        self.step(node, Tick())
        if node.role is Role.LEADER and self.now_ms - node.steady_since_ms > SILENCE_MS:
            self._check_heard(node)

    def _check_heard(self, node: CoreNode) -> None:
        """A leader that a majority does not answer is none for long."""
        voters, since_ms = node.core.membership.voters, self.now_ms - SILENCE_MS
        heard = sum(voter == node.name or node.heard.get(voter, 0.0) >= since_ms for voter in voters)
        expect(heard >= majority(len(voters)), "P", node.name, "leads, heard by", heard, "of", voters)

    def set_clock(self, node: CoreNode, *, rate: float, leap_ms: float = 0.0) -> None:
        """A clock that changes makes its node look at its timers anew."""
        node.set_clock(self.now_ms, rate=rate, leap_ms=leap_ms)
        if node.up:
            node.steady_since_ms = self.now_ms
            node.timer_local_ms = None
            self._arm(node)

    def _slowness(self, node: CoreNode) -> float:
        return self.net.random() * node.slow_ms if node.slow_ms else 0.0

    # Network

    def post(self, source: CoreNode, to: NodeId, message: Message) -> None:
        folder = (source.store, None if source.is_blank else source.lineage)
        self.safety.sent(Envelope(source.name, to, message))
        link, settings, draw = (source.name, to), self.settings, self.net.random
        drawn = draw()
        if link in self.cut or drawn < settings.drop_chance or to not in self.nodes:
            return
        for _ in range(2 if drawn > 1.0 - settings.double_chance else 1):
            delay_ms = settings.delay_ms + draw() * settings.jitter_ms + self.extra_ms.get(link, 0.0)
            if settings.late_chance and draw() < settings.late_chance:
                self.after(delay_ms + draw() * settings.late_ms, self._reach, link, folder, message)
                continue
            if settings.ordered:
                arrival_ms = self._arrivals[link] = max(self.now_ms + delay_ms, self._arrivals.get(link, 0.0))
                delay_ms = arrival_ms - self.now_ms
            self.after(delay_ms, self._deliver, link, folder, message)

    def _deliver(self, link: tuple[NodeId, NodeId], folder: Sender, message: Message) -> None:
        """What is under way when a cable is cut is lost, unless it is late already."""
        if link not in self.cut:
            self._reach(link, folder, message)

    def _reach(self, link: tuple[NodeId, NodeId], folder: Sender, message: Message) -> None:
        node = self.nodes[link[1]]
        if not node.up:
            return
        if node.slow_ms:
            self.after(self._slowness(node), self._receive, node, node.starts, link[0], folder, message)
        else:
            self._receive(node, node.starts, link[0], folder, message)

    def _receive(self, node: CoreNode, start: int, source: NodeId, folder: Sender, message: Message) -> None:
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._receive, node, start, source, folder, message))
            return
        store, lineage = folder
        apart = lineage is not None and lineage != node.lineage
        if apart and not node.is_blank and self.settings.lineages_apart:
            chain = list(self.safety.lineages)
            if chain.index(node.lineage) < chain.index(lineage or "") and source in node.core.membership.voters:
                self.step(node, LeftBehind())
            return
        if node.core.membership.store_of(source) in ("", store):
            node.heard[source] = self.now_ms
        blank = node.is_blank
        if blank and lineage is not None and isinstance(message, OF_LEADER) and message.term >= node.core.term:
            node.disk.lineage = lineage
        self.step(node, Received(source, message, store))
        expect(blank or not apart or node.core.leader != source, "L1", node.name, "of", node.lineage, "follows", source, "of", lineage)

    def cut_links(self, pairs: Iterable[tuple[NodeId, NodeId]]) -> None:
        self.cut.update(pairs)

    def heal_links(self, pairs: Iterable[tuple[NodeId, NodeId]]) -> None:
        self.cut.difference_update(pairs)

    def lose_stream(self, source: NodeId, to: NodeId) -> None:
        """``to`` notices that what it had from ``source`` broke."""
        node = self.nodes[to]
        if node.up and not node.paused:
            self.step(node, PeerLost(source))

    # Disks

    def _start_writes(self, node: CoreNode) -> None:
        if node.promises and not node.promising:
            node.promising = True
            self.after(self._sync_duration(node), self._kept, node, node.starts, len(node.promises))
        if node.pending and not node.flushing and (node.full or node.may_sync):
            self._start_flush(node)

    def _sync_duration(self, node: CoreNode) -> float:
        return self.settings.sync_ms * (0.5 + self.disk_draws.random()) * node.sync_factor

    def _kept(self, node: CoreNode, start: int, count: int) -> None:
        """Promises are on the disk: they need no room there."""
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._kept, node, start, count))
            return
        if self._sync_failed(node):
            return
        self._tell(node, node.keep(count))
        node.promising = False
        self._start_writes(node)

    def _sync_failed(self, node: CoreNode) -> bool:
        if node.sync_fails:
            self.note(f"{node.name} sync fails")
            self.step(node, StorageFailed(fatal=True))
            self.crash(node, silent=False)
        return node.sync_fails

    def _start_flush(self, node: CoreNode) -> None:
        if node.full:
            node.flushing = True
            self.after(0.0, self._disk_full, node, node.starts)
            return
        node.flushing = True
        settings, draw = self.settings, self.disk_draws
        count = node.may_sync
        if settings.partial_chance and draw.random() < settings.partial_chance:
            count = draw.randint(1, count)
        self.after(self._sync_duration(node), self._flushed, node, node.starts, count)

    def _flushed(self, node: CoreNode, start: int, count: int) -> None:
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._flushed, node, start, count))
            return
        if self._sync_failed(node):
            return
        self._tell(node, node.sync(count))
        node.flushing = False
        self._start_writes(node)

    def flushed(self, node: CoreNode) -> None:
        """Everything queued is on the disk, and what waited for it goes out."""
        while node.promises or node.pending:
            self._tell(node, [*node.keep(len(node.promises)), *node.sync(len(node.pending))])

    def _tell(self, node: CoreNode, events: list[Event]) -> None:
        for send in node.released():
            self.post(node, send.to, send.message)
        for event in events:
            lag_ms = self.settings.completion_lag_ms
            if lag_ms and self.disk_draws.random() < self.settings.lag_chance:
                self.after(self.disk_draws.random() * lag_ms, self._complete, node, node.starts, event)
            else:
                self._complete(node, node.starts, event)

    def _complete(self, node: CoreNode, start: int, event: Event) -> None:
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._complete, node, start, event))
            return
        self.step(node, event)

    def _disk_full(self, node: CoreNode, start: int) -> None:
        """Told once, tried again and again, as the driver does."""
        if node.starts != start or not node.up:
            return
        if node.full:
            if not node.told_full and not node.paused:
                node.told_full = True
                self.step(node, StorageFailed(fatal=False))
            self.after(FULL_DISK_RETRY_MS, self._disk_full, node, start)
            return
        node.flushing = False
        if node.told_full:
            node.told_full = False
            self.step(node, StorageRecovered())
        self._start_writes(node)

    # Lifecycle

    def crash(self, node: CoreNode, *, silent: bool) -> None:
        """It ends between two instructions; some of what was not synced survives.  Unless ``silent``, peers notice the broken streams."""
        if not node.up:
            return
        draw = self.disk_draws
        node.crash(draw.randint(0, len(node.pending)), draw.randint(0, len(node.promises)), draw.randint(0, node.applied))
        if silent and not node.syncs and self._may_lose_power(node):
            node.lose_unsynced(draw)
            self.safety.count("power lost with entries not synced")
        self.note(f"{node.name} ends with {node.disk.hard_state} {node.disk.last}")
        self.safety.count("crashed")
        if not silent:
            for peer in self.nodes:
                if peer != node.name and (node.name, peer) not in self.cut:
                    self.after(self.settings.delay_ms, self.lose_stream, node.name, peer)

    def exchange(self, node: CoreNode, store: str) -> None:
        """Its machine comes back with another folder: one of before, or a new one."""
        self.crash(node, silent=False)
        node.put(store)
        self.restart(node)

    def set_flush(self, node: CoreNode, *, sync: bool) -> None:
        """It is started with another flush mode."""
        self.crash(node, silent=False)
        node.set_flush(sync=sync)
        if not sync:
            self._sync_later()
        self.restart(node)

    def _may_lose_power(self, node: CoreNode) -> bool:
        """Fewer than a majority of any configuration may be suspect at a time: more may lose what was acknowledged, as documented."""
        suspects = [other.name for other in self.nodes.values() if other is node or any(each.suspect for each in other.folders.values())]
        memberships = [other.core.membership.voters for other in self.nodes.values()]
        return all(sum(voter in suspects for voter in voters) < majority(len(voters)) for voters in memberships if voters)

    def _sync_later(self) -> None:
        if not self._syncs_in_background:
            self._syncs_in_background = True
            self.after(self.settings.background_sync_ms, self._sync_in_background)

    def _sync_in_background(self) -> None:
        for node in self.nodes.values():
            if node.up and not node.paused:
                node.on_platter = list(node.disk.entries)
        self.after(self.settings.background_sync_ms, self._sync_in_background)

    def restart(self, node: CoreNode) -> None:
        if node.up:
            return
        node.boot(self.now_ms, self.operations)
        self.note(f"{node.name} starts with {node.disk.hard_state} {node.disk.last} applied {node.applied}")
        self.safety.restarted(node)
        self._arm(node)

    def resume(self, node: CoreNode) -> None:
        """Everything that fell due while it was paused happens now, in that order."""
        if not node.paused:
            return
        node.paused, node.steady_since_ms = False, self.now_ms
        inbox, node.inbox = node.inbox, []
        for act, *facts in inbox:
            act(*facts)  # type: ignore[operator]

    # Clients' requests at a node

    def submit(self, node: CoreNode, operation: Operation) -> None:
        """A client's operation arrives."""
        if not node.up or node.paused:
            return
        operation.lineage = node.lineage
        if operation.kind == "poll":
            seen = node.machine.log[operation.value : operation.value + 20]
            self._answer(operation, (True, tuple(enumerate(seen, operation.value))))
        elif operation.kind == "read":
            node.reads[operation.number] = operation
            self.safety.read_asked(node, operation.number)
            self.step(node, ReadRequested(operation.number))
        else:
            effects = self.step(node, Propose(operation.size_bytes))
            appended = next((effect for effect in effects if isinstance(effect, Append)), None)
            if appended is None:
                self._answer(operation, None)
            else:
                node.waiting[appended.first_index] = (appended.entries[0].term, operation)
                self._apply_soon(node)

    def _answer(self, operation: Operation | None, result: tuple[bool, Any] | None) -> None:
        """Tell the client (took, value), or with None that it was certainly not done; a lost answer leaves it in doubt."""
        if operation is not None:
            self.after(self.settings.delay_ms, self.answered, operation, result)

    def _commit(self, node: CoreNode, index: int) -> None:
        node.commit_sent = index
        self._apply_soon(node)

    def _apply_soon(self, node: CoreNode) -> None:
        if not node.applying and node.commit_sent > node.applied:
            node.applying = True
            self.after(self.settings.apply_ms, self._apply, node, node.starts)

    def _apply(self, node: CoreNode, start: int) -> None:
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._apply, node, start))
            return
        node.applying = False
        for operation, result in node.apply_upto(node.commit_sent, self.operations):
            self._answer(operation, result)
        self.step(node, Applied(node.applied))
        self._serve_reads(node)
        self._apply_soon(node)

    def _read_ready(self, node: CoreNode, ready: ReadReady) -> None:
        operation = node.reads.pop(ready.token, None)
        if operation is not None:
            node.ready_reads.append((ready.index, operation))
            self._serve_reads(node)

    def _serve_reads(self, node: CoreNode) -> None:
        still = []
        for index, operation in node.ready_reads:
            if index <= node.applied:
                self._answer(operation, (True, node.machine.registers.get(operation.key)))
            else:
                still.append((index, operation))
        node.ready_reads = still

    # Groups

    def _name_soon(self, node: CoreNode) -> None:
        """A leader has those named that it has met, as the node does (``dledger/membership/member_registration.py``)."""
        if node.role is Role.LEADER and not node.naming and node.core.with_known_stores(node.core.membership) != node.core.membership:
            node.naming = True
            self.after(HEARTBEAT_MS, self._name, node, node.starts)

    def _name(self, node: CoreNode, start: int) -> None:
        if node.starts != start or not node.up:
            return
        if node.paused:
            node.inbox.append((self._name, node, start))
            return
        node.naming = False
        core = node.core
        if node.role is Role.LEADER and core.with_known_stores(core.membership) != core.membership:
            self.change(node, core.membership, CONFIG_BYTES)
            self._name_soon(node)

    def change(self, leader: CoreNode, members: Membership, size_bytes: int) -> None:
        """Ask a leader for these members."""
        self.step(leader, ChangeRequested(leader.core.with_known_stores(members), size_bytes))

    def are_named(self, name: NodeId) -> bool:
        """Whether every folder there ever was, but empty ones outside the group, has a committed entry that names the folder of ``name``.

        Before that nobody can tell its folders apart.
        """
        folders = [folder for node in self.nodes.values() for folder in node.folders.values()]
        return all(self._names(folder, name) for folder in folders if folder.entries or folder.membership.voters)

    def _names(self, folder: Folder, name: NodeId) -> bool:
        upto = self.safety.lineages[folder.lineage].commit - folder.before.index
        named = [folder.membership, *(meta.config for meta in folder.entries[: max(upto, 0)] if meta.config is not None)]
        return any(membership.store_of(name) for membership in named)

    @property
    def lineage(self) -> str:
        """The newest."""
        return next(reversed(self.safety.lineages))

    def leader(self) -> CoreNode | None:
        """Who leads the newest term that has a leader, in the group that was recovered last."""
        leading = [node for node in self.nodes.values() if node.up and node.role is Role.LEADER and node.lineage == self.lineage]
        return max(leading, key=lambda node: node.core.term, default=None)
