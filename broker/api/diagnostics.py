"""The Diagnostics service of a node: why its leaders changed, what it holds and is set to, and which messages wait for their time.

Owns the answers; every node gives its own, whatever its role.  Nothing here writes, and everything is bounded.
"""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

from broker.config.alarm_limits import with_limits
from broker.config.cluster_file import ClusterConfig
from broker.config.model import ConfigModel
from broker.context import ServiceContext
from broker.delivery.waiting_messages import WaitingMessages
from broker.leadership.leader_history import LeaderHistory
from broker.process import audit_file
from broker.support.limits import in_slices
from broker.support.messages import message_of
from broker.support.process_stats import ProcessStats
from dledger.log import quarantine
from dledger.log.segment import UNITS_FOLDER
from dledger.runtime.env import space_of
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.frames.frame import Frame
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.append.redelivery import real_message
from store.commands.security import Action
from store.durability.snapshots import CONFIG_FOLDER
from store.key_index.index_file import INDEX_FOLDER
from store.queues.queue_files import QUEUE_FOLDER

DEFAULT_LISTED = 100
MAX_LISTED = 1_000
FOLDERS = (LOG_FOLDER, UNITS_FOLDER, QUEUE_FOLDER, INDEX_FOLDER, CONFIG_FOLDER, SNAPSHOT_FOLDER, quarantine.FOLDER, audit_file.FOLDER)
LIBRARIES = ("grpcio", "protobuf", "numpy", "uvloop", "pydantic", "cryptography", "structlog")
# The blocks of the cluster file that are shown; what is not named here might be secret.
SHOWN = ("cluster", "name_service", "replicas", "raft", "store", "broker", "metrics", "console")
SETTINGS_AT_ONCE = 50
SHOWN_OF_SECURITY = ("limits", "audit")
SHOWN_OF_TLS = ("min_version", "client_auth", "step")


class DiagnosticsService:
    """Answers of one node."""

    def __init__(self, context: ServiceContext, process: Callable[[], ProcessStats], history: LeaderHistory) -> None:
        self._context, self._process, self._history = context, process, history
        self._waiting = WaitingMessages(context)
        self._started_at_ms = context.env.clock.wall_ms()

    def register(self, server: Server) -> None:
        methods.TOPIC_TRAFFIC.serve(server, self.topic_traffic)
        methods.LEADER_HISTORY.serve(server, self.leader_history)
        methods.NODE_DETAILS.serve(server, self.node_details)
        methods.WAITING_DELAYS.serve(server, self.waiting_delays)

    async def topic_traffic(self, _request: diagnostics_pb2.TopicTrafficRequest, caller: CallContext) -> diagnostics_pb2.TopicTrafficReply:
        context, own = self._context, self._context.settings
        reply = diagnostics_pb2.TopicTrafficReply(group=own.group.name, node=own.node.id, started_at_ms=self._started_at_ms)
        async for topic, counts in in_slices(list(context.store.traffic.topics.items())):
            if context.access.may_topic(caller.principal, Action.DESCRIBE, topic):
                messages_in, bytes_in, messages_out, bytes_out = counts.values
                reply.topics.add(topic=topic, messages_in=messages_in, bytes_in=bytes_in, messages_out=messages_out, bytes_out=bytes_out)
        return reply

    async def leader_history(
        self, request: diagnostics_pb2.LeaderHistoryRequest, _caller: CallContext
    ) -> diagnostics_pb2.LeaderHistoryReply:
        settings = self._context.settings
        reply = diagnostics_pb2.LeaderHistoryReply(group=settings.group.name, node=settings.node.id)
        for change in self._history.changes(request.max_changes):
            reply.changes.append(message_of(diagnostics_pb2.LeaderChange, change))
        return reply

    # What the node holds and is set to

    async def node_details(self, _request: diagnostics_pb2.NodeDetailsRequest, _caller: CallContext) -> diagnostics_pb2.NodeDetailsReply:
        settings, disk, process = self._context.settings, self._context.env.disk, self._process()
        space = await space_of(disk)
        reply = message_of(
            diagnostics_pb2.NodeDetailsReply,
            process,
            group=settings.group.name,
            node=settings.node.id,
            machine_memory_bytes=process.memory_bytes,
            disk_free_bytes=space.free_bytes,
            disk_total_bytes=space.total_bytes,
            versions=await _versions(process),
            started_at_ms=self._started_at_ms,
            data_folder=disk.local_path(""),
        )
        for folder in FOLDERS:
            size = await disk.measure(folder)
            if size.files:
                reply.files.add(kind=folder, count=size.files, bytes=size.size_bytes, oldest_ms=size.oldest_ms)
        size = await disk.measure("", below=False)
        reply.files.add(kind="other", count=size.files, bytes=size.size_bytes, oldest_ms=size.oldest_ms)
        async for name, value in in_slices(
            settings_in_force(with_limits(settings.cluster, self._context.store.replica_group.settings.limits)), SETTINGS_AT_ONCE
        ):
            reply.settings.add(name=name, value=value)
        return reply

    # Messages that wait

    async def waiting_delays(
        self, request: diagnostics_pb2.WaitingDelaysRequest, caller: CallContext
    ) -> diagnostics_pb2.WaitingDelaysReply:
        context, listed = self._context, min(request.max_messages or DEFAULT_LISTED, MAX_LISTED)
        may_read = partial(context.access.may_topic, caller.principal, Action.READ)
        timers = await self._waiting.timers(MAX_LISTED)
        own = context.settings
        reply = diagnostics_pb2.WaitingDelaysReply(group=own.group.name, node=own.node.id, timed=timers.waiting, exact=timers.exact)
        reply.replica.CopyFrom(context.answering_replica())
        if len(timers.due):
            reply.timed_next_due_ms = int(timers.due[0])

        async def timed(count: int) -> list[_Row]:
            return [_waiting(frame, 0, due_ms) for due_ms, frame in await self._waiting.frames_of(timers, count)]

        async def delayed(level: int, count: int) -> list[_Row]:
            return [_waiting(frame, level, self._waiting.due_ms(level, frame)) for frame in await self._waiting.of_level(level, count)]

        # Bodies go as soon as a level was read: all levels together may be large.
        found = await _readable(timed, listed, may_read)
        for each in await self._waiting.levels():
            reply.levels.add(level=each.level, delay_ms=each.delay_ms, waiting=each.waiting, next_due_ms=each.next_due_ms)
            if each.waiting:
                found += await _readable(partial(delayed, each.level), listed, may_read)
        reply.messages.extend(sorted(found, key=lambda row: (row.due_ms, row.level))[:listed])
        return reply


