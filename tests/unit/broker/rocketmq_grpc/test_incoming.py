"""Messages of RocketMQ's gRPC producers: what becomes of their fields and bodies, and ids that any bytes may stand for."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import zlib

import pytest

from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc.client import Client, resource_of, topic_of
from broker.rocketmq_grpc.incoming import RESERVED, frame_of
from broker.rocketmq_grpc.outgoing import message_of
from broker.rocketmq_grpc.statuses import StatusError
from broker.rocketmq_grpc.transaction_ids import half_of, transaction_id
from dledger_wire.frames.compress import compress, flags_of
from dledger_wire.frames.frame import Frame
from dledger_wire.status import Compression

CLIENT = Client("client-1", "10.0.0.9:4000")
LIMIT = 1 << 20
ID = "0102030405060708090000000000000001"


def stored(body: bytes = b"body", properties: dict[str, str] | None = None, **fields: object) -> Frame:
    system = pb.SystemProperties(**{"message_id": ID, "message_type": pb.NORMAL, "body_encoding": pb.IDENTITY} | fields)  # type: ignore[arg-type]
    given = pb.Message(topic=pb.Resource(name="orders"), user_properties=properties or {}, system_properties=system, body=body)
    return asyncio.run(frame_of(given, "orders", CLIENT, LIMIT))


def test_fields_become_properties_that_readers_look_for_first() -> None:
    frame = stored(properties={"b": "2", "a": "1"}, tag="paid", keys=["o-1", "o-2"], message_group="g", message_type=pb.FIFO)
    assert list(frame.properties.items()) == [
        ("UNIQ_KEY", ID), ("TAGS", "paid"), ("KEYS", "o-1 o-2"), ("__SHARDINGKEY", "g"), ("a", "1"), ("b", "2"),
    ]  # fmt: skip
    assert (frame.born_host, frame.sys_flag) == ("10.0.0.9:4000", 0)


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [100, 300_000])
def test_compressed_bodies_are_stored_open_and_bounded(packed: object, size: int) -> None:
    body = random.Random(size).randbytes(size)
    assert callable(packed)
    assert stored(packed(body), body_encoding=pb.GZIP).body == body
    for wrong, code in ((packed(body)[:-9], pb.MESSAGE_CORRUPTED), (packed(bytes(LIMIT + 1)), pb.MESSAGE_BODY_TOO_LARGE)):
        with pytest.raises(StatusError) as refused:
            stored(wrong, body_encoding=pb.GZIP)
        assert refused.value.status.code == code


@pytest.mark.parametrize("name", sorted({*RESERVED, "__SHARDINGKEY", "__transactionId__", "", "a\x01b", "a\nb"}))
def test_no_program_sets_what_servers_go_by(name: str) -> None:
    with pytest.raises(StatusError) as refused:
        stored(properties={name: "x"})
    assert refused.value.status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_a_stored_message_goes_out_open_with_a_digest_and_without_reserved_properties(compression: Compression) -> None:
    body = b"body" * 100
    frame = Frame(
        queue_id=3, queue_offset=7, physical_offset=0, body=compress(body, compression), topic="ns%orders", sys_flag=flags_of(compression),
        properties={"UNIQ_KEY": ID, "TAGS": "t", "KEYS": "a b", "__SHARDINGKEY": "g", "CLUSTER": "c", "amount": "42"},
    )  # fmt: skip
    message = asyncio.run(message_of(frame))
    system = message.system_properties
    assert (message.body, system.body_encoding, system.body_digest.type) == (body, pb.IDENTITY, pb.MD5)
    assert system.body_digest.checksum == "9C6902B2972C1FDDD3695F226AD7D6FD"
    assert dict(message.user_properties) == {"__SHARDINGKEY": "g", "amount": "42"}
    assert (system.tag, list(system.keys), system.message_group, system.message_type) == ("t", ["a", "b"], "g", pb.FIFO)
    assert (message.topic.resource_namespace, message.topic.name, system.queue_id, system.queue_offset) == ("ns", "orders", 3, 7)


def test_a_namespace_is_the_part_before_a_percent_sign() -> None:
    for name in ("orders", "ns%orders", "%DLQ%readers"):
        assert topic_of(resource_of(name)) == name


def test_ids_of_transactions_are_read_back_and_nothing_else_is_one() -> None:
    assert half_of(transaction_id(ID, 42)) == (ID, 42)
    rng = random.Random(1)
    for _ in range(3_000):
        text = "".join(rng.choice("0A#9-+é \x00١") for _ in range(rng.randrange(40)))
        with contextlib.suppress(StatusError):
            unique, offset = half_of(text)
            assert (unique != "", offset >= 0) == (True, True)
