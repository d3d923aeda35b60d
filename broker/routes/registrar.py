"""Registers a node with the name servers of its cluster, at each change and every few seconds, and learns the other replica groups.

Owns the links to name servers and the node's own name service.  That one gets it by a call, so what it says of the node's own replica
group is never older than what the node itself knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from broker.context import ServiceContext
from broker.routes.known_groups import KnownGroups
from broker.routes.name_server_link import NameServerLink
from broker.routes.own_registration import OwnRegistration
from broker.support.process_stats import ProcessStats
from dledger.runtime.env import Environment, space_of
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.tasks import BackgroundTasks
from store.commands.replica_group import SetReplicaGroup

ACKNOWLEDGED_S = 1.0  # the longest that a change of topics waits for name servers
DIRECTORY_TIMEOUT_S = 3.0
CHECK_S = 1.0
LOOK_S = 2.0  # how often is looked for name servers that were added
COMMAND_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class OwnNameService(Protocol):
    """The name service of this node."""

    @property
    def directory_version(self) -> int: ...

    def registered(self, registration: routes_pb2.Registration) -> routes_pb2.RegisterReply: ...
    def whole_directory(self, known_version: int = 0) -> routes_pb2.DirectoryReply: ...
    def hint(self, group: str, term: int, leader: str) -> None: ...
    def expire(self) -> None: ...


class Registrar:
    """Of one node: ``start`` it once, ``stop`` it once.  ``env`` is the machine's: rows expire by its clock.

    ``added``: returns the addresses of name servers that may have been added since the node was started.
    """

    def __init__(
        self,
        context: ServiceContext,
        env: Environment,
        process: Callable[[], ProcessStats],
        service: OwnNameService,
        failed: Callable[[BaseException], object],
        added: Callable[[], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self._context = context
        self._added, self._look_for_added = list[str](), added
        self._env = env
        self._service = service
        self._settings = context.settings
        self.groups = KnownGroups(context.settings.cluster)
        self._own = OwnRegistration(context, process, context.raft.started_at_ms)
        self._registered_own = -1  # version of the table of topics that the own name service has; -1: none that it took
        self._tasks = BackgroundTasks("registration", failed)
        self._links: dict[str, NameServerLink] = {}
        self._scheduled = False
        self._running = False
        self._asking = False
        self._setting_epoch = False
        self._logged_stale = ""  # of the name service's nodes

    # Life

    def start(self) -> None:
        self._running = True
        self._context.store.topics.changed = self._topic_changed
        self._context.store.replica_group.changed = self.touch
        self._context.raft.on_members(self.touch)
        self.refresh()
        self._tasks.spawn(self._repeat(), "repeat")
        self._tasks.spawn(self._watch_disk(), "watch disk")
        if self._look_for_added is not None:
            self._tasks.spawn(self._take_added(self._look_for_added), "added name servers")
        self._connect()

    async def stop(self) -> None:
        """Register no more.  Idempotent."""
        self._running = False
        await self._tasks.stop()
        links, self._links = self._links, {}
        for link in links.values():
            link.give_up()
            await link.channel.close()

    # What changes

    def _topic_changed(self, name: str) -> None:
        self._own.topic_changed(name)
        self.touch()

    def touch(self) -> None:
        """Something that is registered may have changed: look, once the current step is over."""
        if self._running and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._refresh_scheduled)

    def _refresh_scheduled(self) -> None:
        self._scheduled = False
        if self._running:
            self.refresh()

    def refresh(self) -> None:
        """Register what changed: with the own name service at once, the others as soon as they can be reached."""
        if not self._running:
            return
        changed = self._own.refresh()
        if changed or self._registered_own not in (-1, self._own.topics_version):
            self._register_own()
        raft = self._context.raft
        leader = raft.leader if raft.leader != self._settings.node.id else None
        self._service.hint(self._settings.group.name, raft.term, leader or "")
        if changed:
            for link in self._links.values():
                link.changed()

    def _register_own(self) -> None:
        """By a call; with the topics when they changed."""
        version = self._own.topics_version
        registration = self._own.message(None if self._registered_own == version else self._registered_own)
        reply = self._service.registered(registration)
        if reply.wants_topics:
            reply = self._service.registered(self._own.message(-1))
        self._check(registration, reply)
        self._registered_own = version if reply.accepted else -1

    def _check(self, registration: routes_pb2.Registration, reply: routes_pb2.RegisterReply) -> None:
        """A name server that knows more of the group than its master does, has it from an earlier group of that name."""
        is_other = not reply.accepted or reply.topics_version > registration.topics_version
        if registration.master and not registration.group_epoch and is_other and not self._setting_epoch:
            self._setting_epoch = True
            self._tasks.spawn(self._set_epoch(), "epoch")

    async def _set_epoch(self) -> None:
        """The epoch sets the group apart from earlier ones.  A deposed master does not know it yet: its command is not committed."""
        try:
            await self._context.command(SetReplicaGroup(), COMMAND_TIMEOUT_S)
            _logger.info("name servers know an earlier replica group %s, which has another epoch", self._settings.group.name)
        except DledgerError as error:
            _logger.debug("epoch not set: %s", error.message)  # the next registration tries again
        finally:
            self._setting_epoch = False

    # Name servers

    def name_servers(self) -> list[str]:
        """Addresses where nodes register and clients ask for routes."""
        cluster = self._settings.cluster
        known = self.groups.addresses_of(cluster.groups[0].name) if cluster.nodes_serve_names else cluster.registration_addresses
        return [*known, *(address for address in self._added if address not in known)]

    def _connect(self) -> None:
        """A link for every name server but this node itself."""
        for address in self.name_servers():
            if address not in self._links and address != self._settings.node.address and self._running:
                interval_ms = self._settings.cluster.name_service.registerInterval
                channel = self._env.network.connect(address)
                link = NameServerLink(address, channel, self._own, self._env.random, interval_ms, self._answered, self._check)
                self._links[address] = link
                self._tasks.spawn(link.run(), f"register at {address}")

    async def _take_added(self, look: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Register with name servers that were added, as well."""
        while True:
            known = self.name_servers()
            added = [address for address in await look() if address not in known]
            if added:
                self._added += added
                _logger.info("registers with added name servers: %s", ", ".join(added), extra={"event": "name_servers_added"})
                self._connect()
            await asyncio.sleep(LOOK_S)

    async def _repeat(self) -> None:
        """Report this node as alive to the own name service, and let it expire others."""
        interval_s = self._settings.cluster.name_service.registerInterval / 1000
        registered_ms = self._env.clock.monotonic_ms()
        while True:
            await asyncio.sleep(min(CHECK_S, interval_s))
            self.refresh()
            if self._env.clock.monotonic_ms() - registered_ms >= interval_s * 900:
                registered_ms = self._env.clock.monotonic_ms()
                self._register_own()
            self._service.expire()
            if self._settings.runs_name_service and self._service.directory_version != self.groups.version:
                self._take(self._service.whole_directory(self.groups.version))

    async def _watch_disk(self) -> None:
        """A task of its own: a disk that hangs does not keep the node from registering."""
        disk = self._env.disk
        while True:
            try:
                self._own.disk_used_percent = (await space_of(disk)).used_percent
            except OSError:
                self._own.disk_used_percent = 0.0
            await asyncio.sleep(self._settings.cluster.name_service.registerInterval / 1000)

    def _answered(self, link: NameServerLink) -> None:
        """A name server has another directory than this node: ask for it, one at a time."""
        if self._settings.runs_name_service or self._asking or link.directory_version == self.groups.version:
            return
        source = next((each for each in self._links.values() if each.is_alive), link)
        if link is source:
            self._asking = True
            self._tasks.spawn(self._ask_directory(link), "directory")

    async def _ask_directory(self, link: NameServerLink) -> None:
        try:
            request = routes_pb2.DirectoryRequest(known_version=self.groups.version)
            self._take(await methods.DIRECTORY.call(link.channel, request, timeout_s=DIRECTORY_TIMEOUT_S))
        except DledgerError:
            return  # the next registration shows whether it is still another one
        finally:
            self._asking = False

    def _take(self, directory: routes_pb2.DirectoryReply) -> None:
        if not directory.unchanged:
            self.groups.take(directory)
            self._connect()
            if directory.complete:
                self._warn_of_stale_name_servers()

    def _warn_of_stale_name_servers(self) -> None:
        """A process that starts knows the name service by its cluster file only."""
        if not self._settings.cluster.nodes_serve_names:
            return
        first = self._settings.cluster.groups[0].name
        stale = ", ".join(f"{node.id} at {node.address}" for node in self.groups.stale_nodes_of(first))
        if stale != self._logged_stale:
            self._logged_stale = stale
            if stale:
                now = ", ".join(f"{node.id} at {node.address}" for node in self.groups.nodes_of(first) if node.member)
                _logger.warning(
                    "the cluster file is stale: replica group %s, which serves the names, has lost %s; it has %s",
                    first,
                    stale,
                    now,
                    extra={"event": "cluster_file_stale"},
                )

    async def directory(self) -> routes_pb2.DirectoryReply | None:
        """All replica groups now, as the own name service or a name server has them; None when none knows of all."""
        if self._settings.runs_name_service:
            found = self._service.whole_directory()
            return found if found.complete else None
        for link in [each for each in self._links.values() if each.is_alive]:
            try:
                reply = await methods.DIRECTORY.call(link.channel, routes_pb2.DirectoryRequest(), timeout_s=DIRECTORY_TIMEOUT_S)
            except DledgerError:
                continue
            if reply.complete:
                return reply
        return None

    # Turns

    def ask_turn(self, *, asks: bool) -> None:
        """Report to name servers that the own group wants to take a spare node in, or does not any more."""
        if self._own.asks_turn != asks:
            self._own.asks_turn = asks
            self.refresh()

    async def ask_majority(self) -> list[routes_pb2.DirectoryReply] | None:
        """What a majority of the name servers says, each of which has this node's newest registration; None: no majority has or answers.

        Of two nodes that call this, at least one sees what the other one registered: two majorities share a name server.
        """
        self.refresh()
        own, servers = self._settings.node.address, set(self._current_name_servers())
        links = [link for link in self._links.values() if link.address in servers and link.is_alive]
        links = [link for link in links if link.registered_sequence >= self._own.sequence]
        found = [self._service.whole_directory()] if self._settings.runs_name_service and own in servers else []
        if 2 * (len(links) + len(found)) <= len(servers):
            return None
        calls = [methods.DIRECTORY.call(link.channel, routes_pb2.DirectoryRequest(), timeout_s=DIRECTORY_TIMEOUT_S) for link in links]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, routes_pb2.DirectoryReply):
                found.append(answer)
            elif not isinstance(answer, DledgerError):
                raise answer
        known = set(self.groups)
        found = [each for each in found if each.complete or known <= {group.name for group in each.groups if group.nodes}]
        return found if 2 * len(found) > len(servers) else None

    def _current_name_servers(self) -> list[str]:
        """The voters of the first group, without nodes that only the cluster file names or that were removed."""
        cluster = self._settings.cluster
        if not cluster.nodes_serve_names:
            return cluster.registration_addresses
        return [node.address for node in self.groups.nodes_of(cluster.groups[0].name) if node.voter]

    # Waiting for name servers

    async def topics_registered(self) -> None:
        """Return when the name servers that answer have the table of topics as it is here now, at the latest after a second."""
        self.refresh()
        version = self._own.topics_version
        behind = [link for link in self._links.values() if link.is_alive and link.acknowledged < version]
        if not behind or not self._own.is_master:
            return
        waiting = {asyncio.ensure_future(link.has_topics(version)): link for link in behind}
        _done, late = await asyncio.wait(waiting, timeout=ACKNOWLEDGED_S)
        for task in late:
            waiting[task].is_alive = False  # no caller waits for it again before it answers
            task.cancel()
