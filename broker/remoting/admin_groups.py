"""What RocketMQ's tools ask about consumer groups: their settings, and how far they have come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.node import BrokerNode
from broker.remoting.admin_topics import times_of, topic_bounds
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import MessageQueue, answer
from broker.remoting.leader import Leader
from broker.support.limits import in_slices
from dledger_wire._pb import broker_pb2, retry_pb2, sessions_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group, group_of_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from store.commands.consumer_groups import SubscriptionGroup
from store.state.sequences import QueueKey

TOOLS_GROUP = "TOOLS_CONSUMER"  # listed always, as RocketMQ does: a tool expects that there are groups
MAX_GROUPS = 1_000  # of one request


class AdminGroups:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self._node, self._leader = node, leader
        self._broker = node.settings.group.name

    def handlers(self) -> Handlers:
        return {
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_list,
            Request.DELETE_SUBSCRIPTIONGROUP: self.delete,
            Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_configs,
            Request.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            Request.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            Request.GET_CONSUME_STATS: self.stats,
            Request.GET_BROKER_CONSUME_STATS: self.all_stats,
            Request.CLONE_GROUP_OFFSET: self.clone,
        }

    # Settings

    async def put(self, request: Command, _client: RemotingConnection) -> Command:
        await self._leader.call(methods.PUT_GROUP, settings_of(request.content()))
        return Command(Answer.SUCCESS)

    async def put_list(self, request: Command, _client: RemotingConnection) -> Command:
        rows = request.content().get("groupConfigList")
        if not isinstance(rows, list) or len(rows) > MAX_GROUPS or not all(isinstance(row, dict) for row in rows):
            raise InvalidArgumentError(f"groupConfigList: expected a list of at most {MAX_GROUPS} objects")
        for row in rows:
            await self._leader.call(methods.PUT_GROUP, settings_of(row))
        return Command(Answer.SUCCESS)

    async def delete(self, request: Command, _client: RemotingConnection) -> Command:
        """With its positions.  One that is not there is deleted: a tool asks each replica group."""
        name = check_group(request.text("groupName"))
        described = await self._leader.call(methods.DESCRIBE_MEMBERS, sessions_pb2.DescribeMembersRequest(groups=[name]))
        if ids := sorted(member.client_id for each in described.groups for member in each.members):
            raise InvalidArgumentError(f"consumer group {name} has members: {', '.join(ids)}; stop them first")
        listed = await self._leader.call(methods.LIST_GROUPS, retry_pb2.GroupSettings(name=name))
        if name in await self._known():
            await self._leader.call(methods.DELETE_GROUP, retry_pb2.GroupSettings(name=name, seen_index=listed.applied_index))
        return Command(Answer.SUCCESS)

    async def _known(self) -> dict[str, retry_pb2.GroupSettings]:
        """The groups with settings or positions."""
        listed = await self._leader.call(methods.LIST_GROUPS, retry_pb2.GroupSettings())
        positions = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest())
        return {each.group: _defaults(each.group) async for each in in_slices(positions.groups)} | {
            each.name: each for each in listed.groups
        }

    async def all_configs(self, _request: Command, _client: RemotingConnection) -> Command:
        known = {TOOLS_GROUP: _defaults(TOOLS_GROUP)} | await self._known()
        version = {"counter": self._node.store.applied_index, "stateVersion": self._leader.term[1], "timestamp": 0}
        rows = {name: _config(known[name]) async for name in in_slices(sorted(known))}
        return await answer({"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": rows})

    async def config(self, request: Command, _client: RemotingConnection) -> Command:
        """Those of a group that is not configured are the defaults."""
        name = check_group(request.text("group"))
        listed = await self._leader.call(methods.LIST_GROUPS, retry_pb2.GroupSettings(name=name))
        return await answer(_config(next(iter(listed.groups), _defaults(name))))

    async def set_mode(self, request: Command, _client: RemotingConnection) -> Command:
        """There is one mode: consumers pull."""
        mode = str(request.content().get("mode"))
        if mode != "PULL":
            return Command(Answer.REQUEST_CODE_NOT_SUPPORTED, remark=f"mode {mode[:40]} is not supported; expected PULL")
        return Command(Answer.SUCCESS)

    # Positions

    async def stats(self, request: Command, _client: RemotingConnection) -> Command:
        """Of every queue of the topics that the group has a position in, or of one of them."""
        group, only = request.text("consumerGroup"), request.text("topic", "")
        positions = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=[group], leases=True))
        rows = await self._rows(row for each in positions.groups for row in each.offsets if only in ("", row.topic))
        return await answer({"consumeTps": 0.0, "offsetTable": rows})

    async def all_stats(self, _request: Command, _client: RemotingConnection) -> Command:
        """Of all groups that have positions, topic by topic."""
        positions = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(leases=True))
        stats: list[object] = []
        behind = in_flight = 0
        for each in positions.groups:
            tables: dict[str, dict[MessageQueue, dict[str, int]]] = {}
            async for queue, row in in_slices((await self._rows(each.offsets)).items()):
                tables.setdefault(queue.topic, {})[queue] = row
                behind += row["brokerOffset"] - row["consumerOffset"]
                in_flight += row["pullOffset"] - row["consumerOffset"]
            stats.append({each.group: [{"consumeTps": 0.0, "offsetTable": table} for table in tables.values()]})
        sums = {"totalDiff": behind, "totalInflightDiff": in_flight}
        return await answer({"brokerAddr": self._node.settings.node.address, "consumeStatsList": stats} | sums)

    async def clone(self, request: Command, _client: RemotingConnection) -> Command:
        """A group gets the positions of another one, in one topic or in all, wherever its own were."""
        source, only = check_group(request.text("srcGroup")), request.text("topic", "")
        positions = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=[source]))
        commit = broker_pb2.CommitOffsetsRequest(group=check_group(request.text("destGroup")), reset=True)
        async for row in in_slices(row for each in positions.groups for row in each.offsets):
            if only in ("", row.topic) and not group_of_topic(row.topic):  # retries are a group's own
                commit.offsets.add(topic=row.topic, queue_id=row.queue_id, offset=row.offset)
        if not commit.offsets:
            raise InvalidArgumentError(f"group {source} has no positions" + (f" in topic {only}" if only else ""))
        for refused in (await self._leader.call(methods.COMMIT_OFFSETS, commit)).refused:
            raise from_detail(refused.error)
        return Command(Answer.SUCCESS)

    async def _rows(self, positions: Iterable[broker_pb2.GroupOffset]) -> dict[MessageQueue, dict[str, int]]:
        """How far a group with these positions has come in every queue of their topics.

        Tools take what is between ``consumerOffset`` and ``pullOffset`` for messages in flight."""
        committed: dict[QueueKey, int] = {}
        in_flight: dict[QueueKey, int] = {}
        async for row in in_slices(positions):
            committed[row.topic, row.queue_id], in_flight[row.topic, row.queue_id] = row.offset, row.leases.in_flight
        topics = sorted({topic async for topic, _ in in_slices(committed)})
        bounds = await topic_bounds(self._leader, topics)
        passed = [(*queue, offset - 1) async for queue, offset in in_slices(committed.items()) if offset]
        times = await times_of(self._leader, passed)
        rows: dict[MessageQueue, dict[str, int]] = {}
        queues = ((topic, queue_id, high) for topic in topics for queue_id, (_, high) in enumerate(bounds.get(topic, [])))
        async for topic, queue_id, high in in_slices(queues):
            offset = committed.get((topic, queue_id), 0)
            rows[MessageQueue(self._broker, queue_id, topic)] = {
                "brokerOffset": high,
                "consumerOffset": offset,
                "lastTimestamp": times.get((topic, queue_id), 0),
                "pullOffset": offset + in_flight.get((topic, queue_id), 0),
            }
        return rows


def _defaults(name: str) -> retry_pb2.GroupSettings:
    group = SubscriptionGroup(groupName=name)
    return retry_pb2.GroupSettings(
        name=name,
        retry_max_times=group.retryMaxTimes,
        retry_queue_nums=group.retryQueueNums,
        consume_enable=group.consumeEnable,
        consume_in_order=group.consumeMessageOrderly,
    )


def settings_of(wanted: Mapping[str, object]) -> retry_pb2.GroupSettings:
    """The settings of a group that this cluster has; it keeps those that a request does not name."""
    settings = retry_pb2.GroupSettings(name=check_group(str(wanted.get("groupName", ""))))
    for field, flag in (("consume_enable", wanted.get("consumeEnable")), ("consume_in_order", wanted.get("consumeMessageOrderly"))):
        if isinstance(flag, bool):
            setattr(settings, field, flag)
    queues, times = wanted.get("retryQueueNums"), wanted.get("retryMaxTimes")
    for name, number in (("retry_queue_nums", queues), ("retry_max_times", times)):
        if number is None:
            continue
        if not isinstance(number, int) or not 0 <= number < 1 << 31:
            raise InvalidArgumentError(f"group {settings.name}: {name} {str(number)[:40]}: expected a number of at least 0")
        setattr(settings, name, number)
    return settings


def _config(settings: retry_pb2.GroupSettings) -> dict[str, object]:
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": settings.consume_enable,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": settings.consume_in_order,
        "consumeTimeoutMinute": 15,
        "groupName": settings.name,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": settings.retry_max_times,
        "retryQueueNums": settings.retry_queue_nums,
        "whichBrokerWhenConsumeSlowly": 1,
    }
