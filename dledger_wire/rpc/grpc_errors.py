"""Typed errors as gRPC statuses: an operating error travels as an ErrorDetail in the trailing metadata ``dledger-error-bin``."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from dledger_wire.errors import DledgerError
from dledger_wire.rpc.error_detail import to_detail

ERROR_KEY = "dledger-error-bin"

# What a stock gRPC client sees; the ErrorDetail says more.
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


async def abort(context: Any, error: DledgerError) -> None:
    metadata = ((ERROR_KEY, to_detail(error).SerializeToString()),)
    await context.abort(_STATUS_OF_CODE.get(error.code, grpc.StatusCode.INVALID_ARGUMENT), error.message[:200], metadata)


def cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
