"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues of orderly consumers.

A lock is that of the consumer's session at the leader; it lasts as long as that does, and not RocketMQ's 60 s: the consumer repeats its
request every 20 s and gets the same answer.
"""

from __future__ import annotations

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.group_member import GroupMember, Queue
from broker.remoting.json_body import answer
from dledger_wire.errors import InvalidArgumentError
from store.commands.queue_locks import MAX_LOCKED_QUEUES

LOCK_S = 0.3  # clients wait a second


class Locks:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, clients: Clients) -> None:
        self._group, self._clients = node.settings.group.name, clients

    def handlers(self) -> Handlers:
        return {Request.LOCK_BATCH_MQ: self.lock, Request.UNLOCK_BATCH_MQ: self.unlock}

    async def lock(self, request: Command, _client: RemotingConnection) -> Command:
        content = request.content()
        member, queues = self._member(content), self._queues(content)
        locked = set(await member.lock(list(queues), LOCK_S)) if member is not None else set()
        return await answer({"lockOKMQSet": [row for queue, row in queues.items() if queue in locked]})

    async def unlock(self, request: Command, _client: RemotingConnection) -> Command:
        content = request.content()
        member, queues = self._member(content), self._queues(content)
        if member is not None:
            await member.unlock(list(queues))
        return Command(Answer.SUCCESS)

    def _member(self, content: dict[str, object]) -> GroupMember | None:
        return self._clients.member(str(content.get("consumerGroup", "")), str(content.get("clientId", "")))

    def _queues(self, content: dict[str, object]) -> dict[Queue, dict[str, object]]:
        """The queues of this replica group that a request names, as it names them."""
        rows = content.get("mqSet") or []
        if not isinstance(rows, list) or len(rows) > MAX_LOCKED_QUEUES:
            raise InvalidArgumentError(f"mqSet: expected a list of at most {MAX_LOCKED_QUEUES} queues")
        found: dict[Queue, dict[str, object]] = {}
        for row in rows:
            topic, queue_id = (row.get("topic"), row.get("queueId")) if isinstance(row, dict) else (None, None)
            if not isinstance(topic, str) or not isinstance(queue_id, int) or not 0 <= queue_id < 1 << 31:
                raise InvalidArgumentError("mqSet: expected queues with topic, brokerName and queueId")
            if row.get("brokerName") == self._group:
                found[topic, queue_id] = row
        return found
