"""What callers get wrong: one clear line and a typed error, nothing stored, nobody hanging; and what looks wrong and is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import numpy as np
import pytest

from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.open_transactions import OpenTransaction
from dledger_client.admin.security import AccessRule
from dledger_client.aio import Message, PullConsumer
from dledger_client.transactions.resolver import TransactionState
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import encode_batch
from dledger_wire.errors import (
    CorruptBatchError,
    InvalidArgumentError,
    InvalidNameError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    UnreachableError,
)
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES
from dledger_wire.java_hash import key_hash
from tests.unit.client.sim_rig import CLIENT_IP, Rig
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run

LAST = (1 << 63) - 1
Call = Callable[[PullConsumer], Awaitable[Any]]


async def _all(consumer: PullConsumer, *place: Any) -> list[Any]:
    return [chunk async for chunk in consumer.read_chunks(*place)]


NUMBERS: list[tuple[Call, str]] = [
    (lambda consumer: consumer.fetch("t", 0, -1), f"offset -1: expected 0 to {LAST}"),
    (lambda consumer: consumer.fetch("t", 0, LAST + 1), f"offset {LAST + 1}: expected 0 to {LAST}"),
    (lambda consumer: consumer.fetch("t", 0, 10**30), f"offset {10**30}: expected 0 to {LAST}"),
    (lambda consumer: consumer.fetch("t", -1, 0), "queue_id -1: expected 0 to 4294967295"),
    (lambda consumer: consumer.fetch("t", 1 << 32, 0), "queue_id 4294967296: expected 0 to 4294967295"),
    (lambda consumer: consumer.fetch("t", 7, 0), "topic t: queue 7, expected 0 to 0"),
    (lambda consumer: consumer.fetch("t", 0, 0, 0), "max_messages 0: expected 1 to 4294967295"),
    (lambda consumer: consumer.fetch("t", 0, 0, 1, max_bytes=-1), "max_bytes -1: expected 0 to 4294967295"),
    (lambda consumer: consumer.fetch("t", 0, 0, 1, wait_ms=1 << 40), f"wait_ms {1 << 40}: expected 0 to 4294967295"),
    (lambda consumer: _all(consumer, "t", 0, -5, 1), f"offset -5: expected 0 to {LAST}"),
    (lambda consumer: consumer.offsets("t", -7), f"timestamp_ms -7: expected -1 to {LAST}"),
    (lambda consumer: consumer.offsets("t", 10**20), f"timestamp_ms {10**20}: expected -1 to {LAST}"),
    (lambda consumer: consumer.commit({("t", 0): -1}), f"offset -1: expected 0 to {LAST}"),
    (lambda consumer: consumer.commit({("t", 0): LAST + 1}), f"offset {LAST + 1}: expected 0 to {LAST}"),
    (lambda consumer: consumer.commit({("t", 9): 0}), "topic t: queue 9, expected 0 to 0"),
]


def test_numbers_out_of_range_are_named() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer() as consumer:
            for call, text in NUMBERS:
                with pytest.raises(InvalidArgumentError) as caught:
                    await call(consumer)
                assert caught.value.message == text

    Rig().run(scenario)


@pytest.mark.parametrize("offset", [4, 1 << 31, LAST])
def test_offsets_nobody_has_are_out_of_range_with_the_range(offset: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            for _ in range(3):
                await producer.send(Message("t", b"x"))
            with pytest.raises(OffsetOutOfRangeError, match=f"t/0: offset {offset} is outside 0 to 3") as caught:
                await consumer.fetch("t", 0, offset)
            assert (caught.value.min_offset, caught.value.max_offset) == (0, 3)

    Rig().run(scenario)


def test_a_broker_says_the_same_of_the_largest_number_of_the_wire() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer() as consumer:
            request = broker_pb2.FetchRequest(topic="t", queue_id=0, offset=(1 << 64) - 1, max_messages=1, max_bytes=1)
            with pytest.raises(OffsetOutOfRangeError, match="is outside 0 to 0"):
                await consumer._fetcher.read("g0", request, consumer._deadline_ms())

    Rig().run(scenario)


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "../x", "a.b", "a\x00b", "t\n", "x" * 128])
def test_illegal_topic_names_are_told_by_every_call(name: str) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer() as consumer:
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: admin.create_topic(name, queues=1),
                lambda: producer.send(Message(name, b"x")),
                lambda: consumer.fetch(name, 0, 0),
                lambda: consumer.offsets(name),
            ]
            for call in calls:
                with pytest.raises(InvalidNameError, match=r"^topic name .*expected (only A-Z|at most 127|1 to 127)"):
                    await call()

    Rig().run(scenario)


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"keys": "a\x01b"}, r"property 'KEYS': expected a name, and neither \x01 nor \x02 in name or value"),
    ({"keys": ["o-1", "o 2"]}, "key 'o 2': expected a word without spaces, since spaces separate keys"),
    ({"keys": [""]}, "key '': expected a word without spaces, since spaces separate keys"),
    ({"tags": "a\x02"}, r"property 'TAGS': expected a name, and neither \x01 nor \x02 in name or value"),
    ({"tags": "a || b"}, "tags 'a || b': a message has one tag, and '|' is how subscriptions separate several"),
    ({"properties": {"": "x"}}, r"property '': expected a name, and neither \x01 nor \x02 in name or value"),
    ({"properties": {"a\x01b": "x"}}, r"property 'a\x01b': expected a name, and neither \x01 nor \x02 in name or value"),
    ({"properties": {"KEYS": "x"}}, "property 'KEYS' is reserved; expected a name of the application's own"),
    ({"properties": {"a": "\ud800"}}, "properties: not encodable as UTF-8 (surrogates not allowed)"),
    ({"properties": {"a": "x" * 32_765}}, "properties take 32768 bytes; expected at most 32767"),
    ({"properties": {"a": "x" * 32_211}}, "keys, tags and properties take 32214 bytes; expected at most 32213"),
    ({"keys": "k" * 33_000}, "properties take 33006 bytes; expected at most 32767"),
    ({"flag": 1 << 31}, "flag 2147483648: expected -2147483648 to 2147483647"),
    ({"delay_level": 19}, "delay level 19: expected 0 to 18"),
]


@pytest.mark.parametrize(("fields", "text"), MESSAGES, ids=[text[:30] for _, text in MESSAGES])
def test_messages_that_cannot_be_stored_are_refused_when_made(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Message("t", b"x", **fields)
    assert caught.value.message == text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("t", "text"),  # type: ignore[arg-type]
        lambda: Message("t", None),  # type: ignore[arg-type]
        lambda: Message("t", b"x", keys=[7]),  # type: ignore[list-item]
        lambda: Message("t", b"x", tags=7),  # type: ignore[arg-type]
        lambda: Message("t", b"x", properties="text"),  # type: ignore[arg-type]
        lambda: Message("t", b"x", properties=[("a", "b")]),  # type: ignore[arg-type]
    ],
)
def test_other_types_are_type_errors(make: Callable[[], Message]) -> None:
    with pytest.raises(TypeError, match="message"):
        make()


def test_one_bad_message_harms_no_other() -> None:
    """The mistake is its sender's: a topic that is no text, a body that is too large for a parking place, too."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            good = producer.send_async(Message("t", b"good"), queue_id=0)
            with pytest.raises(TypeError, match="topic is text, not int"):
                await producer.send(Message(7, b"x"))  # type: ignore[arg-type]
            with pytest.raises(MessageTooLargeError, match="body of 4194305 bytes"):
                await producer.send(Message("t", bytes((4 << 20) + 1), delay_level=1), queue_id=0)
            assert (await good).queue_offset == 0
            assert (await producer.send(Message("t", b"later"), queue_id=0)).queue_offset == 1
            assert [message.body for message in await consumer.fetch("t", 0, 0)] == [b"good", b"later"]

    Rig().run(scenario)


