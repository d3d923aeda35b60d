"""Responses: how one becomes an object, that malformed bytes count as a broken connection, not as an error of the client, and which error
of several nodes is reported.

Owns the conversion to UnreachableError, so that another attempt, or another node, is tried until the deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from dledger_wire.errors import (
    AuthenticationFailedError,
    DledgerError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnreachableError,
)
from dledger_wire.rpc import envelope

Answer = TypeVar("Answer", bound=Message)
T = TypeVar("T")


def garbage(address: str, what: str) -> UnreachableError:
    """The error for a response that cannot belong to the request."""
    return UnreachableError(f"{address}: {what}", address=address)


def refusals(errors: Iterable[Exception]) -> list[DledgerError]:
    """Those errors by which nodes refuse the caller.  Where no node answered the question, they say more than the others."""
    return [error for error in errors if isinstance(error, AuthenticationFailedError | PermissionDeniedError)]


def parse_envelope(cls: type[Answer], data: bytes, address: str) -> tuple[Answer, memoryview]:
    """The header and payload in ``data``.  UnreachableError when there are none."""
    try:
        return envelope.decode(cls, data)
    except InvalidArgumentError as error:
        raise garbage(address, error.message) from None


def object_of(kind: type[T], message: Message, **others: Any) -> T:
    """A dataclass with the single values of ``message`` that have its fields' names; ``others`` are set beside them, or in their place."""
    known = message.DESCRIPTOR.fields_by_name
    found = {each.name: getattr(message, each.name) for each in fields(cast("Any", kind)) if each.name in known}
    return kind(**{name: value for name, value in found.items() if isinstance(value, str | int | float)} | others)
