"""ReceiveMessage: messages of a topic leased to RocketMQ's gRPC consumers.

Owns what a request asks for, within the time that its client waits, and how what it got is answered: a status, the messages, and when they
were given.  Answers that are errors come a second late, because some clients ask again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import NoReturn

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker.node import BrokerNode
from broker.remoting.leader import Leader
from broker.remoting.pull import tag_hashes_of
from broker.rocketmq_grpc._pb.definition_pb2 import Code, FilterExpression, FilterType
from broker.rocketmq_grpc._pb.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from broker.rocketmq_grpc.client import Client, group_of, topic_of
from broker.rocketmq_grpc.leases import Held, Leases
from broker.rocketmq_grpc.outgoing import message_of
from broker.rocketmq_grpc.receipts import handle_of
from broker.rocketmq_grpc.statuses import StatusError, ok, status
from broker.support.limits import in_slices
from dledger_wire._pb import pop_pb2
from dledger_wire.checksum import Buffer
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.rpc import envelope, methods
from store.commands.pop import MAX_INVISIBLE_MS

MAX_BATCH = 1_024
MIN_INVISIBLE_MS = 10_000
LONG_POLL_MS = 20_000
MARGIN_S, CALL_MARGIN_S = 0.3, 0.5  # of the time that a client waits: for the way back, and for the call of the leader
OLD_CLIENTS_S = 1.5  # that those wait longer which do not say how long to poll: half of the time that they have for any call
ERROR_PAUSE_S = 1.0
MAX_EXPRESSION_CHARS = 16_384
AT_ONCE = 10  # messages before other work runs


def poll_ms(request: ReceiveMessageRequest, left_s: float) -> int:
    """How long to wait for a message, of the time that the client waits for the answer."""
    says = request.HasField("long_polling_timeout")
    most_ms = int((left_s - (CALL_MARGIN_S if says else OLD_CLIENTS_S)) * 1000)
    wanted_ms: int = request.long_polling_timeout.ToMilliseconds() if says else LONG_POLL_MS
    return max(0, min(wanted_ms, LONG_POLL_MS, most_ms))


class GrpcReceives:
    """Serves it for one node."""

    def __init__(self, node: BrokerNode, leader: Leader, leases: Leases) -> None:
        self._node, self._leader, self._leases = node, leader, leases

    async def receive(self, request: ReceiveMessageRequest, client: Client) -> list[ReceiveMessageResponse]:
        try:
            return await self._receive(request, client)
        except (StatusError, DledgerError) as error:
            await self._late(error, client)

    async def _late(self, error: Exception, client: Client) -> NoReturn:
        await asyncio.sleep(max(0.0, min(ERROR_PAUSE_S, client.left_s - MARGIN_S)))
        raise error

    async def _receive(self, request: ReceiveMessageRequest, client: Client) -> list[ReceiveMessageResponse]:
        left_s = min(client.left_s, LONG_POLL_MS / 1000 + 3) - MARGIN_S
        wanted = self._wanted(request, left_s)
        if request.auto_renew:
            self._leases.seen(client)

        async def attempt(left_s: float) -> bytes:
            wanted.wait_ms = max(0, min(wanted.wait_ms, int((left_s - CALL_MARGIN_S) * 1000)))
            return await methods.RECEIVE.call_bytes(self._leader.channel(), wanted, timeout_s=left_s)

        # Not again when it is not known what came of it: what is leased already comes back when its time is over.
        try:
            answer = await self._leader.until(attempt, max(left_s, CALL_MARGIN_S), repeat=False)
        except InvalidArgumentError as error:
            code = Code.ILLEGAL_FILTER_EXPRESSION if wanted.sql else Code.BAD_REQUEST
            raise StatusError(code, error.message) from None
        header, payload = envelope.decode(pop_pb2.ReceiveResponse, answer)
        now = Timestamp()
        now.FromMilliseconds(self._node.store.time.now_ms())
        end = ReceiveMessageResponse(delivery_timestamp=now)
        if not header.leases:
            return [ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no new message")), end]
        if request.auto_renew:
            receipts = [pop_pb2.Receipt(queue_id=each.queue_id, offset=each.offset, lease=each.lease) for each in header.leases]
            self._leases.keep(client, Held(wanted.group, wanted.topic, header.incarnation), receipts)
        return [ReceiveMessageResponse(status=ok()), *await self._messages(header, payload, wanted.invisible_ms), end]

    async def _messages(self, header: pop_pb2.ReceiveResponse, payload: Buffer, invisible_ms: int) -> list[ReceiveMessageResponse]:
        found: list[ReceiveMessageResponse] = []
        places = itertools.accumulate((lease.size for lease in header.leases), initial=0)
        async for lease, at in in_slices(zip(header.leases, places, strict=False), AT_ONCE):
            message = await message_of(decode_frame(payload, at))
            system = message.system_properties
            system.receipt_handle = handle_of(header.incarnation, lease.queue_id, lease.offset, lease.lease)
            system.queue_id, system.queue_offset = lease.queue_id, lease.offset
            system.delivery_attempt = lease.attempt
            system.invisible_duration.CopyFrom(Duration(seconds=invisible_ms // 1000, nanos=invisible_ms % 1000 * 1_000_000))
            found.append(ReceiveMessageResponse(message=message))
        return found

    def _wanted(self, request: ReceiveMessageRequest, left_s: float) -> pop_pb2.ReceiveRequest:
        group, topic = group_of(request.group), topic_of(request.message_queue.topic)
        wanted = pop_pb2.ReceiveRequest(group=group, topic=topic)
        wanted.max_messages = min(max(request.batch_size, 1), MAX_BATCH)
        wanted.invisible_ms = self._invisible_ms(request)
        wanted.wait_ms = poll_ms(request, left_s)
        _filter(wanted, request.filter_expression)
        return wanted

    def _invisible_ms(self, request: ReceiveMessageRequest) -> int:
        if request.auto_renew:
            return self._leases.invisible_ms
        found: int = request.invisible_duration.ToMilliseconds()
        if not MIN_INVISIBLE_MS <= found <= MAX_INVISIBLE_MS:
            # In the words of RocketMQ's proxy, which its own tests compare.
            end = f"small. min is {MIN_INVISIBLE_MS}" if found < MIN_INVISIBLE_MS else f"large. max is {MAX_INVISIBLE_MS}"
            raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {end}")
        return found

    async def undo(self, request: ReceiveMessageRequest, answers: Sequence[ReceiveMessageResponse]) -> None:
        """Give back what the client has not got: others need not wait until its time is over."""
        handles = [each.message.system_properties.receipt_handle for each in answers if each.HasField("message")]
        with contextlib.suppress(DledgerError):
            await self._leases.give_back(group_of(request.group), topic_of(request.message_queue.topic), handles)


def _filter(wanted: pop_pb2.ReceiveRequest, given: FilterExpression) -> None:
    expression = given.expression.strip()
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, f"an expression of more than {MAX_EXPRESSION_CHARS} characters")
    if given.type == FilterType.SQL:
        wanted.sql = expression
        return
    wanted.tag_hashes.extend(tag_hashes_of(expression))
