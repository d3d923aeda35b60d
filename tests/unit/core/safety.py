"""What must hold over a whole group of cores at every moment, checked as things happen.

Knows every log and every disk, so it asks them and not the cores.  I1 to I5 are the safety properties of Raft (figure 3 of Ongaro and
Ousterhout, "In Search of an Understandable Consensus Algorithm"), I6 to I15 what this core promises besides, and D6 the row of
tests/unit/core/conformance.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dledger.core.effects import Append, CommitTo, CutTail, Diverged, Effect, MembershipChanged, MessageRefused, ReadReady, RoleChanged
from dledger.core.messages import AppendResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.progress import ProgressState
from dledger.core.quorum import majority
from dledger.core.raft import Raft
from dledger.core.types import EntryId, EntryMeta, HardState, Membership, NodeId, Role
from tests.unit.core.harness import Disk, Envelope


class Watched(Protocol):
    """A node as the checks see it."""

    @property
    def name(self) -> NodeId: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def core(self) -> Raft: ...
    @property
    def starts(self) -> int: ...
    @property
    def store(self) -> str: ...
    @property
    def folders(self) -> Mapping[str, Disk]: ...
    @property
    def lineage(self) -> str:
        """Which recovery its log comes from; empty for the first members' group."""


class World(Protocol):
    """Whoever runs nodes: calls every watcher after every step and ``log_replaced`` after a copy."""

    watchers: list[Callable[[Any, list[Effect]], None]]
    log_replaced: Callable[[Any], None]

    @property
    def nodes(self) -> Mapping[NodeId, Watched]: ...


class Violation(AssertionError):
    """A rule of Raft was broken."""


def expect(condition: object, *facts: object) -> None:
    if not condition:
        raise Violation(" ".join(str(fact) for fact in facts))


def link(before: int, meta: EntryMeta) -> int:
    """One number for a whole log up to an entry."""
    return hash((before, meta.term, meta.size_bytes))


@dataclass(slots=True)
class Lineage:
    """One history: that of a group, or of what an operator has recovered out of it when most members were lost.

    What is committed in one says nothing about the other, from the end of the recovered log on.
    """

    leaders: dict[int, tuple[NodeId, str]] = field(default_factory=dict)
    registry: dict[tuple[int, int], int] = field(default_factory=dict)  # (index, term) -> chain of the prefix
    committed: list[int] = field(default_factory=lambda: [0])  # chain at every committed index
    commit_terms: list[int] = field(default_factory=lambda: [0])  # in which term that was committed first

    @property
    def commit(self) -> int:
        return len(self.committed) - 1


