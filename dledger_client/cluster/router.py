"""Routes of one client: where the leaders of its replica groups and the queues of its topics are, and calls to those leaders.

Owns the parts and puts them together: channels, what is known (``route_cache``), questions to nodes (``node_metadata``), the search for a
leader (``leader_search``), calls to leaders (``leader_calls``) and the look-up of topics (``topic_lookup``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dledger_client.cluster.channels import Channels
from dledger_client.cluster.leader_calls import LeaderCalls
from dledger_client.cluster.leader_search import LeaderSearch
from dledger_client.cluster.node_metadata import NodeMetadata
from dledger_client.cluster.retry import until
from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.routes import ReplicaGroup, TopicQueues
from dledger_client.cluster.topic_lookup import TopicLookup
from dledger_wire._pb import broker_pb2
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.names import check_topic
from dledger_wire.rpc.methods import UnaryMethod
from dledger_wire.rpc.transport import Channel, Network

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Router:
    """Routes of one client.  Used on one event loop."""

    def __init__(self, bootstrap: Bootstrap, network: Network, clock: Clock, random: Random) -> None:
        self.clock, self.random = clock, random
        self._channels, self._cache = Channels(network), RouteCache()
        self._nodes = NodeMetadata(self._channels, self._cache, parse_bootstrap(bootstrap))
        self._leaders = LeaderSearch(self._nodes, self._cache)
        self._calls = LeaderCalls(self._channels, self._cache, self._leaders, clock, random)
        self._lookup = TopicLookup(self._nodes, self._cache, self._leaders)

    # Channels

    def channel(self, address: str) -> Channel:
        """The channel to ``address``."""
        return self._channels.to(address)

    @property
    def is_open(self) -> bool:
        """Whether there are connections to close."""
        return self._channels.is_open

    async def close(self) -> None:
        await self._channels.close()

    # Replica groups

    @property
    def cluster(self) -> str:
        """The cluster's name; empty before somebody has answered."""
        return self._cache.cluster

    @property
    def groups(self) -> dict[str, ReplicaGroup]:
        """The replica groups that are known, by name."""
        return self._cache.groups

    async def ensure_groups(self, deadline_ms: int) -> dict[str, ReplicaGroup]:
        """The groups, asked for if nothing is known yet."""
        if not self.groups:
            async for attempt in until(deadline_ms, self.clock, self.random):
                with attempt:
                    await self._nodes.first_answer([])
        return self.groups

    async def ensure_group(self, group: str, deadline_ms: int) -> ReplicaGroup:
        """The group of that name.  InvalidArgumentError when the cluster has none."""
        groups = await self.ensure_groups(deadline_ms)
        if group not in groups:
            raise InvalidArgumentError(f"no replica group {group!r} in cluster {self.cluster}; expected one of {', '.join(sorted(groups))}")
        return groups[group]

    async def survey(self, topics: Sequence[str], enough: Callable[[str, broker_pb2.MetadataResponse], bool]) -> None:
        """Ask all nodes at once, until one says ``enough``, all have answered, or the slow ones have had their time."""
        await self._nodes.survey(self._nodes.addresses(), topics, enough)

    # Leaders

    async def leader(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """The known leader of ``group``; searched for when there is none, or when it is ``failed`` in no term after ``failed_term``."""
        return await self._leaders.leader(group, failed, failed_term)

    async def find_leader(self, group: str) -> ReplicaGroup:
        """Who leads ``group`` now, by asking the nodes.  Raises NotLeaderError when no node is known to lead."""
        return await self._leaders.find(group)

    async def confirm_leader(self, group: str, address: str) -> None:
        """Ask the nodes who leads.  UnreachableError when another node than ``address`` does, NotLeaderError when none is known to."""
        await self._leaders.confirm(group, address)

    def leader_is(self, group: str, address: str) -> None:
        """A node said who leads: remembered until an answer with a newer term."""
        self._cache.leader_is(group, address)

    async def call_leader(
        self, group: str, method: UnaryMethod[Request, Response], request: Request, *, deadline_ms: int, again: Request | None = None
    ) -> Response:
        """Call ``method`` at the leader of ``group``, wherever it is, until the deadline.

        ``again`` is sent in place of ``request`` after an attempt with an unknown outcome: the form that does no harm when done already.
        """
        return await self._calls.call(group, method, request, deadline_ms=deadline_ms, again=again)

    # Topics

    async def topic(self, name: str, deadline_ms: int, *, fresh: bool = False) -> list[TopicQueues]:
        """The queues of a topic, group by group.  Raises TopicNotFoundError as soon as those who must know say that there is none."""
        topics = self._cache.topics
        if not fresh and name in topics:
            return topics[name]
        check_topic(name)
        async for attempt in until(deadline_ms, self.clock, self.random):
            with attempt:
                topics[name] = found = await self._lookup.look_up(name)
                return found
        raise NotReadyError(f"topic {name}: no attempt was made before the deadline")

    def forget_topic(self, name: str) -> None:
        """Look the topic up again at its next use."""
        self._cache.topics.pop(name, None)