def test_what_is_unusual_but_right_comes_back() -> None:
    sent = [
        Message("t", b""),
        Message(
            "t",
            b"x",
            keys=["schlüssel", "订单", "😀\u2028\u00a0x"],
            tags="größe 1",
            properties={"städte": "köln=1 & łódź", "empty": "", "=": "a=b"},
            flag=-(1 << 31),
        ),
        Message("t", b"\x00\x01\x02", keys="  many   spaces ", properties={"a": "x" * 3000}),
    ]

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer(read_from="follower") as consumer:
            for message in sent:
                await producer.send(message, queue_id=0)
            found = await consumer.fetch("t", 0, 0)
            assert [(each.body, each.keys, each.tags, each.flag) for each in found] == [(m.body, m.keys, m.tags, m.flag) for m in sent]
            assert {name: found[1].properties[name] for name in ("städte", "empty", "=")} == sent[1].properties
            assert [each.body for each in await consumer.fetch("t", 0, 0, tags="größe 1")] == [b"x"]
            assert [each.body for each in await consumer.fetch("t", 0, 0, sql="TAGS = 'größe 1' AND KEYS CONTAINS '订单'")] == [b"x"]

    Rig().run(scenario)


def test_a_broker_refuses_properties_that_outgrow_a_frame() -> None:
    """Clients of ours cannot send them; others may try."""

    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        text = "x" * (MAX_PROPERTIES_BYTES - 60)
        frame = encode_frame(Frame(0, 0, 0, b"", "t", {"UNIQ_KEY": "F" * 32, "a": text}))
        at = len(frame) - (MAX_PROPERTIES_BYTES - 60 + 42 + 3) - 2
        assert int.from_bytes(frame[at : at + 2], "big") == len(frame) - at - 2
        longer = frame[:at] + (40_000).to_bytes(2, "big") + frame[at + 2 :] + b"y" * (40_000 - (len(frame) - at - 2))
        longer = len(longer).to_bytes(4, "big") + longer[4:]
        hashes = np.array([key_hash("t", "F" * 32)], np.int32)
        batch = encode_batch("t", 0, longer, np.array([len(longer)], np.uint32), np.zeros(1, np.int32), hashes)
        outcome = rig.store.prepare(batch).outcomes[0]
        assert isinstance(outcome.error, CorruptBatchError)
        assert "message 0: " in outcome.error.message
        assert (await rig.send(batch_of("t", 0, [b""])))[0].error is None
        await rig.close()

    run(scenario)