_Row = diagnostics_pb2.WaitingMessage | None


async def _readable(
    first: Callable[[int], Awaitable[list[_Row]]], listed: int, may_read: Callable[[str], bool]
) -> list[diagnostics_pb2.WaitingMessage]:
    """Those among the first messages that the caller may read; where that leaves less than ``listed``, more of them are looked at."""
    found: list[diagnostics_pb2.WaitingMessage] = []
    for count in dict.fromkeys((listed, MAX_LISTED)):
        rows = await first(count)
        found = [row for row in rows if row is not None and may_read(row.topic)]
        if len(found) >= listed or len(rows) < count:
            break
    return found


def _waiting(frame: Frame, level: int, due_ms: int) -> diagnostics_pb2.WaitingMessage | None:
    """None when the message does not name the topic that it is for."""
    real = real_message(frame)
    if real is None:
        return None
    names = real.properties
    key, message_id = names.get("KEYS", ""), names.get("UNIQ_KEY", "")
    return diagnostics_pb2.WaitingMessage(topic=real.topic, key=key, message_id=message_id, due_ms=due_ms, level=level)


async def _versions(process: ProcessStats) -> dict[str, str]:
    found = {"dledger": process.version, "python": platform.python_version()}
    async for name in in_slices(LIBRARIES, 1):  # each is looked up in files the first time
        if number := _installed(name):
            found[name] = number
    return found


@cache
def _installed(name: str) -> str:
    """Its version, empty when it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def settings_in_force(cluster: ClusterConfig) -> Iterator[tuple[str, str]]:
    """The settings that say how the cluster's nodes work, by their names in the cluster file, defaults included; none of them is secret."""
    yield from _flat("", _chosen(cluster, SHOWN))
    security = cluster.security
    if security is not None:
        yield from _flat("security.", _chosen(security, SHOWN_OF_SECURITY))
        if security.tls is not None:
            yield from _flat("security.tls.", _chosen(security.tls, SHOWN_OF_TLS))
        if security.users is not None:
            yield from _flat("security.users.", _chosen(security.users, ("required",)))


def _chosen(model: ConfigModel, names: Iterable[str]) -> Mapping[str, object]:
    return {name: getattr(model, name) for name in names if name in model.names()}


def _flat(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, ConfigModel):
            yield from _flat(f"{prefix}{name}.", _chosen(value, value.names()))
        else:
            yield f"{prefix}{name}", "" if value is None else str(value)
