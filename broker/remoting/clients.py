"""RocketMQ's clients at this node: what their heartbeats say, and whom they are for the rest of the cluster.

Owns the table of consumers and producers.  A consumer sends its heartbeats to every node.  The one that leads lets it join its group by a
session, as members of other clients do, so that both kinds share a group's queues; a new leader knows it already.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from broker.node import BrokerNode
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.group_member import GroupMember, Subscription
from broker.remoting.json_body import answer
from broker.remoting.leader import CALLER, Leader
from dledger_wire._pb import admin_pb2, sessions_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group, retry_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller
from store.commands.security import Action, Resource
from store.queues.sql_filter import compiled

MAX_GROUPS = 100  # of one client, of either kind: each is a session with heartbeats of its own
MAX_SUBSCRIPTIONS = 1_000  # of one group
JOIN_S = 1.0  # an answer to a heartbeat waits so long for the group to have the consumer
SILENT_S = 120.0
LOOK_S = 5.0
_WAYS = ("consumeType", "messageModel", "consumeFromWhere")  # what tools show of a consumer


@dataclass(slots=True)
class _Client:
    """One client at one connection."""

    client_id: str = ""
    consumers: dict[str, GroupMember] = field(default_factory=dict)  # by group
    producers: set[str] = field(default_factory=set)
    reply_id: str = ""  # the client that takes replies there
    caller: LocalCaller = field(default_factory=CALLER.get)  # of its last request


class Clients:
    """Serves them for one node; ``run`` it until it is cancelled, then ``close`` it."""

    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self._node, self._leader = node, leader
        self._connections: dict[RemotingConnection, _Client] = {}
        self._members: dict[tuple[str, str], GroupMember] = {}  # by group and client id
        self._replies: dict[str, RemotingConnection] = {}  # where a client takes replies, by its id

    def handlers(self) -> Handlers:
        return {
            Request.HEART_BEAT: self.heartbeat,
            Request.UNREGISTER_CLIENT: self.unregister,
            Request.CHECK_CLIENT_CONFIG: self.check_config,
            Request.GET_CONSUMER_LIST_BY_GROUP: self.members_of,
        }

    # What others ask

    def subscription(self, connection: RemotingConnection, group: str, topic: str) -> Subscription | None:
        """What a consumer at this connection wants of a topic; None when it has not said that."""
        client = self._connections.get(connection)
        member = client.consumers.get(group) if client is not None else None
        return member.subscriptions.get(topic) if member is not None else None

    def lock_epoch(self, group: str, topic: str, queue_id: int) -> int:
        """Of the lock that a consumer of this node holds; 0 for none."""
        held = (member.held.get((topic, queue_id)) for (of, _), member in self._members.items() if of == group)
        return next((epoch for epoch in held if epoch is not None), 0)

    def member(self, group: str, client_id: str) -> GroupMember | None:
        return self._members.get((group, client_id))

    def consumers_of(self, group: str) -> list[GroupMember]:
        """The members of a group that are here."""
        return [member for (of, _), member in self._members.items() if of == group]

    @property
    def producers(self) -> list[tuple[str, str, RemotingConnection]]:
        """(Group, client id, connection) of every producer."""
        return [(group, client.client_id, at) for at, client in self._connections.items() for group in sorted(client.producers)]

    def producers_of(self, group: str) -> list[RemotingConnection]:
        """The connections of those producers of a group that may end its transactions, which checks show."""
        theirs = ((connection, client) for connection, client in self._connections.items() if group in client.producers)
        return [connection for connection, client in theirs if self._may_end(client, group)]

    def _may_end(self, client: _Client, group: str) -> bool:
        return self._node.security.access.may(client.caller.principal, Action.WRITE, Resource.GROUP, group)

    def caller_for(self, group: str) -> LocalCaller:
        """One who may attend for a group of producers."""
        found = (self._connections[each].caller for each in self.producers_of(group))
        return next(found, LocalCaller())

    def attends(self, connection: RemotingConnection, group: str) -> None:
        """A producer of ``group`` is there: its half messages may come before its first heartbeat."""
        client = self._client(connection)
        if len(client.producers) < MAX_GROUPS:
            client.producers.add(group)

    def takes_replies(self, connection: RemotingConnection, client_id: str) -> None:
        """Replies to ``client_id`` go there from now on: its requests may come before its first heartbeat."""
        client = self._client(connection)
        if client.reply_id != client_id:
            self._take_no_replies(client, connection)
        client.reply_id = client_id
        self._replies[client_id] = connection

    def _take_no_replies(self, client: _Client, connection: RemotingConnection) -> None:
        if self._replies.get(client.reply_id) is connection:
            del self._replies[client.reply_id]

    def replies_to(self, client_id: str) -> RemotingConnection | None:
        """Where a client takes replies; None when it is not here."""
        return self._replies.get(client_id)

    @property
    def producer_groups(self) -> set[str]:
        return {group for client in self._connections.values() for group in client.producers}

    # Heartbeats

    async def heartbeat(self, request: Command, connection: RemotingConnection) -> Command:
        content = request.content()
        client_id = content.get("clientID")
        if not isinstance(client_id, str) or not client_id:
            raise InvalidArgumentError("a heartbeat without clientID")
        client = self._client(connection)
        client.client_id = client_id
        self.takes_replies(connection, client_id)
        groups = [str(row.get("groupName", "")) for row in _rows(content, "producerDataSet")]
        client.producers = {check_group(group) for group in groups}
        consumers = _rows(content, "consumerDataSet")
        if len(client.consumers.keys() | {str(row.get("groupName", "")) for row in consumers}) > MAX_GROUPS:
            raise InvalidArgumentError(f"a client of more than {MAX_GROUPS} consumer groups")
        joining = [self._consumer(client, connection, row, content) for row in consumers]
        if self._is_leader:
            await asyncio.gather(*(self._ensure_retries(member) for member in joining))
            await asyncio.gather(*(member.joined(JOIN_S) for member in joining))
        return Command(Answer.SUCCESS, {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"})

    def _client(self, connection: RemotingConnection) -> _Client:
        client = self._connections.get(connection)
        if client is None:
            client = self._connections[connection] = _Client()
            connection.on_close.append(lambda: self._gone(connection))
        client.caller = CALLER.get()
        return client

    def _consumer(self, client: _Client, connection: RemotingConnection, row: dict[str, object], content: dict[str, object]) -> GroupMember:
        group = check_group(str(row.get("groupName", "")))
        member = self._members.get((group, client.client_id))
        if member is None:
            member = self._members[group, client.client_id] = GroupMember(self._leader, group, client.client_id)
        member.caller = client.caller
        member.connection, member.seen_s = connection, asyncio.get_running_loop().time()
        client.consumers[group] = member
        member.says = {name: str(row[name]) for name in _WAYS if isinstance(row.get(name), str)}
        wanted = {} if content.get("withoutSub") is True else _subscriptions(row)
        member.subscribe(wanted or member.subscriptions, broadcast=str(row.get("messageModel", "")) in ("BROADCASTING", "0"))
        if self._is_leader:
            member.start()
        return member

    async def _ensure_retries(self, member: GroupMember) -> None:
        """A consumer looks for its group's retries at its start, and else half a minute later."""
        name, store = retry_topic(member.group), self._node.store
        if name not in member.subscriptions or store.topics.get(name) is not None:
            return
        queues = store.subscription_groups.of(member.group).retryQueueNums
        wanted = admin_pb2.TopicSpec(name=name, read_queues=queues, write_queues=queues, if_not_exists=True)
        await self._leader.call(methods.CREATE_TOPIC, wanted)

    @property
    def _is_leader(self) -> bool:
        return self._leader.term[0] == self._node.settings.node.id

    # Ends

    async def unregister(self, request: Command, connection: RemotingConnection) -> Command:
        client = self._connections.get(connection)
        if client is not None:
            client.producers.discard(request.text("producerGroup", ""))
            member = client.consumers.pop(request.text("consumerGroup", ""), None)
            if member is not None:
                self._remove(member)
        return Command(Answer.SUCCESS)

    def _gone(self, connection: RemotingConnection) -> None:
        client = self._connections.pop(connection, None)
        if client is None:
            return
        self._take_no_replies(client, connection)
        for member in client.consumers.values():
            if member.connection is connection:
                self._remove(member)

    def _remove(self, member: GroupMember) -> None:
        self._members.pop((member.group, member.client_id), None)
        member.stop()

    async def run(self) -> None:
        """Follow the leadership, and forget who says nothing any more; until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S if not self._members else 0.1)
            now_s, is_leader = asyncio.get_running_loop().time(), self._is_leader
            for member in list(self._members.values()):
                if now_s - member.seen_s > SILENT_S:
                    self._remove(member)
                elif is_leader:
                    member.start()
                else:
                    member.stop()

    def close(self) -> None:
        for member in self._members.values():
            member.stop()

    # Questions of clients

    async def members_of(self, request: Command, _client: RemotingConnection) -> Command:
        group = request.text("consumerGroup")
        reply = await self._leader.call(methods.DESCRIBE_MEMBERS, sessions_pb2.DescribeMembersRequest(groups=[group]))
        ids = [member.client_id for each in reply.groups for member in each.members]
        if not ids:
            return Command(Answer.SYSTEM_ERROR, remark=f"no consumer of group {group}")
        return await answer({"consumerIdList": ids})

    async def check_config(self, request: Command, _client: RemotingConnection) -> Command:
        data = request.content().get("subscriptionData")
        if isinstance(data, dict) and data.get("expressionType") == "SQL92":
            try:
                await compiled(str(data.get("subString", "")), _turn)
            except InvalidArgumentError as error:
                return Command(Answer.SUBSCRIPTION_PARSE_FAILED, remark=error.message)
        return Command(Answer.SUCCESS)


async def _turn() -> None:
    """Other work runs between the slices of a long expression."""
    await asyncio.sleep(0)


def _rows(content: dict[str, object], name: str, most: int = MAX_GROUPS) -> list[dict[str, object]]:
    rows = content.get(name) or []
    if not isinstance(rows, list) or len(rows) > most or not all(isinstance(row, dict) for row in rows):
        raise InvalidArgumentError(f"{name} of a heartbeat: expected a list of at most {most} objects")
    return rows


def _subscriptions(row: dict[str, object]) -> dict[str, Subscription]:
    found: dict[str, Subscription] = {}
    for each in _rows(row, "subscriptionDataSet", MAX_SUBSCRIPTIONS):
        kind = each.get("expressionType")
        found[str(each.get("topic", ""))] = Subscription(str(each.get("subString", "*")), kind if isinstance(kind, str) and kind else "TAG")
    return found
