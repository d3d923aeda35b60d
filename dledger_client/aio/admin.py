"""Topics, groups, dead letters and single messages, for asyncio: what is asked of the cluster beside sending and consuming."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dledger_client.admin.dead_letters import DeadLetters, list_dead_letters, redrive
from dledger_client.admin.message_query import QueryResult, query_by_id, query_by_key, query_by_time
from dledger_client.admin.message_trace import Trace, trace
from dledger_client.admin.open_transactions import GroupTransactions, describe_transactions
from dledger_client.aio.consumer import PullConsumer
from dledger_client.cluster.follower_reads import CommittedState
from dledger_client.cluster.metadata import Bootstrap, TopicQueues, parse_bootstrap
from dledger_client.cluster.responses import parse
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.environment import environment_for, takes_old_environment
from dledger_wire._pb import admin_pb2, broker_pb2, retry_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node's own word; ``reachable`` False when it gave none."""

    group: str
    id: str
    address: str
    reachable: bool
    role: str = ""
    term: int = 0
    last_index: int = 0
    committed_index: int = 0
    applied_index: int = 0


class Admin:
    """What an application needs to manage its topics."""

    @takes_old_environment
    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        timeout_ms: int = 10_000,
    ) -> None:
        parse_bootstrap(bootstrap)
        self._environment = environment_for(bootstrap)
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self._timeout_ms = timeout_ms
        self._router = self._environment.open_router(bootstrap)
        self._committed_state = CommittedState(self._router)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._router.close()

    def _deadline_ms(self) -> int:
        return self._router.clock.monotonic_ms() + self._timeout_ms

    async def create_topic(
        self,
        name: str,
        queues: int = 0,
        *,
        read_queues: int = 0,
        write_queues: int = 0,
        perm: int = 0,
        group: str = "",
        if_not_exists: bool = False,
    ) -> TopicQueues:
        """Create a topic; zeros mean the cluster's defaults.  TopicExistsError unless ``if_not_exists``."""
        within(0, MAX_U32, queues=queues, read_queues=read_queues, write_queues=write_queues, perm=perm)
        spec = admin_pb2.TopicSpec(
            name=name,
            read_queues=read_queues or queues,
            write_queues=write_queues or queues,
            perm=perm,
            if_not_exists=if_not_exists,
            group=await self._one_group(group),
        )
        again = admin_pb2.TopicSpec()
        again.CopyFrom(spec)
        again.if_not_exists = True
        return await self._change(methods.CREATE_TOPIC, spec, again)

    async def update_topic(
        self, name: str, *, read_queues: int = 0, write_queues: int = 0, perm: int = 0, group: str = "", force: bool = False
    ) -> TopicQueues:
        """Change what is given of a topic; zeros keep what is.  Queues go in two steps, ``write_queues`` first: UnsafeShrinkError."""
        group = group or await self._group_with(name)
        within(0, MAX_U32, read_queues=read_queues, write_queues=write_queues, perm=perm)
        spec = admin_pb2.TopicSpec(name=name, read_queues=read_queues, write_queues=write_queues, perm=perm, group=group, force=force)
        return await self._change(methods.UPDATE_TOPIC, spec, spec)

    async def delete_topic(self, name: str, *, group: str = "") -> None:
        """Delete a topic and its messages."""
        spec = admin_pb2.TopicSpec(name=name, group=group or await self._group_with(name))
        await self._change(methods.DELETE_TOPIC, spec, None)

    async def list_topics(self, *, or_followers: bool = False) -> list[TopicQueues]:
        """All topics, by name.  ``or_followers``: while a group has no leader, those its followers know."""
        request, found = broker_pb2.MetadataRequest(all_topics=True).SerializeToString(), list[TopicQueues]()
        for group in await self._router.ensure_groups(self._deadline_ms()):
            # The leader's word: other replicas may lag behind a topic just made.
            if or_followers:
                kind = broker_pb2.MetadataResponse
                answer = await self._committed_state.ask(
                    group, methods.METADATA.path, request, kind, lambda answer: int(answer.version), self._deadline_ms()
                )
            else:
                told = await self._router.call_leader(group, methods.METADATA.path, request, deadline_ms=self._deadline_ms())
                answer = parse(broker_pb2.MetadataResponse, told, group)
            found += [
                TopicQueues(topic.name, topic.group, topic.read_queues, topic.write_queues, topic.perm, "") for topic in answer.topics
            ]
        return sorted(found, key=lambda topic: (topic.topic, topic.replica_group))

    async def describe_topic(self, name: str) -> list[TopicQueues]:
        """A topic's queues, group by group.  TopicNotFoundError."""
        return await self._router.topic(name, self._deadline_ms(), fresh=True)

    async def status(self) -> list[NodeStatus]:
        """Every node's status; nobody is waited for longer than a second."""
        groups = await self._router.ensure_groups(self._deadline_ms())
        asked = [self._status_of(group.name, node.id, node.address) for group in groups.values() for node in group.nodes]
        return list(await asyncio.gather(*asked))

    async def _status_of(self, group: str, node_id: str, address: str) -> NodeStatus:
        try:
            answer = await self._router.channel(address).call(methods.NODE_STATUS.path, b"", timeout_s=1.0)
            found = parse(admin_pb2.NodeStatusReply, answer, address)
        except DledgerError:
            return NodeStatus(group, node_id, address, reachable=False)
        return NodeStatus(
            group, node_id, address, True, found.role, found.term, found.last_index, found.committed_index, found.applied_index
        )

    async def dead_letters(self, consumer_group: str = "") -> list[DeadLetters]:
        """The dead letters of a consumer group, or of all, replica group by replica group."""
        return await list_dead_letters(self._router, consumer_group, self._deadline_ms())

    async def redrive(
        self,
        letters: DeadLetters,
        *,
        count: int = 0,
        rate: float = 0,
        to_retry_topic: bool = False,
        told: Callable[[int], object] | None = None,
    ) -> int:
        """Send dead letters to their original topic, or to their group alone; see ``dledger_client.admin.dead_letters.redrive``."""
        return await redrive(self._router, letters, count=count, rate=rate, to_retry_topic=to_retry_topic, told=told)

    async def transactions(self, producer_group: str = "", *, most: int = 100) -> list[GroupTransactions]:
        """What is open, replica group by replica group: the ``most`` oldest transactions of a producer group, or of all."""
        return await describe_transactions(self._router, producer_group, most, self._deadline_ms())

    def _consumer(self) -> PullConsumer:
        with self._environment.in_use():
            return PullConsumer(self._bootstrap, timeout_ms=self._timeout_ms)

    async def query_by_key(self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = 0, max_messages: int = 32) -> QueryResult:
        """The newest messages of a topic that have ``key`` among their keys, stored from ``begin_ms`` to ``end_ms`` (0: no bound)."""
        within(0, MAX_OFFSET, begin_ms=begin_ms, end_ms=end_ms)
        within(1, MAX_U32, max_messages=max_messages)
        return await query_by_key(self._router, topic, key, begin_ms, end_ms, max_messages, self._deadline_ms())

    async def query_by_id(self, msg_id: str, topic: str = "", *, max_messages: int = 32) -> QueryResult:
        """The messages with this id, given by their producer or by their place; of all topics, the system's own too, when none is named."""
        within(1, MAX_U32, max_messages=max_messages)
        return await query_by_id(self._router, msg_id, topic, max_messages, self._deadline_ms())

    async def query_by_time(self, topic: str, begin_ms: int, end_ms: int = 0, *, max_messages: int = 32) -> QueryResult:
        """The first messages of a topic stored from ``begin_ms`` to ``end_ms`` (0: until now), oldest first."""
        within(0, MAX_OFFSET, begin_ms=begin_ms, end_ms=end_ms)
        within(1, MAX_U32, max_messages=max_messages)
        async with self._consumer() as consumer:
            return await query_by_time(consumer, topic, begin_ms, end_ms, max_messages)

    async def query_by_offset(self, topic: str, queue_id: int, offset: int, *, group: str | None = None) -> ReceivedMessage | None:
        """The message at an offset of a queue; None when there is none yet.  OffsetOutOfRangeError when it is not there any more."""
        async with self._consumer() as consumer:
            found = await consumer.fetch(topic, queue_id, offset, 1, replica_group=group)
        return found[0] if found else None

    async def trace(self, *, topic: str = "", key: str = "", msg_id: str = "", max_messages: int = 32) -> Trace:
        """What became of messages, by a topic's ``key`` or by ``msg_id``: see ``dledger_client.admin.message_trace``."""
        if bool(key) == bool(msg_id) or (key and not topic):
            raise InvalidArgumentError("expected a topic and a key, or a message id")
        within(1, MAX_U32, max_messages=max_messages)
        return await trace(self._router, topic, key, msg_id, max_messages, self._deadline_ms())

    async def group_settings(self, consumer_group: str = "", *, group: str = "") -> list[retry_pb2.GroupSettings]:
        """The settings of a consumer group, or of all that somebody configured."""
        request = retry_pb2.GroupSettings(name=consumer_group).SerializeToString()
        name = await self._one_group(group)
        answer = await self._router.call_leader(name, methods.LIST_GROUPS.path, request, deadline_ms=self._deadline_ms())
        return list(parse(retry_pb2.GroupSettingsList, answer, name).groups)

    async def update_group(self, consumer_group: str, **settings: int | bool) -> retry_pb2.GroupSettings:
        """Change settings of a consumer group in every replica group: ``retry_max_times``, ``consume_enable`` and so on."""
        known = [field.name for field in retry_pb2.GroupSettings.DESCRIPTOR.fields if field.name != "name"]
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                raise InvalidArgumentError(f"a consumer group has no setting {name!r}; expected {near[0] if near else ', '.join(known)}")
        try:
            request = retry_pb2.GroupSettings(name=consumer_group, **settings).SerializeToString()  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"settings of consumer group {consumer_group!r}: {error}") from None
        changed = retry_pb2.GroupSettings()
        for group in sorted(await self._router.ensure_groups(self._deadline_ms())):
            answer = await self._router.call_leader(group, methods.PUT_GROUP.path, request, deadline_ms=self._deadline_ms())
            changed = parse(retry_pb2.GroupSettings, answer, group)
        return changed

    async def _one_group(self, group: str) -> str:
        groups = await self._router.ensure_groups(self._deadline_ms())
        if group or len(groups) == 1:
            return group or next(iter(groups))
        raise InvalidArgumentError(f"the cluster has several replica groups; expected group, one of {', '.join(sorted(groups))}")

    async def _group_with(self, name: str) -> str:
        found = await self.describe_topic(name)
        if len(found) > 1:
            raise InvalidArgumentError(
                f"topic {name} is in several replica groups; expected group, one of {', '.join(q.replica_group for q in found)}"
            )
        return found[0].replica_group

    async def _change(
        self,
        method: methods.UnaryMethod[admin_pb2.TopicSpec, admin_pb2.TopicReply],
        spec: admin_pb2.TopicSpec,
        again: admin_pb2.TopicSpec | None,
    ) -> TopicQueues:
        repeated = again.SerializeToString() if again is not None else None
        answer = await self._router.call_leader(
            spec.group, method.path, spec.SerializeToString(), deadline_ms=self._deadline_ms(), again=repeated
        )
        self._router.forget_topic(spec.name)
        reply = parse(admin_pb2.TopicReply, answer, spec.group)
        return TopicQueues(reply.name, reply.group, reply.read_queues, reply.write_queues, reply.perm, "")
