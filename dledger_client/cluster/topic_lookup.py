"""The queues of a topic, from the nodes of every replica group.

Owns whose word counts: the leader of a replica group knows all that was acknowledged there; without it the newest table of topics counts.
"""

from __future__ import annotations

from operator import itemgetter

from dledger_client.cluster.leader_search import LeaderSearch
from dledger_client.cluster.node_metadata import NodeMetadata, info_of, queues_of
from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.routes import TopicQueues
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import NotReadyError, TopicNotFoundError


class TopicLookup:
    """Looks up for one client."""

    def __init__(self, nodes: NodeMetadata, cache: RouteCache, leaders: LeaderSearch) -> None:
        self._nodes, self._cache, self._leaders = nodes, cache, leaders

    async def look_up(self, name: str) -> list[TopicQueues]:
        """The queues of a topic, group by group.  Raises TopicNotFoundError as soon as those who must know say that there is none."""
        found = await self._of_every_group(name, *await self._nodes.first_answer([name]))
        return found or await self._at_leaders(name)

    async def _of_every_group(self, name: str, first: str, answer: broker_pb2.MetadataResponse) -> list[TopicQueues]:
        """A node tells of its own group's queues only, and a replica may lag: every group is asked, its leader's word counts most, without
        it the newest of what replicas say and of what was known before.  ``answer``: what the node at ``first`` has said already."""
        by_group = {queues.replica_group: [queues] for queues in self._cache.topics.get(name, ())}
        for_followers: set[str] = set()

        def enough(address: str, response: broker_pb2.MetadataResponse) -> bool:
            for_followers.update(info.name for info in response.groups if self._leads(address, info))
            return len(for_followers) == len(self._cache.groups)

        answers = [(first, answer)]
        if not enough(first, answer):
            answers += await self._nodes.survey(self._nodes.addresses(), [name], enough)
        # A node knows the term of its own group only.
        answers_by_group = [
            (self._leads(address, info), info.term, info.name, queues_of(name, response))
            for address, response in answers
            for info in response.groups
            if info.term
        ]
        for by_leader, _term, group, queues in sorted(answers_by_group, key=itemgetter(0, 1)):
            if by_leader or (queues and _is_newer(queues, by_group.get(group, []))):
                by_group[group] = queues
        return [each for group in sorted(by_group) for each in by_group[group]]

    def _leads(self, address: str, info: broker_pb2.GroupInfo) -> bool:
        """Whether the node at ``address`` says so of itself, and no later leader is known."""
        return info.leader_address == address and info.term >= self._cache.groups[info.name].term

    async def _at_leaders(self, name: str) -> list[TopicQueues]:
        """Ask the leaders: a follower may not know a topic that was just created."""
        found: list[TopicQueues] = []
        groups = self._cache.groups
        for group in list(groups):
            view = groups[group]
            if not view.leader_address:
                view = await self._leaders.find(group)
            response = await self._nodes.ask(view.leader_address, [name])
            own = info_of(group, response)
            if own is None or own.leader_address != view.leader_address:
                await self._leaders.find(group, view.leader_address, view.term)  # it is not the leader any more: its answer does not count
                raise NotReadyError(f"topic {name}: {view.leader_address} does not lead group {group} any more")
            found += [queues for queues in queues_of(name, response) if queues.replica_group == group]
        if found:
            return found
        if not groups:
            raise NotReadyError(f"topic {name} is not known at {self._nodes.answered_last}, which knows no group either")
        everybody = ", ".join(self._nodes.addresses())
        raise TopicNotFoundError(f"topic {name} does not exist in cluster {self._cache.cluster or '?'} ({everybody})")


def _is_newer(queues: list[TopicQueues], known: list[TopicQueues]) -> bool:
    return not known or queues[0].version > known[0].version
