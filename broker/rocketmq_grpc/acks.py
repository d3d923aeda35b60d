"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what consumers make of the messages they received."""

from __future__ import annotations

from collections.abc import Sequence

from broker.remoting.leader import Leader
from broker.rocketmq_grpc._pb.definition_pb2 import Code, Status
from broker.rocketmq_grpc._pb.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from broker.rocketmq_grpc.client import Client, group_of, topic_of
from broker.rocketmq_grpc.leases import Held, Leases
from broker.rocketmq_grpc.receipts import receipt_in
from broker.rocketmq_grpc.statuses import StatusError, ok, status, status_of, summary
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from store.commands.pop import MAX_INVISIBLE_MS

MAX_ENTRIES = 1_000


class GrpcAcks:
    """Serves them for one node."""

    def __init__(self, leader: Leader, leases: Leases) -> None:
        self._leader, self._leases = leader, leases

    async def ack(self, request: AckMessageRequest, client: Client) -> AckMessageResponse:
        group, topic = group_of(request.group), topic_of(request.topic)
        if not 0 < len(request.entries) <= MAX_ENTRIES:
            raise StatusError(Code.BAD_REQUEST, f"{len(request.entries)} entries; expected 1 to {MAX_ENTRIES}")
        found: dict[int, Status] = {}
        parts: dict[str, list[tuple[int, pop_pb2.Receipt]]] = {}  # by incarnation of the topic, with the places in the request
        for place, entry in enumerate(request.entries):
            try:
                incarnation, receipt = receipt_in(entry.receipt_handle)
            except StatusError as error:
                found[place] = error.status
            else:
                parts.setdefault(incarnation, []).append((place, receipt))
        for incarnation, placed in parts.items():
            statuses = await self._acknowledged(Held(group, topic, incarnation), [receipt for _, receipt in placed], client)
            found |= {place: each for (place, _), each in zip(placed, statuses, strict=True)}
        entries = [
            AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=found[place])
            for place, entry in enumerate(request.entries)
        ]
        return AckMessageResponse(status=summary([entry.status for entry in entries]), entries=entries)

    async def _acknowledged(self, held: Held, receipts: Sequence[pop_pb2.Receipt], client: Client) -> list[Status]:
        wanted = pop_pb2.ReceiptsRequest(group=held.group, topic=held.topic, incarnation=held.incarnation, receipts=receipts)
        try:
            answer = await self._leader.call(methods.ACKNOWLEDGE, wanted)
        except DledgerError as error:
            return [_status_of(error)] * len(receipts)
        self._leases.drop(client, held, receipts)
        return [_status_in(result) for result in answer.results]

    async def change(self, request: ChangeInvisibleDurationRequest, client: Client) -> ChangeInvisibleDurationResponse:
        """The handle stays the same one, and is in every answer, since clients read it before the status."""
        answer = ChangeInvisibleDurationResponse(receipt_handle=request.receipt_handle)
        answer.status.CopyFrom(await self._changed(request, client))
        return answer

    async def _changed(self, request: ChangeInvisibleDurationRequest, client: Client) -> Status:
        invisible_ms = request.invisible_duration.ToMilliseconds()
        if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
            text = f"invisible_duration {invisible_ms} ms: expected 0 to {MAX_INVISIBLE_MS}"
            return status(Code.ILLEGAL_INVISIBLE_TIME, text)
        try:
            held, receipt = _held(group_of(request.group), topic_of(request.topic), request.receipt_handle)
            wanted = pop_pb2.ChangeInvisibleRequest(group=held.group, topic=held.topic, incarnation=held.incarnation, receipts=[receipt])
            wanted.invisible_ms, wanted.uncounted = invisible_ms, request.suspend
            self._leases.drop(client, held, [receipt])  # before: it is not to be renewed behind that
            (result,) = (await self._leader.call(methods.CHANGE_INVISIBLE, wanted)).results
        except StatusError as error:
            return error.status
        except DledgerError as error:
            return _status_of(error)
        return _status_in(result)

    async def forward(self, request: ForwardMessageToDeadLetterQueueRequest, client: Client) -> ForwardMessageToDeadLetterQueueResponse:
        held, receipt = _held(group_of(request.group), topic_of(request.topic), request.receipt_handle)
        wanted = pop_pb2.ReceiptsRequest(group=held.group, topic=held.topic, incarnation=held.incarnation, receipts=[receipt])
        try:
            (result,) = (await self._leader.call(methods.MOVE_TO_DEAD_LETTERS, wanted)).results
        except DledgerError as error:
            return ForwardMessageToDeadLetterQueueResponse(status=_status_of(error))
        self._leases.drop(client, held, [receipt])
        return ForwardMessageToDeadLetterQueueResponse(status=_status_in(result))


def _held(group: str, topic: str, handle: str) -> tuple[Held, pop_pb2.Receipt]:
    incarnation, receipt = receipt_in(handle)
    return Held(group, topic, incarnation), receipt


def _status_in(result: pop_pb2.ReceiptResult) -> Status:
    return _status_of(from_detail(result.error)) if result.HasField("error") else ok()


def _status_of(error: DledgerError) -> Status:
    """Clients end their attempts at an invalid handle only: that of a topic which is no more is one."""
    if isinstance(error, TopicNotFoundError):
        return status(Code.INVALID_RECEIPT_HANDLE, error.message)
    return status_of(error)
