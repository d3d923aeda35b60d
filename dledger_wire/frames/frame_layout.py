"""The layout of RocketMQ's message frame: sizes, places, magics, hosts, the property string.  All integers are big-endian.

    total size 4 | magic 4 | body CRC 4 | queue id 4 | flag 4 | queue offset 8 | physical offset 8 | sys flag 4 | born time 8 |
    born host 8/20 | store time 8 | store host 8/20 | reconsume times 4 | prepared offset 8 | body length 4 | body |
    topic length 1/2 | topic | properties length 2 | properties

Owns what both twins (``frame.py`` one at a time, ``frames.py`` whole batches) agree on; ``frame_head.py`` has the head for numpy.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from functools import lru_cache

from dledger_wire.checksum import Buffer
from dledger_wire.errors import InvalidArgumentError

MAGIC_V1 = -626843481  # 0xDAA320A7: topic length in one byte
MAGIC_V2 = -626843477  # 0xDAA320AB: topic length in two bytes, for topics over 127 bytes
MAGIC_BLANK = -875286124  # 0xCBD43194: end of a file
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_HOST_AT = 48
HEAD_SIZE = 88  # up to and with the body length, both hosts IPv4
IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20
MIN_FRAME_SIZE = HEAD_SIZE + 1 + 2  # without topic
MAX_V1_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32767
UNIQUE_ID_SIZE = 32
UNIQ_KEY_PREFIX = b"UNIQ_KEY\x01"
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
BODY_CRC_MASK = 0x7FFFFFFF


@lru_cache(maxsize=1024)
def pack_host(address: str) -> bytes:
    """``host:port`` (``[v6]:port``) as 8 or 20 bytes.  A host that is a name, not an address, becomes 0.0.0.0."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        packed_port = struct.pack(">i", int(port))
    except (ValueError, struct.error):
        raise InvalidArgumentError(f"address {address!r}: expected host:port") from None
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host) + packed_port
        except (OSError, ValueError):
            continue
    return bytes(4) + packed_port


@lru_cache(maxsize=1024)
def unpack_host(packed: bytes) -> str:
    """``address:port`` of 8 or 20 packed bytes."""
    port = int.from_bytes(packed[-4:], "big", signed=True)
    if len(packed) == IPV4_HOST_SIZE:
        return f"{socket.inet_ntop(socket.AF_INET, packed[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed[:16])}]:{port}"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """``name \\x01 value \\x02 ...``.  Raises InvalidArgumentError for separators inside, an empty name, or over 32767 bytes."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    # One count over the whole finds a separator too many; only then is it worth asking which property it is.
    if text.count("\x01") + text.count("\x02") != 2 * len(properties) or "" in properties:
        for name, value in properties.items():
            if not name or any(mark in part for mark in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR) for part in (name, value)):
                raise InvalidArgumentError(f"property {name!r}: expected a name, and neither \\x01 nor \\x02 in name or value")
    try:
        packed = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"properties: not encodable as UTF-8 ({error.reason})") from None
    if len(packed) > MAX_PROPERTIES_BYTES:
        raise InvalidArgumentError(f"properties take {len(packed)} bytes; expected at most {MAX_PROPERTIES_BYTES}")
    return packed


def decode_properties(packed: Buffer) -> dict[str, str]:
    """The map of a property string; a pair without a name or a separator is skipped, as upstream does."""
    text = str(packed, "utf-8", "replace")
    pairs = (pair.partition(NAME_VALUE_SEPARATOR) for pair in text.split(PROPERTY_SEPARATOR) if pair)
    return {name: value for name, separator, value in pairs if separator and name}