class Safety:
    """Watches a cluster from its first step on."""

    def __init__(self, cluster: World) -> None:
        self.cluster = cluster
        self.lineages = {"": Lineage()}  # the newest last
        self.votes: dict[tuple[NodeId, str, int], NodeId] = {}
        self.chains: dict[NodeId, dict[int, int]] = {}
        self.node_commit: dict[NodeId, int] = {}
        self.read_floor: dict[tuple[NodeId, int, int], int] = {}
        self.configs: dict[NodeId, list[tuple[int, Membership]]] = {}
        self.ordered: set[tuple[NodeId, int]] = set()  # (node, term) that was told to take over
        self.pre_votes: dict[tuple[NodeId, int], set[NodeId]] = {}  # (candidate, term) -> who told it that it could win
        self.saved: dict[tuple[NodeId, str], HardState] = {}  # what each disk was seen to hold
        self.matches: dict[tuple[NodeId, int, NodeId], tuple[int, int]] = {}
        self.counters: dict[str, int] = {}
        for node in cluster.nodes.values():
            self.restarted(node)
        cluster.watchers.append(self.after_step)
        cluster.log_replaced = self.log_replaced

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    @property
    def newest(self) -> Lineage:
        return next(reversed(self.lineages.values()))

    @property
    def commit(self) -> int:
        return self.newest.commit

    @property
    def leaders(self) -> Mapping[int, tuple[NodeId, str]]:
        return self.newest.leaders

    def recovered(self, source: str, name: str, log: Disk) -> int:
        """``log`` of the lineage ``source`` begins one of its own.  Up to where it has what was committed there, and goes on having it."""
        old, kept = self.lineages[source], log.before.index
        chain = old.committed[kept]
        for index, meta in enumerate(log.entries, kept + 1):
            chain = link(chain, meta)
            if index > old.commit or old.committed[index] != chain:
                break
            kept = index
        committed, terms = old.committed[: kept + 1], old.commit_terms[: kept + 1]
        self.lineages[name] = Lineage(dict(old.leaders), dict(old.registry), committed, terms)
        return kept

    def restarted(self, node: Watched) -> None:
        """A node begins anew from its disk."""
        self.node_commit[node.name] = node.disk.before.index
        known, now = self.saved.get((node.name, node.store), HardState()), node.disk.hard_state
        kept = now.term > known.term or (now.term == known.term and known.vote in (None, now.vote))
        expect(kept, "I8", node.name, "starts with", now, "had saved", known)
        self.log_replaced(node)

    def log_replaced(self, node: Watched) -> None:
        """Take a node's log as its disk has it."""
        before, lineage = node.disk.before.index, self.lineages[node.lineage]
        expect(before <= lineage.commit or before == 0, node.name, "starts behind", before, "committed", lineage.commit)
        chain = lineage.committed[before] if before <= lineage.commit else 0
        chains = {before: chain}
        for index, meta in enumerate(node.disk.entries, before + 1):
            chain = chains[index] = link(chain, meta)
            self._register(node, EntryId(index, meta.term), chain)
        self.chains[node.name] = chains
        entries = enumerate(node.disk.entries, before + 1)
        configs = [(index, meta.config) for index, meta in entries if meta.config is not None]
        self.configs[node.name] = [(before, node.disk.membership), *configs]

    def _register(self, node: Watched, entry: EntryId, chain: int) -> None:
        known = self.lineages[node.lineage].registry.setdefault((entry.index, entry.term), chain)
        expect(known == chain, "I3 log matching:", node.name, "has another prefix at", entry)

    # Steps

    def after_step(self, node: Watched, effects: list[Effect]) -> None:
        for effect in effects:
            expect(not isinstance(effect, MessageRefused | Diverged), "refused", node.name, effect)
            if isinstance(effect, RoleChanged):
                self._role(node, effect)
            elif isinstance(effect, Append):
                self._append(node, effect)
            elif isinstance(effect, CutTail):
                self._cut(node, effect)
            elif isinstance(effect, CommitTo):
                self._commit(node, effect)
            elif isinstance(effect, ReadReady):
                self._read(node, effect)
            elif isinstance(effect, MembershipChanged):
                self.matches.clear()
        if effects:
            configured = self.configs[node.name][-1][1]
            expect(node.core.membership == configured, "I10", node.name, "goes by", node.core.membership, "its log says", configured)
        self._watermark(node)
        if node.core.role is Role.LEADER:
            self._leader_numbers(node)

    def _role(self, node: Watched, effect: RoleChanged) -> None:
        if effect.role is not Role.LEADER or effect.confirmed:
            return
        self.count("elected")
        history = self.lineages[node.lineage]
        known = history.leaders.setdefault(effect.term, (node.name, node.store))
        expect(
            known == (node.name, node.store), "I1 election safety: term", effect.term, "has leaders", known, "and", node.name, node.store
        )
        # The no-op comes with the same step and is in the log already.  Late votes may make a leader of a term that others have left.
        chains, index, committed = self.chains[node.name], history.commit, history.committed
        while index and history.commit_terms[index] >= effect.term:
            index -= 1
        expect(index in chains or index < min(chains), "I4 leader completeness:", node.name, "lacks", index)
        if index in chains:
            expect(chains[index] == committed[index], "I4 leader completeness:", node.name, "differs at", index)

    def _append(self, node: Watched, effect: Append) -> None:
        chains = self.chains[node.name]
        for index, meta in enumerate(effect.entries, effect.first_index):
            chains[index] = link(chains[index - 1], meta)
            self._register(node, EntryId(index, meta.term), chains[index])
            if meta.config is not None:
                self._configured(node, EntryId(index, meta.term), meta.config)

    def _configured(self, node: Watched, entry: EntryId, membership: Membership) -> None:
        """Neighbouring configurations share a majority, and a leader makes a new one only on top of committed ground."""
        configs = self.configs[node.name]
        index, before = configs[-1]
        configs.append((entry.index, membership))
        self.count("changed members")
        if before.voters and not self._is_recovery(membership):
            differing = set(before.voters) ^ set(membership.voters)
            expect(len(differing) <= 1, "I10", node.name, "goes from", before, "to", membership)
        if node.core.role is Role.LEADER:
            commit = self.node_commit[node.name]
            expect(index <= commit, "I10", node.name, "changes members at", entry, "while", index, "is not committed:", commit)
            expect(node.core.term_at(commit) == node.core.term, "I10", node.name, "changes members before its term's first commit")

    def _is_recovery(self, membership: Membership) -> bool:
        """Whether an operator has made these the members."""
        return any(store in self.lineages for _name, store in membership.stores) and len(membership.members) == 1

    def _cut(self, node: Watched, effect: CutTail) -> None:
        self.count("cut")
        expect(node.core.role is not Role.LEADER, "I2 leader append-only:", node.name, "cut at", effect.from_index)
        commit = self.node_commit[node.name]
        expect(effect.from_index > commit, "I6", node.name, "cut at", effect.from_index, "committed", commit)
        chains = self.chains[node.name]
        for index in range(effect.from_index, max(chains) + 1):
            del chains[index]
        configs = self.configs[node.name]
        while configs[-1][0] >= effect.from_index:
            configs.pop()

    def _commit(self, node: Watched, effect: CommitTo) -> None:
        expect(effect.index > self.node_commit[node.name], "I6 commit went back:", node.name, effect)
        self.node_commit[node.name] = effect.index
        chains, history = self.chains[node.name], self.lineages[node.lineage]
        committed = history.committed
        for index in range(len(committed), effect.index + 1):
            committed.append(chains[index])
            history.commit_terms.append(node.core.term)
        first = next(iter(chains))  # they follow one another: only the end is ever cut or added to
        for index in (min(effect.index, first + len(chains) - 1), first):
            expect(chains[index] == committed[index], "I5 state-machine safety:", node.name, "differs at", index)
        if node.core.role is Role.LEADER:
            self._majority_has(node, effect.index)

    def _majority_has(self, node: Watched, index: int) -> None:
        entry = EntryId(index, node.core.term_at(index) or 0)
        voters, named = self._voters_at(node, index), node.core.membership.store_of
        disks = [(voter, self._disk_of(voter, named(voter))) for voter in voters]
        # One that lost power under ASYNC_FLUSH counts for what it acknowledged before: elections do not rest on it until it has that again.
        holders = [voter for voter, disk in disks if disk is not None and (disk.holds(entry) or disk.suspect)]
        expect(len(holders) >= majority(len(voters)), "I7 committed durability:", entry, "only on", holders, "of", voters)

    def _disk_of(self, name: NodeId, store: str) -> Disk | None:
        """The folder ``store`` of a node, also while another one is in its place; the one in place when none is named."""
        node = self.cluster.nodes.get(name)
        return node.folders.get(store, node.disk) if node is not None else None

    @staticmethod
    def _voters_at(node: Watched, index: int) -> tuple[NodeId, ...]:
        """A commit is counted with the newest configuration of the leader's log."""
        return node.core.membership.voters

    def _read(self, node: Watched, effect: ReadReady) -> None:
        self.count("read")
        floor = self.read_floor.get((node.name, node.starts, effect.token), 0)
        expect(effect.index >= floor, "I11 stale read:", node.name, effect, "committed before it:", floor)

    def read_asked(self, node: Watched, token: int) -> None:
        """Call right before a read is stepped."""
        self.read_floor[node.name, node.starts, token] = self.lineages[node.lineage].commit

    def _watermark(self, node: Watched) -> None:
        self.saved[node.name, node.store] = node.disk.hard_state
        durable = node.core.durable
        if durable > node.disk.before.index:
            entry = EntryId(durable, node.core.term_at(durable) or 0)
            if not node.disk.holds(entry):
                raise Violation(f"D6 watermark: {node.name} calls {entry} durable, disk ends at {node.disk.last}")

    def _leader_numbers(self, node: Watched) -> None:
        """I14, I15: what a leader counts is what its log and its peers say."""
        core = node.core._core
        replication, log = core.replication, core.log
        if core.commit >= replication.term_start:
            counted = replication.uncommitted_bytes
            held = log.size_between(core.commit + 1, log.last.index)
            expect(counted == held, "I14", node.name, "counts", counted, "uncommitted bytes of", held)
        for peer in replication.peers.values():
            key = (node.name, core.term, peer.node)
            match, denied = self.matches.get(key, (0, 0))
            lost = replication.ack_regressions + replication.losses_reported
            lower = peer.match < match and lost == denied
            expect(not lower, "I15", node.name, "takes back", peer.node, "from", match, "to", peer.match)
            self.matches[key] = (peer.match, lost)
            disk = self._disk_of(peer.node, peer.store)
            # No later leader has cut it, nor a loss of power taken it.
            term = log.term_at(peer.match)  # None: deleted here since then
            if disk is not None and disk.hard_state.term <= core.term and not disk.suspect and term is not None:
                entry = EntryId(peer.match, term)
                if not disk.holds(entry):
                    raise Violation(f"I9 {node.name} takes {entry} to be on {peer.node} which has {disk.last}")
            if peer.state is ProgressState.REPLICATE and peer.next - peer.match > 1:
                under_way = log.size_between(peer.match + 1, peer.next - 1)
                expect(
                    under_way <= peer.inflight_bytes, "I14", node.name, "to", peer.node, under_way, "in flight, counts", peer.inflight_bytes
                )

    def check_holds_all(self, node: Watched) -> None:
        """After the dust has settled: the node's disk has every committed entry."""
        history, before = self.lineages[node.lineage], node.disk.before.index
        chain = history.committed[before]
        for index, meta in enumerate(node.disk.entries[: history.commit - before], before + 1):
            chain = link(chain, meta)
            expect(chain == history.committed[index], "committed entry lost:", node.name, "differs at", index)
        expect(node.disk.last.index >= history.commit, "committed entry lost:", node.name, "ends at", node.disk.last, "of", history.commit)

    # Messages leaving a node

    def sent(self, envelope: Envelope) -> None:
        message, node = envelope.message, self.cluster.nodes[envelope.source]
        if isinstance(message, TimeoutNow):
            self.ordered.add((envelope.to, message.term))
        if isinstance(message, VoteRequest | VoteResponse) and message.pre_vote:
            if isinstance(message, VoteResponse) and message.granted:
                self.pre_votes.setdefault((envelope.to, message.term), set()).add(node.name)
            return
        saved = node.disk.hard_state
        expect(message.term <= saved.term, "I8", node.name, "sends", message, "disk has", saved)
        if isinstance(message, VoteRequest):
            self._voted(node, message.term, node.name)
            ordered = not message.transfer or (node.name, message.term - 1) in self.ordered
            told = len(self.pre_votes.get((node.name, message.term), ())) + 1
            asked = message.transfer or told >= majority(len(node.core.membership.voters))
            expect(asked, "P", node.name, "campaigns in term", message.term, "although only", told, "would vote for it")
            expect(ordered, "T", node.name, "campaigns against a live leader in term", message.term, "without its order")
        elif isinstance(message, VoteResponse) and message.granted:
            self._voted(node, message.term, envelope.to)
            expect(saved.term > message.term or saved.vote == envelope.to, "V6", node.name, "sends", message, "disk has", saved)
        elif isinstance(message, AppendResponse) and message.success and message.term == node.core.term:
            expect(node.disk.holds(message.match), "I9", node.name, "acknowledges", message.match, "disk ends at", node.disk.last)

    def _voted(self, voter: Watched, term: int, candidate: NodeId) -> None:
        known = self.votes.setdefault((voter.name, voter.store, term), candidate)
        expect(known == candidate, "I8", voter.name, "votes in term", term, "for", known, "and", candidate)