@pytest.mark.parametrize("name", ["a b", "web-1.example.com", "a/b", "\ud800", "x" * 121])
def test_a_producer_id_is_checked_before_anything_is_sent(name: str) -> None:
    """The node refused it, again and again, until the message's time was up."""

    async def scenario(rig: Rig) -> None:
        with pytest.raises(InvalidNameError, match=r"^producer_id .*expected (only A-Z|at most 120)"):
            rig.producer(producer_id=name)

    Rig().run(scenario)


def test_a_replica_group_that_there_is_not_is_told_by_every_call() -> None:
    """Commits and what is sent back waited until their time was up, and said that it had no leader."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer(group="g") as consumer:
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: consumer.fetch("t", 0, 0, replica_group="g9"),
                lambda: consumer.commit({("t", 0): 0}, replica_group="g9"),
                lambda: consumer.send_back("t", 0, [0], replica_group="g9"),
            ]
            for call in calls:
                with pytest.raises(InvalidArgumentError, match=r"no replica group 'g9' in cluster .*; expected one of g0"):
                    await call()

    Rig().run(scenario)


@pytest.mark.parametrize("call", ["commit", "send_back", "fetch"])
def test_a_replica_group_that_nobody_can_tell_of_now_is_not_called_a_mistake(call: str) -> None:
    """The client knows the one that it read from, and has lost the network when it needs another one."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"), queue_id=("g1", 0))
        async with rig.consumer(timeout_ms=30_000) as consumer, rig.consumer(timeout_ms=3_000) as hasty:
            calls: dict[str, Callable[[PullConsumer], Awaitable[Any]]] = {
                "commit": lambda who: who.commit({("t", 0): 1}, replica_group="g1"),
                "send_back": lambda who: who.send_back("t", 0, [0], replica_group="g1"),
                "fetch": lambda who: who.fetch("t", 0, 0, replica_group="g1"),
            }
            for who in (consumer, hasty):
                assert await who.fetch("t", 0, 0, replica_group="g0") == []
            for machine in rig.cluster.machines():
                if machine.ip != CLIENT_IP:
                    rig.cluster.net.cut(machine.ip, CLIENT_IP)
                    rig.cluster.net.cut(CLIENT_IP, machine.ip)
            waiting = asyncio.ensure_future(calls[call](consumer))
            with pytest.raises(UnreachableError):
                await calls[call](hasty)
            rig.cluster.net.heal_all()
            await waiting

    Rig(groups=2).run(scenario)


