"""Answers of name servers, merged into what a client knows.

Owns the versions that the client has been told, which the next question gives, so that only what changed is told again.  A name server can
add queues and change them by a newer table of topics.  Queues that it lacks are kept until the leader of their replica group confirms that
they are gone: it knows everything that was acknowledged, a name server may be behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.routes import Node, TopicQueues
from dledger_wire._pb import routes_pb2
from dledger_wire.status import REMOVED


@dataclass(slots=True)
class Merged:
    """What an answer left open: ``lacking`` has, for each topic, the replica groups that only the client knows it in."""

    lacking: dict[str, list[str]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # topics that do not exist, as far as the name server knows


class RouteAnswers:
    """Of one client."""

    def __init__(self, cache: RouteCache) -> None:
        self._cache = cache
        self._topics: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    def request(self, topics: Iterable[str], groups: Iterable[str] = (), wait_ms: int = 0) -> routes_pb2.RoutesRequest:
        """A question for what changed of these topics, of the replica groups that they are in, and of ``groups``."""
        request = routes_pb2.RoutesRequest(wait_ms=wait_ms)
        wanted = dict.fromkeys(groups)
        for name in topics:
            request.topics.add(name=name, version=self._topics.get(name, 0))
            wanted |= dict.fromkeys(queues.replica_group for queues in self._cache.topics.get(name, ()))
        for name in wanted:
            request.groups.add(name=name, version=self._groups.get(name, 0))
        return request

    def forget(self, topic: str = "", *, groups: Iterable[str] = ()) -> None:
        """Ask for the whole route of the topic, and of the replica groups, the next time."""
        self._topics.pop(topic, None)
        for group in groups:
            self._groups.pop(group, None)

    def merge(self, address: str, reply: routes_pb2.RoutesReply) -> Merged:
        """Take over what the name server at ``address`` says."""
        for group in reply.groups:
            self._merge_group(address, group, complete=reply.complete)
        merged = Merged()
        for topic in reply.topics:
            self._merge_topic(topic, reply, merged)
        return merged

    def _merge_group(self, address: str, route: routes_pb2.GroupRoute, *, complete: bool) -> None:
        self._groups[route.name] = route.version
        if route.found:
            nodes = [Node(node.id, node.address, node.voter) for node in route.nodes]
            self._cache.learn_group(self._cache.group_of(route, nodes, address))
        elif complete or route.state == REMOVED:
            self._cache.forget_group(route.name)

    def _merge_topic(self, route: routes_pb2.TopicRoute, reply: routes_pb2.RoutesReply, merged: Merged) -> None:
        self._topics[route.name] = route.version
        self._cache.tell_unseen(route.name, route.unseen_by)
        known = self._cache.topics.get(route.name, [])
        told = [
            TopicQueues(
                route.name,
                queues.group,
                queues.read_queues,
                queues.write_queues,
                queues.perm,
                queues.topic_epoch,
                version=queues.topics_version,
                max_message_bytes=reply.max_message_bytes,
                replica_groups=tuple(queues.groups),
            )
            for queues in route.queues
        ]
        here = {queues.replica_group for queues in told}
        kept = [queues for queues in known if queues.replica_group not in here]
        self._cache.set_topic(route.name, [*self._cache.newest(route.name, told), *kept])
        if reply.complete and not route.found and not known:
            merged.absent.append(route.name)
        if reply.complete and kept:
            merged.lacking[route.name] = [queues.replica_group for queues in kept]
