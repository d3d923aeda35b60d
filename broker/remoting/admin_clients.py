"""What RocketMQ's tools ask about clients: consumers and producers that are there, and questions that are passed on to one of them.

Only the leader has all of them; a follower passes such a request on to it.
"""

from __future__ import annotations

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import VERSION, Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import answer
from broker.remoting.leader import CALL_S, Leader
from broker.remoting.query import Queries
from dledger_wire._pb import sessions_pb2
from dledger_wire.frames.message_id import parse_offset_message_id
from dledger_wire.rpc import methods

MOST_UNITS = 1000  # of a queue that are shown at a time
_AWAY = "no consumer of group {} is there"
_BROADCASTING, _CLUSTERING = "BROADCASTING", "CLUSTERING"


class AdminClients:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader, clients: Clients, queries: Queries) -> None:
        self._node, self._leader, self._clients, self._queries = node, leader, clients, queries

    def handlers(self) -> Handlers:
        return {
            Request.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            Request.GET_PRODUCER_CONNECTION_LIST: self.producers,
            Request.GET_ALL_PRODUCER_INFO: self.all_producers,
            Request.GET_CONSUMER_RUNNING_INFO: self.ask_consumer,
            Request.CONSUME_MESSAGE_DIRECTLY: self.consume,
            Request.QUERY_CONSUME_QUEUE: self.queue,
        }

    async def queue(self, request: Command, _client: RemotingConnection) -> Command:
        """What a queue has of each message, and what a group wants of it."""
        topic, queue_id, group = request.text("topic"), request.number("queueId"), request.text("consumerGroup", "")
        queue = self._node.store.queues.get((topic, queue_id))
        if queue is None:
            return Command(Answer.SYSTEM_ERROR, remark=f"no queue {queue_id} of topic {topic}")
        first, wanted = max(request.number("index"), queue.min_offset), min(max(request.number("count"), 0), MOST_UNITS)
        units = await self._node.store.reader.units(topic, queue_id, first, wanted)
        rows = [{"physicOffset": pos, "physicSize": size, "tagsCode": tag} for pos, size, tag in units.tolist()]
        found: dict[str, object] = {"minQueueIndex": queue.min_offset, "maxQueueIndex": queue.max_offset, "queueData": rows}
        if group:
            subscribed = [row for member in await self._members(group) for row in member.subscriptions if row.topic == topic]
            found |= {"subscriptionData": self._subscription(group, subscribed[-1])} if subscribed else {"filterData": _AWAY.format(group)}
        return await answer(found)

    async def _members(self, group: str) -> list[sessions_pb2.GroupMember]:
        described = await self._leader.call(methods.DESCRIBE_MEMBERS, sessions_pb2.DescribeMembersRequest(groups=[group]))
        return [member for each in described.groups for member in each.members]

    async def consumers(self, request: Command, _client: RemotingConnection) -> Command:
        group = request.text("consumerGroup")
        members = await self._members(group)
        if not members:
            return Command(Answer.CONSUMER_NOT_ONLINE, remark=_AWAY.format(group))
        says = next((member.says for member in self._clients.consumers_of(group)), {})
        topics = {row.topic: self._subscription(group, row) for member in members for row in member.subscriptions}
        model = _BROADCASTING if any(member.broadcast for member in members) else _CLUSTERING
        return await answer(
            {
                "connectionSet": [self._consumer(group, member) for member in members],
                "consumeFromWhere": says.get("consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
                "consumeType": says.get("consumeType", "CONSUME_ACTIVELY"),
                "messageModel": says.get("messageModel", model),
                "subscriptionTable": topics,
            }
        )

    def _consumer(self, group: str, member: sessions_pb2.GroupMember) -> dict[str, object]:
        own = self._clients.member(group, member.client_id)
        if own is not None and own.connection is not None:
            return _connection(member.client_id, own.connection)
        return {"clientAddr": member.address, "clientId": member.client_id, "language": "PYTHON", "version": VERSION}

    def _subscription(self, group: str, row: sessions_pb2.SessionSubscription) -> dict[str, object]:
        wanted = (member.subscriptions.get(row.topic) for member in self._clients.consumers_of(group))
        kind = next((each.kind for each in wanted if each is not None), "TAG")
        tags = [tag.strip() for tag in row.expression.split("||")] if kind == "TAG" and row.expression not in ("", "*") else []
        return {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": kind,
            "subString": row.expression or "*",
            "subVersion": 0,
            "tagsSet": tags,
            "topic": row.topic,
        }

    async def producers(self, request: Command, _client: RemotingConnection) -> Command:
        group = request.text("producerGroup")
        found = [_connection(client_id, at) for of, client_id, at in self._clients.producers if of == group]
        if not found:
            return Command(Answer.SYSTEM_ERROR, remark=f"no producer of group {group} is there")
        return await answer({"connectionSet": found})

    async def all_producers(self, _request: Command, _client: RemotingConnection) -> Command:
        table: dict[str, list[dict[str, object]]] = {}
        now_ms = self._node.store.time.now_ms()
        for group, client_id, at in self._clients.producers:
            row = {
                "clientId": client_id,
                "language": at.language,
                "lastUpdateTimestamp": now_ms,
                "remoteIP": at.peer,
                "version": at.version,
            }
            table.setdefault(group, []).append(row)
        return await answer({"data": table})

    # Questions that a consumer answers itself

    async def ask_consumer(self, request: Command, _client: RemotingConnection) -> Command:
        return await self._asked(request, b"")

    async def consume(self, request: Command, _client: RemotingConnection) -> Command:
        """Give one message to one consumer, and tell what came of it."""
        _, position = parse_offset_message_id(request.text("msgId"))
        _, frame = await self._queries.at(position)
        return await self._asked(request, bytes(frame))

    async def _asked(self, request: Command, body: bytes) -> Command:
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        member = self._clients.member(group, client_id)
        if member is None or member.connection is None:
            return Command(Answer.SYSTEM_ERROR, remark=f"{client_id} of group {group} is no RocketMQ client, or is not there")
        return await member.connection.ask(request.code, dict(request.fields), body, CALL_S)


def _connection(client_id: str, at: RemotingConnection) -> dict[str, object]:
    return {"clientAddr": at.peer, "clientId": client_id, "language": at.language, "version": at.version}