def test_admins_are_told_their_numbers() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            for queues, text in (
                (0, "queues 0: expected 1 to 65536"),
                (-1, "queues -1: expected 1 to 65536"),
                (1 << 40, f"queues {1 << 40}: expected 1 to 65536"),
                (5000, "5000: expected 1 to 1024"),
            ):
                with pytest.raises(InvalidArgumentError, match=text):
                    await admin.create_topic("q", queues=queues)
            for call in (
                lambda: admin.send_back("g", "t", 1 << 32, [0]),
                lambda: admin.log_tail("n0", 1 << 32),
                lambda: admin.log_tail("n0", after=-1),
                lambda: admin.audit_log(1 << 32),
            ):
                with pytest.raises(InvalidArgumentError, match=r"(queue_id|lines|count) 4294967296: expected|after -1: expected"):
                    await call()
            await rig.topic()
            for name in ("queues", "read_queues", "write_queues"):
                for number in (0, 10**9):  # they were dealt out one by one
                    for change in (admin.create_topic, admin.update_topic):
                        with pytest.raises(InvalidArgumentError, match=rf"^{name} {number}: expected 1 to 65536"):
                            await change("t", **{name: number})  # type: ignore[arg-type]
            for perm in (0, 1, 3, 5, 7, "6"):
                for change in (admin.create_topic, admin.update_topic):
                    with pytest.raises(InvalidArgumentError, match=rf"^perm {perm!r}: expected 2 \(write\), 4 \(read\) or 6 \(both\)"):
                        await change("t", perm=perm)  # type: ignore[arg-type]

    Rig().run(scenario)


RULE = AccessRule("u", "allow", "topic", "t", "read")
LETTERS = DeadLetters("cg", "g0", "%DLQ%cg", 2, 0, 1, 0)
OPEN = OpenTransaction("A" * 32, "pg", "t", 0, "g0", 0, 0, 0, 0)
KINDS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda admin: admin.describe_groups("text"), "names 'text': expected a list of texts"),
    (lambda admin: admin.describe_groups([None]), r"names \[None\]: expected a list of texts"),
    (lambda admin: admin.offsets_of_topics("text"), "names 'text': expected a list of texts"),
    (lambda admin: admin.reset_offsets("cg", "t", "first", replica_groups="g0"), "replica_groups 'g0': expected a list of texts"),
    (lambda admin: admin.expire_messages(node_ids="n1"), "node_ids 'n1': expected a list of texts"),
    (lambda admin: admin.redrive(LETTERS, rate=float("nan")), "rate nan: expected a number of messages a second"),
    (lambda admin: admin.redrive(LETTERS, rate=float("inf")), "rate inf: expected a number of messages a second"),
    (lambda admin: admin.redrive(LETTERS, rate=-1), "rate -1: expected a number of messages a second"),
    (lambda admin: admin.redrive(LETTERS, count=1.5), "count 1.5: expected a whole number"),
    (lambda admin: admin.redrive("cg"), "letters 'cg': expected DeadLetters"),
    (lambda admin: admin.resolve_transaction("A" * 32, TransactionState.COMMIT), "transaction 'A+': expected OpenTransaction"),
    (lambda admin: admin.resolve_transaction(OPEN, "commit"), "state 'commit': expected TransactionState"),
    (lambda admin: admin.change_rules("text"), "added 't': expected AccessRule"),
    (lambda admin: admin.change_rules([RULE], RULE), r"removed AccessRule\(.*\): expected Sequence"),
    (lambda admin: admin.change_rules([AccessRule("u", "allow", "topic", "\ud800", "read")]), "pattern .*: not encodable as UTF-8"),
    (lambda admin: admin.change_rules(removed=[AccessRule("u", "allow", "topic", cast(str, 5), "read")]), "pattern 5: expected text"),
    (lambda admin: admin.create_user(5), "user 5: expected text"),
    (lambda admin: admin.create_user("u", 5), "user 'u': expected a password that is text"),
    (lambda admin: admin.update_user("u", b"x"), "user 'u': expected a password that is text"),
    (lambda admin: admin.update_user("u", "secret\ud800"), "user 'u': expected a password that is encodable as UTF-8$"),
    (lambda admin: admin.cluster_status(nodes=["n1"]), r"nodes \['n1'\]: expected Mapping"),
    (lambda admin: admin.compare_replicas(nodes={"g0": "n1"}), "nodes 'n1': expected Mapping"),
    (lambda admin: admin.upgrade_check(nodes={"g0": ["n1"]}), r"nodes \['n1'\]: expected Mapping"),
    (lambda admin: admin.waiting_delays("7"), "max_messages '7': expected a whole number"),
    (lambda admin: admin.finish_upgrade(level=-1), "level -1: expected 0 to"),
    (lambda admin: admin.audit_log("5"), "count '5': expected a whole number"),
    (lambda admin: admin.audit_log(after="n1"), "after 'n1': expected Mapping"),
]


def test_admins_are_told_what_is_of_another_kind() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            for call, text in KINDS:
                with pytest.raises(InvalidArgumentError, match=f"^{text}"):
                    await call(admin)

    Rig().run(scenario)
