"""The parts of one topic, one in each replica group that has queues of it, as the leaders of the groups know them, or their followers.

Owns what is known when a replica group does not answer: the parts that answer name every group that may have queues of the topic, so that
a group that has nothing to do with it is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dledger_client.admin.calls import ClusterCalls, Sources
from dledger_client.cluster.node_metadata import queues_of
from dledger_client.cluster.routes import TopicQueues
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotLeaderError, TopicNotFoundError
from dledger_wire.names import check_topic
from dledger_wire.rpc import methods
from dledger_wire.status import ACTIVE

DEFAULT_QUEUES = 4  # while no replica group answers


@dataclass(frozen=True, slots=True)
class TopicParts:
    """What is known of a topic.

    ``parts``: by replica group.  ``load``: how many queues each replica group that answered has, of all topics.  ``closed``: the replica
    groups that take no new topics.  ``unanswered``: the replica groups that did not answer, and why.
    """

    name: str
    parts: dict[str, TopicQueues] = field(default_factory=dict)
    load: dict[str, int] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    default_queues: int = DEFAULT_QUEUES
    unanswered: dict[str, DledgerError] = field(default_factory=dict)

    @property
    def groups(self) -> list[str]:
        """All replica groups that were asked, by name."""
        return sorted({*self.load, *self.unanswered})

    @property
    def missing(self) -> dict[str, DledgerError]:
        """The replica groups without an answer that may have queues of the topic."""
        told = [part.replica_groups for part in self.parts.values()]
        if not told or not all(told):
            return self.unanswered  # nobody told where the topic is: it may be anywhere
        may_have = {group for groups in told for group in groups}
        return {group: error for group, error in self.unanswered.items() if group in may_have}

    @property
    def lacking(self) -> list[str]:
        """The replica groups that parts name, and that have answered without one: a creation or deletion was broken off."""
        named = {group for part in self.parts.values() for group in part.replica_groups}
        return sorted(group for group in named if group in self.load and group not in self.parts)

    def require_all(self, what: str) -> None:
        """Raise unless every replica group that may have queues of the topic has answered; ``what`` was not done."""
        for group, error in sorted(self.missing.items()):
            text = f"{_no_leader(group, error)} and may have queues of topic {self.name}: {what}"
            raise NotLeaderError(text, leader_address="")
        if not self.parts:
            raise TopicNotFoundError(f"topic {self.name!r} does not exist", topic=self.name)

    def require(self, groups: Iterable[str], what: str) -> None:
        """Raise unless all ``groups`` have a leader; ``what`` was not done."""
        for group in groups:
            if group in self.unanswered:
                raise NotLeaderError(f"{_no_leader(group, self.unanswered[group])}: {what}", leader_address="")

    def by_load(self, groups: Iterable[str]) -> list[str]:
        """``groups``, the one with the fewest queues first."""
        return sorted(groups, key=lambda group: (self.load.get(group, 0), group))


def _no_leader(group: str, error: DledgerError) -> str:
    return f"replica group {group} has no leader ({error.message})"


async def look_at(calls: ClusterCalls, name: str) -> TopicParts:
    """Ask the leaders of all replica groups for a topic, which need not exist."""
    return await _seen_by(calls.at_leaders(), name)


async def look_aside(calls: ClusterCalls, name: str) -> TopicParts:
    """``look_at`` for a read: followers are asked where the client spares leaders, which then say only that there is no such topic."""
    if calls.spares_leader:
        seen = await _seen_by(calls, name)
        if seen.parts:
            return seen
    return await look_at(calls, name)


async def _seen_by(calls: ClusterCalls, name: str) -> TopicParts:
    check_topic(name)
    request, sources = broker_pb2.MetadataRequest(topics=[name]), Sources()
    answers = await calls.of_all(lambda group: calls.read(group, methods.METADATA, request, sources))
    found = answers.some()
    parts = {group: queues for group, answer in found.items() for queues in queues_of(name, answer) if queues.replica_group == group}
    load = {group: answer.queues for group, answer in found.items()}
    defaults = [answer.default_topic_queues for answer in found.values()]
    closed = frozenset(group for group, answer in found.items() if answer.state != ACTIVE)
    return TopicParts(name, parts, load, closed, min(defaults, default=DEFAULT_QUEUES), answers.unanswered)
