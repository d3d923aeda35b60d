"""The queues of a topic: from a name server; from the nodes while none answers, or while it does not know all replica groups.

Owns whose word counts: the leader of a replica group knows all that was acknowledged there; without it the newest table of topics counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from operator import itemgetter

from dledger_client.cluster.leader_calls import LeaderSearch
from dledger_client.cluster.name_servers import NameServers
from dledger_client.cluster.node_metadata import NodeAnswer, NodeMetadata, info_of, queues_of
from dledger_client.cluster.route_watch import RouteAnswers
from dledger_client.cluster.routes import ReplicaGroup, RouteCache, TopicQueues
from dledger_wire._pb import broker_pb2, routes_pb2
from dledger_wire.errors import DledgerError, NotLeaderError, NotReadyError, PermissionDeniedError, TopicNotFoundError
from dledger_wire.names import group_of_topic

ABSENT_MS = 150  # how long a name server may take to hear of a topic that was made just now


class TopicLookup:
    """Looks up for one client."""

    def __init__(self, names: NameServers, answers: RouteAnswers, nodes: NodeMetadata, cache: RouteCache, leaders: LeaderSearch) -> None:
        self._names, self._answers = names, answers
        self._nodes, self._cache, self._leaders = nodes, cache, leaders

    async def look_up(self, name: str) -> list[TopicQueues]:
        """The queues of a topic, by replica group.  Raises TopicNotFoundError as soon as the nodes that must know say that there is none.

        Part of the queues is no answer: a key would go to another queue, and a consumer would miss messages.
        """
        is_behind, found = await self._ask_name_server(name)
        if found is None:
            part = self._cache.topics.get(name)
            try:
                found = await self._at_nodes(name, is_behind=is_behind)
            except DledgerError as error:
                if not part or isinstance(error, TopicNotFoundError):
                    raise
                return part  # neither knows all
            return self._cache.set_topic(name, found)
        if not found:
            raise self._absent(name)
        return found

    # Name servers

    async def at_name_server(self, name: str) -> list[TopicQueues] | None:
        """The queues as a name server has them; none when the topic does not exist.  None when no name server answers, or its answer does
        not count."""
        return (await self._ask_name_server(name))[1]

    async def _ask_name_server(self, name: str) -> tuple[bool, list[TopicQueues] | None]:
        """Whether the one that answers does not know all replica groups that may have the topic, and the queues as it has them."""
        self._answers.forget(name)
        try:
            address, reply = await self._names.routes(self._answers.request([name]))
            merged = self._answers.merge(address, reply)
            if name in merged.absent:
                reply = await self._names.routes_at(address, self._answers.request([name], wait_ms=ABSENT_MS))
                merged = self._answers.merge(address, reply)
        except DledgerError:
            return False, None
        await self.confirm(merged.lacking)
        is_behind = not reply.complete and not any(_is_whole(route) for route in reply.topics)
        return is_behind, None if is_behind else self._cache.topics.get(name, [])

    async def confirm(self, lacking: dict[str, list[str]]) -> None:
        """Forget queues that a name server lacks, if the leaders of their replica groups lack them, too.

        ``lacking``: replica groups by topic.
        """
        for name, groups in lacking.items():
            await self.learn(name, groups)

    async def _at_leader(self, name: str, group: str) -> list[TopicQueues] | None:
        """The queues of a topic in one replica group; None when its leader does not say."""
        address = self._cache.groups[group].leader_address
        try:
            response = await self._nodes.ask(address, [name]) if address else None
        except DledgerError:
            return None
        own = info_of(group, response) if response is not None else None
        if response is None or own is None or own.leader_address != address:
            return None
        return _in_group(group, queues_of(name, response))

    def _absent(self, name: str) -> DledgerError:
        caller = self._cache.unseen.get(name)
        if caller:
            return may_not(caller, "read", name)
        given = ", ".join(self._nodes.bootstrap)  # the same text each time, whichever node answered
        return TopicNotFoundError(f"topic {name} does not exist in cluster {self._cache.cluster or '?'} ({given})")

    # Nodes

    async def _at_nodes(self, name: str, *, is_behind: bool) -> list[TopicQueues]:
        """Where there are name servers, none of which answers, the nodes of the replica groups that the topic is known in are asked; else
        all."""
        known = [] if is_behind or not self._names.known else self._places(name)
        if known and (found := await self._of_groups(name, known, self._cache.node_addresses(known), [])):
            return found
        first = await self._nodes.first_answer([name])
        found = await self._of_groups(name, self._cache.groups, self._nodes.addresses(), [first])
        return found or await self._at_leaders(name)

    def _places(self, name: str) -> list[str]:
        """The replica groups that may have queues of the topic; none when not all of them are known."""
        queues = self._cache.topics.get(name, ())
        named = dict.fromkeys(group for each in queues for group in (each.replica_group, *each.replica_groups))
        return list(named) if self._cache.groups.keys() >= named.keys() else []

    async def learn(self, name: str, groups: Iterable[str]) -> None:
        """Ask the leaders of ``groups`` for a topic, and take over what those say that answer."""
        asked = [group for group in groups if group in self._cache.groups]
        answers = await asyncio.gather(*(self._at_leader(name, group) for group in asked))
        named = {group: queues for group, queues in zip(asked, answers, strict=True) if queues is not None}
        kept = [each for each in self._cache.topics.get(name, ()) if each.replica_group not in named]
        new = [each for queues in named.values() for each in queues]
        self._cache.set_topic(name, [*kept, *new])

    async def _of_groups(self, name: str, groups: Collection[str], addresses: list[str], answers: list[NodeAnswer]) -> list[TopicQueues]:
        """A node returns its own group's queues only, and a replica may lag: every group is asked, its leader's word counts most, without
        it the newest of what replicas say and of what was known before.  ``answers``: what nodes have said already."""
        by_group = {queues.replica_group: [queues] for queues in self._cache.topics.get(name, ())}
        for_followers: set[str] = set()

        def enough(answer: NodeAnswer) -> bool:
            address, response = answer
            for_followers.update(info.name for info in response.groups if self._leads(address, info))
            return for_followers.issuperset(groups)

        if not any(enough(answer) for answer in answers):
            answers = answers + await self._nodes.survey(addresses, [name], enough)
        # A node knows the term of its own group only, a name server those of all groups.
        answers_by_group = [
            (self._leads(address, info), info.term, info.name, _in_group(info.name, queues_of(name, response)))
            for address, response in answers
            for info in response.groups
            if info.term
        ]
        for by_leader, _term, group, queues in sorted(answers_by_group, key=itemgetter(0, 1)):
            if by_leader or (queues and _is_newer(queues, by_group.get(group, []))):
                by_group[group] = queues
        return [each for queues in by_group.values() for each in queues]

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
                view = await self._found(name, group)
            queues = await self._at_leader(name, group)
            if queues is None:
                await self._found(name, group, view.leader_address, view.term)  # it is not the leader any more: its answer does not count
                raise NotReadyError(f"topic {name}: {view.leader_address} does not lead replica group {group} any more")
            found += queues
        if found:
            return found
        if not groups:
            raise NotReadyError(f"topic {name} is not known at {self._nodes.answered_last}, which knows no replica group either")
        raise self._absent(name)

    async def _found(self, name: str, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """The leader of a replica group that may have the topic.  NotLeaderError when there is none."""
        try:
            return await self._leaders.find(group, failed, failed_term)
        except NotLeaderError as error:
            text = f"topic {name} was not found in the replica groups that answered; {error.message}"
            raise NotLeaderError(text, **error.details) from None


def may_not(caller: str, action: str, topic: str) -> PermissionDeniedError:
    """The refusal of a caller that may not even know of the topic, and so may do nothing with it."""
    group = group_of_topic(topic)
    resource, name = ("group", group) if group else ("topic", topic)
    text = f"{caller} may not {action} {resource} {name}"
    return PermissionDeniedError(text, user=caller.removeprefix("user "), action=action, resource=resource, name=name)


def _is_whole(route: routes_pb2.TopicRoute) -> bool:
    """Whether a route has every replica group that may have queues of the topic, as these groups themselves say."""
    here = {queues.group for queues in route.queues}
    return bool(here) and all(queues.groups and here.issuperset(queues.groups) for queues in route.queues)


def _in_group(group: str, queues: list[TopicQueues]) -> list[TopicQueues]:
    return [each for each in queues if each.replica_group == group]


def _is_newer(queues: list[TopicQueues], known: list[TopicQueues]) -> bool:
    return not known or queues[0].version > known[0].version
