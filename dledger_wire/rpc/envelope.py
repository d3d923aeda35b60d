"""The envelope rule of proto/dledger/v1: a protobuf message whose last field is a payload of bulk bytes.

Owns the functions that keep bulk bytes out of protobuf.  Field 1 is ``fixed32 header_size`` (bytes before the payload field), field
15 is ``bytes payload``.  Encoding joins header and payload buffers once; decoding parses the header and hands the payload out as a view.
A message of a writer that does not know the rule (no header size) is parsed as plain protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from dledger_wire.checksum import Buffer, extend_crc32c
from dledger_wire.errors import InvalidArgumentError

_HEADER_SIZE_TAG = 0x0D  # field 1, fixed32
_CHECKSUM_TAG = b"\x75"  # field 14, fixed32
_CHECKSUM_SIZE = 5
_PAYLOAD_TAG = b"\x7a"  # field 15, length-delimited

Header = TypeVar("Header", bound=Message)


def encode(header: Message, payload: Sequence[Buffer] = (), *, behind: int = 0) -> bytes:
    """The wire bytes of ``header`` followed by the payload buffers.  Sets ``header.header_size``; no other payload may be set.

    ``behind``: how many more bytes of payload the caller sends behind these.
    """
    header.header_size = 1
    size = header.ByteSize()
    header.header_size = size
    head: bytes = header.SerializeToString(deterministic=True)
    length = sum(map(len, payload)) + behind
    if not length:
        return head
    return b"".join([head, _PAYLOAD_TAG, _varint(length), *payload])


def encode_checked(header: Message, payload: Sequence[Buffer] = ()) -> bytes:
    """As ``encode``, for a header whose last field is ``fixed32 checksum = 14``: the crc32c of everything before it."""
    header.header_size = header.checksum = 1
    header.header_size = header.ByteSize()
    body = header.SerializeToString()[:-_CHECKSUM_SIZE]
    head = b"".join([body, _CHECKSUM_TAG, extend_crc32c(0, body).to_bytes(4, "little")])
    length = sum(map(len, payload))
    if not length:
        return head
    return b"".join([head, _PAYLOAD_TAG, _varint(length), *payload])


def decode_checked(cls: type[Header], data: bytes) -> tuple[Header, memoryview]:
    """As ``decode``; InvalidArgumentError also when the checksum is missing or does not match."""
    size = int.from_bytes(data[1:5], "little") if data[:1] == bytes([_HEADER_SIZE_TAG]) else 0
    end = size - _CHECKSUM_SIZE
    if not 5 <= end <= len(data) - _CHECKSUM_SIZE or data[end : end + 1] != _CHECKSUM_TAG:
        raise InvalidArgumentError(f"{cls.DESCRIPTOR.name}: no checksum where its header says it ends")
    if int.from_bytes(data[end + 1 : size], "little") != extend_crc32c(0, bytes(data[:end])):
        raise InvalidArgumentError(f"{cls.DESCRIPTOR.name}: the checksum of its header does not match")
    return decode(cls, data)


def decode(cls: type[Header], data: bytes) -> tuple[Header, memoryview]:
    """(header, payload view).  Raises InvalidArgumentError for bytes that are not such a message."""
    try:
        if len(data) >= 5 and data[0] == _HEADER_SIZE_TAG:
            size = int.from_bytes(data[1:5], "little")
            if 5 <= size <= len(data):
                payload = _payload_behind(data, size)
                if payload is not None:
                    return cls.FromString(data[:size]), payload
        header = cls.FromString(data)
        payload_field: bytes = header.payload
        return header, memoryview(payload_field)
    except DecodeError as error:
        raise InvalidArgumentError(f"{cls.DESCRIPTOR.name}: not a message of this kind ({error})") from None


def _payload_behind(data: bytes, at: int) -> memoryview | None:
    """The payload field that starts at ``at`` and ends the message, or None when the bytes there are something else."""
    view = memoryview(data)
    if at == len(data):
        return view[at:]
    if data[at] != _PAYLOAD_TAG[0]:
        return None
    length = shift = 0
    for place in range(at + 1, min(at + 11, len(data))):
        length |= (data[place] & 0x7F) << shift
        shift += 7
        if not data[place] & 0x80:
            return view[place + 1 :] if place + 1 + length == len(data) else None
    return None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
