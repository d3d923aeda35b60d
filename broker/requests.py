"""Parsing a request, with an operating error for bytes that are none."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from dledger_wire.errors import InvalidArgumentError

Request = TypeVar("Request", bound=Message)


def decoded(kind: type[Request], data: bytes) -> Request:
    """The request, or InvalidArgumentError."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"not a {kind.DESCRIPTOR.name}: {error}") from None
