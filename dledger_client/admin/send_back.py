"""Sending messages back: what a consumer group could not process is delivered to that group again, later.

Safe to repeat: a message is stored once per attempt, however often it is sent back and whichever node leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dledger_client.cluster.responses import garbage
from dledger_client.cluster.router import Router
from dledger_client.message_fields import MAX_DELAY_LEVEL
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail

DEAD_LETTER = -1  # as a delay level


class SentBack(Enum):
    """What happened to a message that was sent back. All but REFUSED mean that the group is done with this offset.

    Attributes:
        RETRY: Stored in the retry topic of the group.
        DEAD: Stored in the dead-letter topic of the group: it had its last attempt.
        DUPLICATE: Stored by an earlier call.
        BEHIND: The group has committed past this offset since.
        GONE: The message has expired.
        REFUSED: Not stored; ``error`` says why.
    """

    RETRY = retry_pb2.SEND_BACK_RETRY
    DEAD = retry_pb2.SEND_BACK_DEAD
    DUPLICATE = retry_pb2.SEND_BACK_DUPLICATE
    BEHIND = retry_pb2.SEND_BACK_BEHIND
    GONE = retry_pb2.SEND_BACK_GONE
    REFUSED = retry_pb2.SEND_BACK_REFUSED


@dataclass(frozen=True, slots=True)
class SendBackResult:
    """The result for one message that was sent back.

    Attributes:
        offset: Its offset in the queue.
        outcome: What happened to it.
        reconsume_times: How often it has been redelivered, counting this time.
        error: Why it was refused.
    """

    offset: int
    outcome: SentBack
    reconsume_times: int
    error: DledgerError | None = None


def send_back_request(
    consumer_group: str, topic: str, queue_id: int, offsets: Iterable[int], delay_level: int, max_reconsume_times: int
) -> retry_pb2.SendBackRequest:
    """What ``send_back`` asks for; its numbers are checked."""
    within(0, MAX_U32, queue_id=queue_id)
    offsets = list(offsets)
    for offset in offsets:
        within(0, MAX_OFFSET, offset=offset)
    within(DEAD_LETTER, MAX_DELAY_LEVEL, delay_level=delay_level)
    within(0, MAX_U32, max_reconsume_times=max_reconsume_times)
    return retry_pb2.SendBackRequest(
        group=consumer_group,
        topic=topic,
        queue_id=queue_id,
        offsets=offsets,
        delay_level=delay_level,
        max_reconsume_times=max_reconsume_times,
    )


async def ask_to_take_back(
    router: Router, request: retry_pb2.SendBackRequest, replica_group: str, deadline_ms: int
) -> list[SendBackResult]:
    """As ``send_back``.  TopicNotFoundError also when the request names an ``incarnation``, and the topic was created again since."""
    answer = await router.call_leader(replica_group, methods.SEND_BACK, request, deadline_ms=deadline_ms)
    return [_result(each, replica_group) for each in answer.results]


def _result(found: retry_pb2.SendBackResult, replica_group: str) -> SendBackResult:
    try:
        outcome = SentBack(found.outcome)
    except ValueError:
        raise garbage(replica_group, f"an unknown outcome of sending back ({found.outcome})") from None
    error = from_detail(found.error) if found.HasField("error") else None
    return SendBackResult(found.offset, outcome, found.reconsume_times, error)
