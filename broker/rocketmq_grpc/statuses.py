"""What a request of RocketMQ's gRPC clients is answered with: which status an error of this cluster becomes."""

from __future__ import annotations

from broker.rocketmq_grpc._pb.definition_pb2 import Code, Status
from dledger_wire import errors
from dledger_wire.errors import DledgerError

MAX_TEXT = 1_000

# Clients send again whatever the status is, but for TOO_MANY_REQUESTS, which some of them wait for and others give up for.
_CODES: dict[type[DledgerError], Code.ValueType] = {
    errors.TopicNotFoundError: Code.TOPIC_NOT_FOUND,
    errors.TopicPermissionError: Code.FORBIDDEN,
    errors.PermissionDeniedError: Code.FORBIDDEN,
    errors.AuthenticationFailedError: Code.UNAUTHORIZED,
    errors.MessageTooLargeError: Code.MESSAGE_BODY_TOO_LARGE,
    errors.StaleReceiptError: Code.INVALID_RECEIPT_HANDLE,
    errors.BusyError: Code.TOO_MANY_REQUESTS,
    errors.InvalidNameError: Code.BAD_REQUEST,
    errors.InvalidArgumentError: Code.BAD_REQUEST,
    errors.CorruptBatchError: Code.BAD_REQUEST,
}


class StatusError(Exception):
    """A request that is answered with this code."""

    def __init__(self, code: Code.ValueType, message: str) -> None:
        super().__init__(message)
        self.status = status(code, message)


def status(code: Code.ValueType, message: str = "OK") -> Status:
    return Status(code=code, message=message[:MAX_TEXT])


def ok() -> Status:
    return status(Code.OK)


def status_of(error: DledgerError) -> Status:
    """Of a request that failed with ``error``."""
    known = _CODES.get(type(error))
    if known is None and error.outcome_unknown:
        known = Code.PROXY_TIMEOUT
    elif known is None:
        known = Code.HA_NOT_AVAILABLE if error.retriable else Code.INTERNAL_SERVER_ERROR
    return status(known, error.message)


def summary(each: list[Status]) -> Status:
    """The status of a request by those of its parts."""
    codes = {part.code for part in each}
    if len(codes) == 1:
        return each[0]
    return status(Code.MULTIPLE_RESULTS, "the entries say what became of each")
