"""Ids of transactions as RocketMQ's gRPC producers get them: UNIQ_KEY#OFFSET, of the half message.

Any node ends a transaction by its id alone, also one that has never heard of it.
"""

from __future__ import annotations

from broker.rocketmq_grpc._pb.definition_pb2 import Code
from broker.rocketmq_grpc.statuses import StatusError

MAX_CHARS = 200
_MAX_DIGITS = 18


def transaction_id(unique: str, half_offset: int) -> str:
    return f"{unique}#{half_offset}"


def half_of(given: str) -> tuple[str, int]:
    """(UNIQ_KEY, offset among the half messages).  StatusError for anything else."""
    unique, mark, offset = given[:MAX_CHARS].rpartition("#")
    if not unique or not mark or not (offset.isascii() and offset.isdecimal()) or len(offset) > _MAX_DIGITS or len(given) > MAX_CHARS:
        raise StatusError(Code.INVALID_TRANSACTION_ID, f"transaction_id {given[:40]!r}: expected one that a send was answered with")
    return unique, int(offset)
