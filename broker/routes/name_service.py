"""The name service as nodes and clients call it: Register, Routes, Directory.

Owns the answers and the long polls; the table has what they say.  A name server runs it, and so does every node: for its own replica group,
and for all groups where the cluster has no name servers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from broker.routes.directory import directory_reply
from broker.routes.encoding import Route, unseen_topic
from broker.routes.route_table import Change, RouteTable
from broker.routes.route_waiters import RouteWaiters, RouteWatch
from broker.support.limits import at_most
from broker.support.messages import message_of
from broker.support.process_stats import ProcessStats
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import Clock
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.names import is_node_name
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security.principal import Kind, Principal

MAX_WAIT_MS = 60_000
TURN_NAMES = 200  # looked up before other requests are served
MAX_GROUPS = 10_000  # a bound on what strangers could fill the memory with


@dataclass(slots=True)
class Figures:
    """What this process did since its start."""

    registrations: int = 0
    refused_registrations: int = 0
    routes_requests: int = 0
    routes_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """The answering process: ``server_id`` is empty for a node; ``is_name_server`` False for a node that knows its own replica group only;
    ``configured`` has the ids of the nodes that the cluster file names, by replica group."""

    cluster: str
    name_servers: Sequence[str]
    max_message_bytes: int
    server_id: str = ""
    is_name_server: bool = True
    configured: Mapping[str, frozenset[str]] = field(default_factory=dict)


class NameService:
    """``before_answer`` brings the table up to date with what the process itself knows; ``spread`` gets what other servers may not know."""

    def __init__(self, table: RouteTable, place: ServicePlace, clock: Clock, *, process: Callable[[], ProcessStats] = ProcessStats) -> None:
        self.table = table
        self.place = place
        self.figures = Figures()
        self.before_answer: Callable[[], None] = lambda: None
        self.spread: Callable[[routes_pb2.Registration], None] = lambda _registrations: None
        self.servers: Callable[[], list[routes_pb2.NameServerRow]] = list
        self.name_servers: Callable[[], Sequence[str]] = lambda: place.name_servers
        self.sees: Callable[[Principal, str], bool] = lambda _caller, _topic: True  # whether a caller may know of a topic
        self._clock = clock
        self._process = process
        self._waiters = RouteWaiters()
        self._stopped = False
        self._started_at_ms = clock.wall_ms()

    def register(self, server: Server) -> None:
        methods.REGISTER.serve(server, self.take_registration)
        methods.ROUTES.serve_payload(server, self.routes)
        methods.DIRECTORY.serve(server, self.directory)

    @property
    def waiting_clients(self) -> int:
        """How many clients wait for a change of a route."""
        return len(self._waiters)

    def stop(self) -> None:
        """Answer all waiting callers; none waits any more."""
        self._stopped = True
        self._waiters.wake_all()

    # Registrations

    async def take_registration(self, registration: routes_pb2.Registration, caller: CallContext) -> routes_pb2.RegisterReply:
        self._check_caller(registration, caller.principal)
        return self.registered(registration)

    def _check_caller(self, registration: routes_pb2.Registration, principal: Principal) -> None:
        """NotReadyError for a node that is not known as one of the group: by the cluster file, with a certificate of the group, or by what
        the members sent.  A term or members of its own making would take the routes away from the others."""
        if principal.kind is not Kind.NODE or not registration.group:
            return
        configured, group = self.place.configured.get(registration.group), self.table.group(registration.group)
        by_file = principal.group == registration.group and (configured is None or registration.node_id in configured)
        if not by_file and (group is None or registration.node_id not in {member.id for member in group.members}):
            raise NotReadyError(f"{registration.node_id} is not known here as a node of replica group {registration.group}")

    def registered(self, registration: routes_pb2.Registration) -> routes_pb2.RegisterReply:
        """Take a node's registration, and return what the table makes of it."""
        self._check(registration)
        self.figures.registrations += 1
        change = self.table.register(registration, self._clock.monotonic_ms())
        if not change.accepted:
            self.figures.refused_registrations += 1
        self.changed(change)
        if change.spread:
            self.spread(registration)
        group = self.table.group(registration.group)
        return routes_pb2.RegisterReply(
            accepted=change.accepted,
            group_term=0 if group is None else group.fence,
            wants_topics=change.wants_topics,
            directory_version=self.table.directory_version,
            topics_version=0 if group is None else group.topics_version,
        )

    def changed(self, change: Change) -> None:
        """Wake the callers that wait for it, in the same order in every process."""
        if change:
            self._waiters.wake(sorted(change.topics), sorted(change.groups))

    def hint(self, group: str, term: int, leader: str) -> None:
        """What the process itself knows of a group from its own replica; see ``RouteTable.hint``."""
        self.changed(self.table.hint(group, term, leader))

    def expire(self) -> None:
        """Expire rows that are not repeated; to be called about once a second."""
        self.changed(self.table.expire(self._clock.monotonic_ms()))

    def _check(self, registration: routes_pb2.Registration) -> None:
        if registration.cluster != self.place.cluster:
            raise InvalidArgumentError(f"this is the name service of cluster {self.place.cluster}, not of {registration.cluster}")
        if not is_node_name(registration.node_id) or (registration.group and not is_node_name(registration.group)):
            raise InvalidArgumentError(
                f"a registration of node {registration.node_id!r} of replica group {registration.group!r}: expected names"
            )
        if registration.group and self.table.known_groups >= MAX_GROUPS and not self.table.knows(registration.group):
            raise InvalidArgumentError(f"more than {MAX_GROUPS} replica groups")

    # Routes

    async def routes(self, request: routes_pb2.RoutesRequest, caller: CallContext) -> bytes:
        """What changed of the topics and groups asked for, as a RoutesReply; waits for a change as the request says."""
        at_most(len(request.topics) + len(request.groups), "topics and groups")
        topics = {each.name: each.version for each in request.topics}
        groups = {each.name: each.version for each in request.groups}
        deadline_ms = self._clock.monotonic_ms() + min(request.wait_ms, MAX_WAIT_MS)
        self.figures.routes_requests += 1
        watch = self._waiters.watch()
        try:
            while True:
                self.before_answer()
                watch.changed.clear()
                changed = await self._changed_routes(topics, groups, caller.principal, watch)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if changed or left_ms <= 0 or self._stopped:
                    data = b"".join((self._head(), *(route.data for route in changed)))
                    self.figures.routes_bytes += len(data)
                    return data
                if not await watch.wait(left_ms / 1000):
                    deadline_ms = 0
        finally:
            watch.close()

    async def _changed_routes(
        self, topics: Mapping[str, int], groups: Mapping[str, int], caller: Principal, watch: RouteWatch
    ) -> list[Route]:
        """What is new to a caller with these versions; of a topic that the caller may not know of only that.

        Other requests are served in between: each route is of the moment when it is looked at, and watched from then on.
        """
        table, found, places = self.table, list[Route](), dict.fromkeys(groups)
        async for name in _by_turns(topics):
            watch.add("topic", name)
            is_seen = self.sees(caller, name)
            route = table.topic_route(name) if is_seen else unseen_topic(name, str(caller))
            if is_seen:
                places.update(dict.fromkeys(table.groups_of(name)))
            if route.version != topics[name]:
                found.append(route)
        async for name in _by_turns(places):
            watch.add("group", name)
            route = table.group_route(name)
            if route.version != groups.get(name, 0):
                found.append(route)
        return found

    def _head(self) -> bytes:
        """The fields of a RoutesReply beside routes."""
        place = self.place
        head = routes_pb2.RoutesReply(
            cluster=place.cluster,
            complete=place.is_name_server and self.table.is_complete,
            name_servers=self.name_servers(),
            max_message_bytes=place.max_message_bytes,
            is_name_server=place.is_name_server,
        )
        data: bytes = head.SerializeToString()
        return data

    # Directory

    @property
    def directory_version(self) -> int:
        return self.table.directory_version

    async def directory(self, request: routes_pb2.DirectoryRequest, _caller: CallContext) -> routes_pb2.DirectoryReply:
        whole = self.whole_directory(request.known_version)
        if not request.names_only:
            return whole
        names = routes_pb2.DirectoryReply(cluster=whole.cluster, version=whole.version, unchanged=whole.unchanged, complete=whole.complete)
        for group in whole.groups:
            names.groups.add(name=group.name, state=group.state)
        return names

    def whole_directory(self, known_version: int = 0) -> routes_pb2.DirectoryReply:
        """Everything that is known, unless that is still what ``known_version`` was."""
        self.before_answer()
        reply = directory_reply(self.table, self._clock.monotonic_ms(), known_version)
        reply.cluster, reply.complete = self.place.cluster, self.place.is_name_server and self.table.is_complete
        reply.name_servers.extend(self.servers())
        figures, process = self.figures, self._process()
        reply.figures.CopyFrom(
            message_of(
                routes_pb2.NameServerFigures,
                figures,
                id=self.place.server_id,
                topics=self.table.topic_count,
                waiting_clients=len(self._waiters),
                rss_bytes=process.rss_bytes,
                cpu_s=process.cpu_s,
                started_at_ms=self._started_at_ms,
            )
        )
        return reply


async def _by_turns(names: Collection[str]) -> AsyncIterator[str]:
    """These names, with a turn of the loop before each ``TURN_NAMES`` of them when they are more."""
    for number, name in enumerate(names):
        if number % TURN_NAMES == 0 and len(names) > TURN_NAMES:
            await asyncio.sleep(0)
        yield name
