"""Frames of RocketMQ's remoting protocol: both forms of the header, and what is refused of what strangers send."""

from __future__ import annotations

import json
import random
import struct

import pytest

from broker.remoting.command import BINARY, JSON, MAX_FRAME_BYTES, ONEWAY, Command, decode, encode, frame_size
from dledger_wire.errors import InvalidArgumentError


@pytest.mark.parametrize("form", [JSON, BINARY])
def test_a_command_is_read_as_it_was_written(form: int) -> None:
    sent = Command(310, {"a": "group", "b": "täglich", "i": "KEYS\x01k\x02"}, b"body", 7, ONEWAY, "why", "JAVA", 479, form)
    found = decode(encode(sent))
    found.body = bytes(found.body)
    assert found == sent
    assert found.is_oneway
    assert not found.is_response


def test_a_frame_of_json_has_the_layout_of_rocketmq() -> None:
    frame = encode(Command(105, {"topic": "orders"}, b"xyz", opaque=3))
    length, mark = struct.unpack_from(">ii", frame)
    header = json.loads(frame[8 : 8 + mark])
    assert length == len(frame) - 4
    assert mark >> 24 == JSON
    assert frame[8 + mark :] == b"xyz"
    assert header["code"] == 105
    assert header["extFields"] == {"topic": "orders"}
    assert header["serializeTypeCurrentRPC"] == "JSON"


def test_a_binary_header_has_the_layout_of_rocketmq() -> None:
    name, value = b"topic", b"orders"
    fields = struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
    header = struct.pack(">hbhii", 105, 9, 317, 5, 0) + struct.pack(">i", 0) + struct.pack(">i", len(fields)) + fields
    found = decode(struct.pack(">ii", 4 + len(header), 1 << 24 | len(header)) + header)
    assert (found.code, found.language, found.version, found.opaque, dict(found.fields)) == (105, "GO", 317, 5, {"topic": "orders"})


def test_numbers_and_truth_values_of_fields_are_taken_as_text() -> None:
    header = json.dumps({"code": 310, "opaque": 1, "extFields": {"e": 3, "m": True, "k": False, "i": "x", "l": None}}).encode()
    found = decode(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert dict(found.fields) == {"e": "3", "m": "true", "k": "false", "i": "x"}
    assert found.number("e") == 3
    assert found.is_true("m")
    assert not found.is_true("k")


def test_a_field_that_is_missing_or_no_number_is_named() -> None:
    request = Command(30, {"queueId": "many"})
    with pytest.raises(InvalidArgumentError, match="request 30: expected the field topic"):
        request.text("topic")
    with pytest.raises(InvalidArgumentError, match="field queueId: expected a number, got 'many'"):
        request.number("queueId")
    assert request.number("timestamp", -1) == -1


@pytest.mark.parametrize("length", [-1, 0, 3, MAX_FRAME_BYTES + 1, 0x47455420])
def test_a_length_that_cannot_be_is_refused_before_more_is_read(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a frame of"):
        frame_size(struct.pack(">ii", length, 0))


def test_a_header_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a header of 100 bytes in a frame of 20"):
        frame_size(struct.pack(">ii", 20, 100))


@pytest.mark.parametrize(
    "header", [b"", b"[]", b"{", b'{"extFields":[1]}', b'{"code":"x"}', b"[" * 5000, b'{"extFields":{"a":{}}}', b"\xff"]
)
def test_a_header_that_is_no_command_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        decode(struct.pack(">ii", 4 + len(header), len(header)) + header)


@pytest.mark.parametrize("form", [JSON, BINARY])
def test_damaged_frames_are_refused_or_read_but_nothing_else(form: int) -> None:
    rng = random.Random(7)
    whole = encode(Command(11, {"topic": "orders", "queueId": "3", "subscription": "a || b"}, b"x" * 40, 9, form=form))
    for _ in range(3000):
        frame = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            frame[rng.randrange(4, len(frame))] = rng.randrange(256)
        try:
            decode(bytes(frame))
        except InvalidArgumentError:
            continue
