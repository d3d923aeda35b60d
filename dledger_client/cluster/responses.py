"""Responses with a payload: malformed bytes count as a broken connection, not as an error of the client.

Owns the conversion to UnreachableError, so that another attempt, or another node, is tried until the deadline.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from dledger_wire.errors import InvalidArgumentError, UnreachableError
from dledger_wire.rpc import envelope

Answer = TypeVar("Answer", bound=Message)


def garbage(address: str, what: str) -> UnreachableError:
    """The error for a response that cannot belong to the request."""
    return UnreachableError(f"{address}: {what}", address=address)


def parse_envelope(cls: type[Answer], data: bytes, address: str) -> tuple[Answer, memoryview]:
    """The header and payload in ``data``.  UnreachableError when there are none."""
    try:
        return envelope.decode(cls, data)
    except InvalidArgumentError as error:
        raise garbage(address, error.message) from None
