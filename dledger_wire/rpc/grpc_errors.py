"""Typed errors as gRPC statuses, both ways.

An operating error travels as an ErrorDetail in the trailing metadata ``dledger-error-bin``; a failure without one becomes UnreachableError,
DeadlineExceededError or a plain DledgerError.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from dledger_wire._pb import types_pb2
from dledger_wire.errors import DeadlineExceededError, DledgerError, MessageTooLargeError, UnreachableError
from dledger_wire.rpc.error_detail import from_detail, to_detail

ERROR_KEY = "dledger-error-bin"

# What a stock gRPC client sees; ours read the ErrorDetail.
_STATUS_OF_CODE = {
    "NOT_LEADER": grpc.StatusCode.FAILED_PRECONDITION,
    "BUSY": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "READ_ONLY": grpc.StatusCode.UNAVAILABLE,
    "NOT_READY": grpc.StatusCode.UNAVAILABLE,
    "NOT_YET": grpc.StatusCode.UNAVAILABLE,
    "OUTCOME_UNKNOWN": grpc.StatusCode.ABORTED,
    "UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "DEADLINE_EXCEEDED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "SERVICE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TOPIC_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TOPIC_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "TOPIC_PERMISSION": grpc.StatusCode.PERMISSION_DENIED,
    "OFFSET_OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "STORAGE_DAMAGED": grpc.StatusCode.DATA_LOSS,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}

_NOT_OF_THE_CONNECTION = frozenset(
    (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    )
)


def error_from_status(method: str, address: str, error: grpc.aio.AioRpcError) -> DledgerError:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            try:
                return from_detail(types_pb2.ErrorDetail.FromString(value))
            except DecodeError:
                return DledgerError(f"{address} {method}: answered with an unreadable error detail")
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{address} {method}: no answer in time", address=address)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return MessageTooLargeError(f"{address} {method}: {text}")
    if code in _NOT_OF_THE_CONNECTION:
        return DledgerError(f"{address} {method}: {code.name} {text}")
    if "failed to connect to all addresses" in text:
        reason = text.rpartition(": ")[2].lower()
        return UnreachableError(f"{address}: {reason}", address=address, reason=reason)
    return UnreachableError(f"{address} {method}: {code.name} {text}", address=address)


async def abort(context: Any, error: DledgerError) -> None:
    metadata = ((ERROR_KEY, to_detail(error).SerializeToString()),)
    await context.abort(_STATUS_OF_CODE.get(error.code, grpc.StatusCode.INVALID_ARGUMENT), error.message[:200], metadata)


def cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
