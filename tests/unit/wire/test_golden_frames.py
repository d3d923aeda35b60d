"""Frames byte by byte, written by hand from RocketMQ's layout (docs/reference/formats.md): read as these fields, written as these bytes.

Nothing here is computed by the code under test.  The body CRC of "123456789" is the published check value of CRC-32, CBF43926; that one and
the one of the compressed body (EF1BE40C) lose their top bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dledger_wire.batches.small_batch import encode_small
from dledger_wire.frames.compress import compression_in, decompress
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.frames import FrameFields, cut_bytes, encode_frames, frame_columns, frame_positions, stamp_frames, uniform_stride
from dledger_wire.frames.message_id import offset_message_id, parse_offset_message_id
from dledger_wire.status import Compression

BORN_MS = 1_700_000_000_000
UNIQUE_ID = "7F00000100002A9F18B4AAC200000001"


def packed(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


HEAD = (
    "00000003",  # queue id 3
    "00000007",  # flag 7
    "0000000000000005",  # queue offset 5
    "0000000000001000",  # physical offset 4096
)
TIME, LATER = "0000018bcfe56800", "0000018bcfe56801"  # born time, store time
IPV4_BORN = "7f00000100002a9f"  # 127.0.0.1:10911
IPV4_STORE = "0a01020300002aa0"  # 10.1.2.3:10912
IPV6_BORN = "0000000000000000000000000000000100002a9f"  # [::1]:10911
IPV6_STORE = "20010db800000000000000000000000a00002aa0"  # [2001:db8::a]:10912
LAST = ("00000002", "0000000000000011")  # reconsume times 2, prepared transaction offset 17
BODY = ("00000009", "313233343536373839")  # "123456789", whose CRC-32 is CBF43926
TAIL = ("06", "6f7264657273", "000a", "54414753", "01", "70616964", "02")  # orders, TAGS=paid

PLAIN = packed("00000074", "daa320a7", "4bf43926", *HEAD, "00000000", TIME, IPV4_BORN, LATER, IPV4_STORE, *LAST, *BODY, *TAIL)
BORN_V6 = packed("00000080", "daa320a7", "4bf43926", *HEAD, "00000010", TIME, IPV6_BORN, LATER, IPV4_STORE, *LAST, *BODY, *TAIL)
STORE_V6 = packed("00000080", "daa320a7", "4bf43926", *HEAD, "00000020", TIME, IPV4_BORN, LATER, IPV6_STORE, *LAST, *BODY, *TAIL)
BOTH_V6 = packed("0000008c", "daa320a7", "4bf43926", *HEAD, "00000030", TIME, IPV6_BORN, LATER, IPV6_STORE, *LAST, *BODY, *TAIL)
LONG_TOPIC = packed(
    *("000000e3", "daa320ab", "00000000", *HEAD, "00000000", TIME, IPV4_BORN, LATER, IPV4_STORE, *LAST),
    *("00000000", "0080", "62" * 128, "0007", "4b455953", "01", "6b", "02"),  # no body; 128 times b; KEYS=k
)
COMPRESSED = packed(
    *("00000079", "daa320a7", "6f1be40c", *HEAD, "00000301", TIME, IPV4_BORN, LATER, IPV4_STORE, *LAST),
    *("00000010", "7801", "01", "0500", "faff", "68656c6c6f", "062c0215", "06", "6f7264657273", "0008"),  # zlib of "hello", stored
    *("61", "01", "c3a4", "02", "62", "01", "02"),  # a=ä, b=
)

FRAME = Frame(
    queue_id=3,
    queue_offset=5,
    physical_offset=4096,
    body=b"123456789",
    topic="orders",
    properties={"TAGS": "paid"},
    flag=7,
    sys_flag=0,
    born_timestamp=BORN_MS,
    born_host="127.0.0.1:10911",
    store_timestamp=BORN_MS + 1,
    store_host="10.1.2.3:10912",
    reconsume_times=2,
    prepared_offset=17,
    total_size=116,
    body_crc=0x4BF43926,
)
BORN: dict[str, Any]
STORE: dict[str, Any]
BORN, STORE = {"born_host": "[::1]:10911"}, {"store_host": "[2001:db8::a]:10912"}
VECTORS = {
    "plain": (PLAIN, FRAME),
    "IPv6 born host": (BORN_V6, replace(FRAME, sys_flag=0x10, total_size=128, **BORN)),
    "IPv6 store host": (STORE_V6, replace(FRAME, sys_flag=0x20, total_size=128, **STORE)),
    "both": (BOTH_V6, replace(FRAME, sys_flag=0x30, total_size=140, **BORN, **STORE)),
    "long topic, empty body": (LONG_TOPIC, replace(FRAME, topic="b" * 128, body=b"", properties={"KEYS": "k"}, total_size=227, body_crc=0)),
    "compressed": (
        COMPRESSED,
        replace(
            FRAME,
            body=bytes.fromhex("7801010500faff68656c6c6f062c0215"),
            properties={"a": "ä", "b": ""},
            sys_flag=0x301,
            total_size=121,
            body_crc=0x6F1BE40C,
        ),
    ),
}
SYS_FLAGS = {
    0x1: "compressed by RocketMQ before 5.0: zlib",
    0x2: "several tags",
    0x4: "transaction prepared",
    0x8: "transaction committed",
    0xC: "transaction rolled back",
    0x40: "unwrap needed",
    0x80: "inner batch",
    0x101: "lz4",
    0x201: "zstd",
    0x301: "zlib",
    0x305: "zlib, transaction prepared",
}


@pytest.mark.parametrize(("data", "frame"), VECTORS.values(), ids=VECTORS.keys())
def test_both_directions(data: bytes, frame: Frame) -> None:
    assert len(data) == frame.total_size
    assert decode_frame(b"\xff" * 5 + data + b"\xff", 5) == frame
    assert encode_frame(frame) == data


@pytest.mark.parametrize("sys_flag", SYS_FLAGS, ids=SYS_FLAGS.values())
@pytest.mark.parametrize("hosts", [0, 0x10, 0x20, 0x30])
def test_every_system_flag_beside_every_kind_of_hosts(sys_flag: int, hosts: int) -> None:
    data, frame = {0: VECTORS["plain"], 0x10: VECTORS["IPv6 born host"], 0x20: VECTORS["IPv6 store host"], 0x30: VECTORS["both"]}[hosts]
    flagged = data[:36] + (sys_flag | hosts).to_bytes(4, "big") + data[40:]
    assert decode_frame(flagged) == replace(frame, sys_flag=sys_flag | hosts)
    assert encode_frame(replace(frame, sys_flag=sys_flag)) == flagged
    columns = frame_columns(np.frombuffer(flagged, np.uint8), np.array([0]))
    assert columns.heads["sys_flag"].tolist() == [sys_flag | hosts]
    assert (columns.hosts("born_host"), columns.hosts("store_host")) == ([frame.born_host], [frame.store_host])
    assert cut_bytes(flagged, columns.body_at, columns.body_length) == [b"123456789"]


def test_all_of_them_as_columns() -> None:
    frames = [frame for _, frame in VECTORS.values()]
    data = b"".join(vector for vector, _ in VECTORS.values())
    columns = frame_columns(np.frombuffer(data, np.uint8), frame_positions(np.array([frame.total_size for frame in frames])))
    for name in ("queue_id", "queue_offset", "physical_offset", "flag", "sys_flag", "born_timestamp", "store_timestamp", "body_crc"):
        assert columns.heads[name].tolist() == [getattr(frame, name) for frame in frames]
    for name in ("reconsume_times", "prepared_offset", "total_size"):
        assert columns.heads[name].tolist() == [getattr(frame, name) for frame in frames]
    assert columns.hosts("born_host") == [frame.born_host for frame in frames]
    assert columns.hosts("store_host") == [frame.store_host for frame in frames]
    assert cut_bytes(data, columns.body_at, columns.body_length) == [frame.body for frame in frames]
    assert cut_bytes(data, columns.topic_at, columns.topic_length) == [frame.topic.encode() for frame in frames]
    tags, keys, two = b"TAGS\x01paid\x02", b"KEYS\x01k\x02", "a\x01ä\x02b\x01\x02".encode()
    assert cut_bytes(data, columns.properties_at, columns.properties_length) == [tags, tags, tags, tags, keys, two]


def test_the_compressed_body_opens() -> None:
    frame = decode_frame(COMPRESSED)
    assert compression_in(frame.sys_flag) is Compression.ZLIB
    assert decompress(frame.body, Compression.ZLIB) == b"hello"


@pytest.mark.parametrize(("born", "host", "sys_flag"), [(IPV4_BORN, "127.0.0.1:10911", "00000000"), (IPV6_BORN, "[::1]:10911", "00000010")])
@pytest.mark.parametrize("count", [1, 3])
def test_what_our_clients_make_and_the_leader_stamps(born: str, host: str, sys_flag: str, count: int) -> None:
    """A frame as it lies in the log: the batch encoder's bytes with the leader's stamps in them."""
    size = 91 + len(born) // 2 - 8 + 9 + 6 + 42 + 10
    rest = (
        *BODY,
        "06",
        "6f7264657273",
        "0034",
        b"UNIQ_KEY".hex(),
        "01",
        UNIQUE_ID.encode().hex(),
        "02",
        "54414753",
        "01",
        "70616964",
        "02",
    )
    never = ("00000000", "0000000000000000")  # neither consumed again nor prepared
    wanted = b"".join(
        packed(
            *(f"{size:08x}", "daa320a7", "4bf43926", "00000003", "00000007", f"{5 + number:016x}", f"{4096 + number * size:016x}"),
            *(sys_flag, TIME, born, LATER, IPV4_STORE, *never, *rest),
        )
        for number in range(count)
    )
    ids = np.frombuffer(UNIQUE_ID.encode() * count, np.uint8).reshape(count, 32)
    frames, sizes = encode_frames(
        "orders", 3, [b"123456789"] * count, ids, b"TAGS\x01paid\x02", FrameFields(BORN_MS, pack_host(host), flags=7)
    )
    stamped = np.frombuffer(bytearray(frames), np.uint8)
    stamp_frames(
        stamped,
        frame_positions(sizes),
        first_queue_offset=5,
        physical_base=4096,
        store_timestamp=BORN_MS + 1,
        store_host=pack_host("10.1.2.3:10912"),
        born_v6=len(born) == 40,
        stride=uniform_stride(sizes),
    )
    assert stamped.tobytes() == wanted
    if len(born) == 16:
        few, _ = encode_small(
            "orders",
            3,
            [b"123456789"] * count,
            [UNIQUE_ID.encode()] * count,
            [b"TAGS\x01paid\x02"] * count,
            born_ms=BORN_MS,
            born_host=bytes.fromhex(born),
        )
        zero = "00000000"
        assert few[: sizes[0]] == packed(
            *(
                f"{size:08x}",
                "daa320a7",
                "4bf43926",
                "00000003",
                zero,
                zero * 2,
                zero * 2,
                zero,
                TIME,
                born,
                zero * 2,
                zero * 2,
                *never,
                *rest,
            )
        )


def test_offset_message_ids_name_the_store_host_and_the_place() -> None:
    assert offset_message_id(bytes.fromhex(IPV4_STORE), 4096) == "0A01020300002AA00000000000001000"
    assert offset_message_id(bytes.fromhex(IPV6_STORE), 4096) == "20010DB800000000000000000000000A00002AA00000000000001000"
    assert parse_offset_message_id("0A01020300002AA00000000000001000") == ("10.1.2.3:10912", 4096)
    assert parse_offset_message_id("20010DB800000000000000000000000A00002AA00000000000001000") == ("[2001:db8::a]:10912", 4096)
