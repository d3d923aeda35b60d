"""What must hold over a whole group of cores at every moment (raft.md 5.6), checked as things happen.

Knows every log and every disk, so it asks them and not the cores.  Row numbers in the names are those of raft.md.
"""

from __future__ import annotations

from dledger.core.effects import Append, CommitTo, CutTail, Effect, ReadReady, RoleChanged
from dledger.core.messages import AppendResponse, VoteRequest, VoteResponse
from dledger.core.quorum import majority
from dledger.core.types import EntryId, EntryMeta, NodeId, Role
from tests.unit.core.harness import Cluster, Envelope, Node

Chain = tuple[int, int]


class Violation(AssertionError):
    """A rule of Raft was broken."""


def expect(condition: object, *facts: object) -> None:
    if not condition:
        raise Violation(" ".join(str(fact) for fact in facts))


def link(before: int, meta: EntryMeta) -> int:
    """One number for a whole log up to an entry."""
    return hash((before, meta.term, meta.size_bytes))


class Safety:
    """Watches a cluster from its first step on."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[NodeId, int], NodeId] = {}
        self.registry: dict[tuple[int, int], int] = {}  # (index, term) -> chain of the prefix
        self.committed: list[int] = [0]  # chain at every committed index
        self.chains: dict[NodeId, dict[int, int]] = {}
        self.node_commit: dict[NodeId, int] = {}
        self.read_floor: dict[tuple[NodeId, int, int], int] = {}
        self.counters: dict[str, int] = {}
        for node in cluster.nodes.values():
            self.restarted(node)
        cluster.watchers.append(self.after_step)
        cluster.log_replaced = self.log_replaced

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    @property
    def commit(self) -> int:
        return len(self.committed) - 1

    def restarted(self, node: Node) -> None:
        """A node begins anew from its disk."""
        self.node_commit[node.name] = node.disk.before.index
        self.log_replaced(node)

    def log_replaced(self, node: Node) -> None:
        """Take a node's log as its disk has it."""
        before = node.disk.before.index
        expect(before <= self.commit or before == 0, node.name, "starts behind", before, "committed", self.commit)
        chain = self.committed[before] if before <= self.commit else 0
        chains = {before: chain}
        for index, meta in enumerate(node.disk.entries, before + 1):
            chain = chains[index] = link(chain, meta)
            self._register(node, EntryId(index, meta.term), chain)
        self.chains[node.name] = chains

    def _register(self, node: Node, entry: EntryId, chain: int) -> None:
        known = self.registry.setdefault((entry.index, entry.term), chain)
        expect(known == chain, "I3 log matching:", node.name, "has another prefix at", entry)

    # Steps

    def after_step(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
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
        self._watermark(node)

    def _role(self, node: Node, effect: RoleChanged) -> None:
        if effect.role is not Role.LEADER or effect.confirmed:
            return
        self.count("elected")
        known = self.leaders.setdefault(effect.term, node.name)
        expect(known == node.name, "I1 election safety: term", effect.term, "has leaders", known, "and", node.name)
        # The no-op comes with the same step and is in the log already.
        chains = self.chains[node.name]
        expect(self.commit in chains or self.commit < min(chains), "I4 leader completeness:", node.name, "lacks", self.commit)
        if self.commit in chains:
            expect(chains[self.commit] == self.committed[-1], "I4 leader completeness:", node.name, "differs at", self.commit)

    def _append(self, node: Node, effect: Append) -> None:
        chains = self.chains[node.name]
        for index, meta in enumerate(effect.entries, effect.first_index):
            chains[index] = link(chains[index - 1], meta)
            self._register(node, EntryId(index, meta.term), chains[index])

    def _cut(self, node: Node, effect: CutTail) -> None:
        self.count("cut")
        expect(node.role is not Role.LEADER, "I2 leader append-only:", node.name, "cut at", effect.from_index)
        commit = self.node_commit[node.name]
        expect(effect.from_index > commit, "I6", node.name, "cut at", effect.from_index, "committed", commit)
        chains = self.chains[node.name]
        for index in range(effect.from_index, max(chains) + 1):
            del chains[index]

    def _commit(self, node: Node, effect: CommitTo) -> None:
        expect(effect.index > self.node_commit[node.name], "I6 commit went back:", node.name, effect)
        self.node_commit[node.name] = effect.index
        chains = self.chains[node.name]
        for index in range(self.commit + 1, effect.index + 1):
            self.committed.append(chains[index])
        known = [index for index in chains if index <= effect.index]
        for index in (max(known), min(known)):
            expect(chains[index] == self.committed[index], "I5 state-machine safety:", node.name, "differs at", index)
        if node.role is Role.LEADER:
            self._majority_has(node, effect.index)

    def _majority_has(self, node: Node, index: int) -> None:
        entry = EntryId(index, node.core.term_at(index) or 0)
        voters = self._voters_at(node, index)
        holders = [voter for voter in voters if voter in self.cluster.nodes and self.cluster.nodes[voter].disk.holds(entry)]
        expect(len(holders) >= majority(len(voters)), "I7 committed durability:", entry, "only on", holders, "of", voters)

    @staticmethod
    def _voters_at(node: Node, index: int) -> tuple[NodeId, ...]:
        """A commit is counted with the newest configuration of the leader's log."""
        return node.core.membership.voters

    def _read(self, node: Node, effect: ReadReady) -> None:
        self.count("read")
        floor = self.read_floor.get((node.name, node.starts, effect.token), 0)
        expect(effect.index >= floor, "I11 stale read:", node.name, effect, "committed before it:", floor)

    def read_asked(self, node: Node, token: int) -> None:
        """Call right before a read is stepped."""
        self.read_floor[node.name, node.starts, token] = self.commit

    def _watermark(self, node: Node) -> None:
        durable = node.core.durable
        if durable > node.disk.before.index:
            entry = EntryId(durable, node.core.term_at(durable) or 0)
            expect(node.disk.holds(entry), "D6 watermark:", node.name, "calls", entry, "durable, disk ends at", node.disk.last)

    # Messages leaving a node

    def sent(self, envelope: Envelope) -> None:
        message, node = envelope.message, self.cluster.nodes[envelope.source]
        if isinstance(message, VoteRequest | VoteResponse) and message.pre_vote:
            return
        saved = node.disk.hard_state
        expect(message.term <= saved.term, "I8", node.name, "sends", message, "disk has", saved)
        if isinstance(message, VoteRequest):
            self._voted(node.name, message.term, node.name)
        elif isinstance(message, VoteResponse) and message.granted:
            self._voted(node.name, message.term, envelope.to)
            expect(saved.term > message.term or saved.vote == envelope.to, "V6", node.name, "sends", message, "disk has", saved)
        elif isinstance(message, AppendResponse) and message.success and message.term == node.core.term:
            expect(node.disk.holds(message.match), "I9", node.name, "acknowledges", message.match, "disk ends at", node.disk.last)

    def _voted(self, voter: NodeId, term: int, candidate: NodeId) -> None:
        known = self.votes.setdefault((voter, term), candidate)
        expect(known == candidate, "I8", voter, "votes in term", term, "for", known, "and", candidate)
