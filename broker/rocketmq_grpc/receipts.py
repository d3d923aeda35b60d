"""Receipt handles of RocketMQ's gRPC clients: what a consumer has of a message that it received, as text.

A handle is INCARNATION-QUEUE-OFFSET-LEASE in hexadecimal digits.  Any node takes it back, and one of a topic that was deleted, or of a
message that is no longer the consumer's, counts nothing.
"""

from __future__ import annotations

import re

from broker.rocketmq_grpc._pb.definition_pb2 import Code
from broker.rocketmq_grpc.statuses import StatusError
from dledger_wire._pb import pop_pb2

# No more digits than the numbers of a receipt have bits for.
_HANDLE = re.compile(r"([0-9A-F]{16})-([0-9a-f]{1,8})-([0-9a-f]{1,16})-([0-9a-f]{1,16})", re.ASCII)
_SHOWN = 60


def handle_of(incarnation: str, queue_id: int, offset: int, lease: int) -> str:
    return f"{incarnation}-{queue_id:x}-{offset:x}-{lease:x}"


def receipt_in(handle: str) -> tuple[str, pop_pb2.Receipt]:
    """(Incarnation of the topic, receipt).  StatusError for what is no handle."""
    found = _HANDLE.fullmatch(handle)
    if found is None:
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, f"receipt_handle {handle[:_SHOWN]!r}: expected one that came with a message")
    queue_id, offset, lease = (int(part, 16) for part in found.groups()[1:])
    return found[1], pop_pb2.Receipt(queue_id=queue_id, offset=offset, lease=lease)
