"""Routes of one client: where the leaders of its replica groups and the queues of its topics are, and calls to those leaders.

Owns the parts and puts them together: channels, what is known (``routes``), name servers (``name_servers``) and the watch at one of them
(``route_watch``), questions to nodes (``node_metadata``), the search for a leader and calls to it (``leader_calls``), the search for the
one after a silent one (``silent_leaders``) and the look-up of topics (``topic_lookup``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.channels import Bootstrap, Channels, parse_bootstrap
from dledger_client.cluster.leader_calls import LeaderCalls, LeaderSearch
from dledger_client.cluster.name_servers import NameServers
from dledger_client.cluster.node_metadata import NodeAnswer, NodeMetadata
from dledger_client.cluster.retry import until
from dledger_client.cluster.route_watch import RouteAnswers, RouteWatch
from dledger_client.cluster.routes import ReplicaGroup, RouteCache, TopicQueues
from dledger_client.cluster.silent_leaders import SilentLeaders
from dledger_client.cluster.topic_lookup import TopicLookup, may_not
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError, NotReadyError
from dledger_wire.names import check_topic
from dledger_wire.rpc.methods import UnaryMethod
from dledger_wire.rpc.transport import Channel, Network
from dledger_wire.status import REMOVED

LEAST_LOOK_UP_MS = 200  # of a look-up that begins shortly before the deadline

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Router:
    """Routes of one client.  Used on one event loop."""

    def __init__(self, bootstrap: Bootstrap, network: Network, clock: Clock, random: Random) -> None:
        self.clock, self.random = clock, random
        self.channels, self.cache = Channels(network), RouteCache()
        addresses = parse_bootstrap(bootstrap)
        self._nodes = NodeMetadata(self.channels, self.cache, addresses)
        self._names = NameServers(self.channels, self.cache, addresses, clock, random)
        self._answers = RouteAnswers(self.cache)
        self.route_watch = RouteWatch(self._names, self._answers, self.cache, clock, random)
        self.silent = SilentLeaders(self._nodes, self.cache, clock)
        self.leaders = LeaderSearch(self._nodes, self.cache, self.route_watch, self.silent)
        self._calls = LeaderCalls(self.channels, self.cache, self.leaders, self.silent, clock, random)
        self.lookup = TopicLookup(self._names, self._answers, self._nodes, self.cache, self.leaders)
        self.route_watch.confirm = self.lookup.confirm
        self._all_nodes_known = False  # of all replica groups

    def __del__(self) -> None:
        watch: RouteWatch | None = getattr(self, "route_watch", None)  # none when the addresses were refused
        if watch is not None:
            watch.abandon()

    # Connections and the watch

    def channel(self, address: str) -> Channel:
        """The channel to ``address``."""
        return self.channels.to(address)

    def watch(self) -> None:
        """The client uses a stream: after a few seconds it gets changes.  On the event loop; idempotent."""
        self.channels.require_open()
        self.route_watch.begin()

    def on_topic_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the name of each topic whose queues changed, on the event loop."""
        self.cache.topic_listeners.append(listener)

    def deadline_ms(self, timeout_ms: int) -> int:
        """When a call that begins now has to be answered.  ClientClosedError once the client is closed."""
        self.channels.require_open()
        return self.clock.monotonic_ms() + timeout_ms

    async def close(self) -> None:
        self.channels.refuse()
        await self.route_watch.close()
        await self.silent.close()
        await self.channels.close()

    # Replica groups

    @property
    def groups(self) -> dict[str, ReplicaGroup]:
        """The replica groups that are known, by name: those the client uses, and those that nodes named."""
        return self.cache.groups

    async def reach(self, deadline_ms: int) -> None:
        """Return when a name server or a node has answered.  UnreachableError when none does until the deadline."""
        if self._names.current or self.groups:
            return
        async for attempt in until(deadline_ms, self.clock, self.random):
            with attempt:
                try:
                    await self._names.routes(self._answers.request(()))
                except DledgerError:
                    await self._nodes.first_answer([])

    async def all_groups(self, deadline_ms: int, *, or_known: bool = True) -> dict[str, ReplicaGroup]:
        """Every replica group of the cluster: as name servers have them; as nodes have them while no name server knows of all;
        ``or_known``: those that are known while no node answers."""
        self.channels.require_open()  # or what is known would be returned, and nodes called unreachable
        try:
            names = await self._names.replica_groups()
            await self._ask_for(names)
            return {name: self.groups[name] for name in names if name in self.groups}
        except DledgerError:
            if self._all_nodes_known and or_known:
                return dict(self.groups)
        await self._ask_nodes(deadline_ms, or_known=or_known)
        return dict(self.groups)

    async def directory(self) -> routes_pb2.DirectoryReply:
        """The replica groups with all their nodes, as a name server has them, all of them or not; one attempt.  DledgerError when no name
        server answers."""
        return await self._names.directory(complete=False)

    async def name_server_addresses(self) -> tuple[str, ...]:
        """Where the name servers of the cluster are."""
        self.channels.require_open()
        return await self._names.addresses()

    async def ensure_group(self, group: str, deadline_ms: int) -> ReplicaGroup:
        """The group of that name.  InvalidArgumentError when there is none, UnreachableError without an answer until the deadline."""
        if group not in self.groups:
            with contextlib.suppress(DledgerError):
                await self._ask_for((group,))
        if group not in self.groups:
            names = ", ".join(sorted(await self.all_groups(deadline_ms, or_known=False)))
            if group not in self.groups:
                raise InvalidArgumentError(f"no replica group {group!r} in cluster {self.cache.cluster}; expected one of {names}")
        return self.groups[group]

    async def _ask_nodes(self, deadline_ms: int, *, or_known: bool) -> None:
        """Ask any node which replica groups there are, again and again only while nothing is known at all, or that is not enough."""
        async for attempt in until(deadline_ms, self.clock, self.random):
            with attempt:
                try:
                    address, _ = await self._nodes.first_answer([])
                    if not self.groups:
                        raise NotReadyError(f"{address}: no replica group has registered yet")
                    self._all_nodes_known = True
                except DledgerError:
                    if not (self.groups and or_known):
                        raise

    async def _ask_for(self, groups: Iterable[str]) -> None:
        """Ask a name server for replica groups: only for what changed of those that are known."""
        self._answers.forget(groups=[name for name in groups if name not in self.groups])
        self._answers.merge(*await self._names.routes(self._answers.request((), groups)))

    async def removed(self, groups: Iterable[str]) -> set[str]:
        """Those of the replica groups that were removed, as far as a name server remembers; one attempt."""
        known = [routes_pb2.KnownRoute(name=name) for name in groups]
        try:
            _address, reply = await self._names.routes(routes_pb2.RoutesRequest(groups=known))
        except DledgerError:
            return set()
        return {route.name for route in reply.groups if route.state == REMOVED}

    async def survey(self, deadline_ms: int) -> dict[str, ReplicaGroup]:
        """Every replica group with its leader now.  While no name server knows of all, all nodes are asked at once, until every leader has
        answered, or the slow ones have had their time."""
        groups = await self.all_groups(deadline_ms)
        if self._names.current:
            return groups
        leaders: set[str] = set()

        def enough(answer: NodeAnswer) -> bool:
            address, response = answer
            leaders.update(info.name for info in response.groups if info.leader_address == address)
            return leaders >= groups.keys()

        await self._nodes.survey(self.cache.node_addresses(groups), [], enough)
        return {name: self.groups.get(name, group) for name, group in groups.items()}

    # Leaders

    async def call_leader(
        self,
        group: str,
        method: UnaryMethod[Request, Response],
        request: Request,
        *,
        deadline_ms: int,
        again: Request | None = None,
        done: Callable[[DledgerError], Response | None] | None = None,
        lost: list[DledgerError] | None = None,
    ) -> Response:
        """Call ``method`` at the leader of ``group``, wherever it is, until the deadline.

        ``again`` is sent in place of ``request`` after an attempt with an unknown outcome: the form that does no harm when done already.
        ``done`` is for requests that have no such form: it returns the answer if the error of a later attempt says that nothing is left to
        do, else None.  ``lost`` takes the error of the last attempt that may have been carried out.
        """
        return await self._calls.call(group, method, request, deadline_ms=deadline_ms, again=again, done=done, lost=lost)

    # Topics

    async def topic(self, name: str, deadline_ms: int, *, fresh: bool = False) -> list[TopicQueues]:
        """The queues of a topic, by replica group.  Raises TopicNotFoundError as soon as the nodes that must know say that there is none.

        ``fresh``: what is known already does not count.
        """
        if not fresh and name in self.cache.topics:
            return self.cache.topics[name]
        check_topic(name)
        async for attempt in until(deadline_ms, self.clock, self.random):
            with attempt:
                found = await self._look_up(name, max(LEAST_LOOK_UP_MS, deadline_ms - self.clock.monotonic_ms()))
                self.route_watch.topic(name)
                return found
        raise NotReadyError(f"topic {name}: no attempt was made before the deadline")

    async def _look_up(self, name: str, timeout_ms: int) -> list[TopicQueues]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.lookup.look_up(name)
        except TimeoutError:  # asking several silent nodes one by one takes longer than some deadlines
            raise DeadlineExceededError(f"topic {name}: no answer in time from {', '.join(self._nodes.addresses())}") from None

    async def groups_of(self, topics: Iterable[str]) -> set[str] | None:
        """The replica groups that have any of the topics; None while no name server that knows all groups answers."""
        found = await asyncio.gather(*(self.lookup.at_name_server(topic) for topic in topics))
        whole = [queues for queues in found if queues is not None]
        return {each.replica_group for queues in whole for each in queues} if len(whole) == len(found) else None

    def check_seen(self, topics: Iterable[str]) -> None:
        """PermissionDeniedError for a topic that this client may not know of."""
        for topic in topics:
            if topic in self.cache.unseen:
                raise may_not(self.cache.unseen[topic], "read", topic)

    async def route(self, topic: str, deadline_ms: int) -> tuple[str, routes_pb2.RoutesReply | None]:
        """The source of a topic's routes, and what a name server says of it now; None when nodes answer.  What is known is current then.

        Raises TopicNotFoundError.
        """
        await self.topic(topic, deadline_ms, fresh=True)
        address = self._names.current
        try:
            request = routes_pb2.RoutesRequest(topics=[routes_pb2.KnownRoute(name=topic)])
            return address, await self._names.poll(request)
        except DledgerError:
            return self._nodes.answered_last, None

    def forget_topic(self, name: str) -> None:
        """Look the topic up again at its next use."""
        self.route_watch.forget_topic(name)
        self._answers.forget(name)
        self.cache.topics.pop(name, None)
