"""Copies of messages that are sent back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_client import Message
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.frames.frame_layout import decode_properties
from dledger_wire.names import MAX_GROUP_CHARS, MAX_TOPIC_CHARS
from store.append.prepared import PreparedCommand
from store.append.redelivery import AtomicPayload, real_message
from store.append.retry_copies import DEAD_AT_ONCE, RETRY_TOPIC, RetryRule, origin_of, sent_back
from store.commands.redelivery import AdvanceDelayLevel, MarkRedriven, MarkSentBack
from store.commands.topics import EMPTY, DeleteTopic, DeleteTopicIf
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run


def test_where_a_message_came_from_is_not_what_its_producer_wrote() -> None:
    rule = RetryRule("billing", DEAD_AT_ONCE, 16, 1)
    forged = Frame(0, 0, 0, b"x", "orders", {RETRY_TOPIC: "payroll"})
    assert origin_of(sent_back(forged, rule)) == "orders"
    again = replace(forged, topic="%RETRY%billing")
    assert origin_of(sent_back(again, rule)) == "payroll"


@pytest.mark.parametrize("level", [DEAD_AT_ONCE, 18], ids=["dead letter", "retry"])
def test_the_fullest_message_can_be_sent_back(level: int) -> None:
    """One that could not would come again and again, and hold the group's offset for ever."""
    with pytest.raises(InvalidArgumentError) as refused:
        Message("t", b"x", properties={"a": "x" * 32_760})
    most = int(refused.value.message.rsplit(" ", 1)[1])
    message = Message("t" * MAX_TOPIC_CHARS, b"x", properties={"a": "x" * (most - 3)})
    properties = {"UNIQ_KEY": "F" * 32} | decode_properties(message.extras)
    stored = Frame(0, 0, 2**40, b"x", message.topic, properties, store_host="[2001:db8::1]:65535")
    rule = RetryRule("g" * MAX_GROUP_CHARS, level, 16, 1)
    for _ in range(2):
        copy = sent_back(stored, rule)
        encode_frame(copy)
        stored = real_message(copy) or copy


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_a_mark_placed_behind_the_deletion_of_its_topic_is_void_with_its_copies(again: bool) -> None:
    """It would be taken for one of the next topic of that name, whose message would then count as sent back, and be lost to its group."""

    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        for name in ("t", "%RETRY%g", "%DLQ%g"):
            await rig.topic(name)
        marks: list[PreparedCommand[None]] = [
            rig.store.command(MarkSentBack(group="g", topic="t", queue_id=0, runs=((0, 1),))),
            rig.store.command(MarkRedriven(group="g", offset=7)),
        ]
        copies = [rig.store.prepare(batch_of("%RETRY%g", 0, [b"copy"]), for_service=True) for _ in marks]
        for name in ("t", "%DLQ%g"):
            rig.append(rig.store.command(DeleteTopic(name=name)))
            if again:
                await rig.topic(name)
        for batches, mark in zip(copies, marks, strict=True):
            rig.append(AtomicPayload(batches, mark))
        await rig.commit()
        for mark in marks:
            with pytest.raises(TopicNotFoundError):
                mark.result()
        assert not rig.store.send_backs.sent(("g", "t", 0))
        assert rig.store.send_backs.redriven("g") == 0
        assert rig.store.reader.bounds("%RETRY%g", 0) == (0, 0)
        await rig.close()

    run(scenario)


def test_a_mark_is_placed_with_its_copies_while_its_topic_is_there() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        for name in ("t", "%RETRY%g"):
            await rig.topic(name)
        mark = rig.store.command(MarkSentBack(group="g", topic="t", queue_id=0, runs=((0, 1),)))
        rig.append(AtomicPayload(rig.store.prepare(batch_of("%RETRY%g", 0, [b"copy"]), for_service=True), mark))
        await rig.commit()
        mark.result()
        assert 0 in rig.store.send_backs.sent(("g", "t", 0))
        assert rig.store.reader.bounds("%RETRY%g", 0) == (0, 1)
        await rig.close()

    run(scenario)


def test_a_delivery_placed_behind_a_deletion_that_is_refused_does_not_pass_its_message_over() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t")
        rig.append(rig.store.prepare(batch_of("t", 0, [b"earlier"])))
        await rig.commit()
        due = rig.store.prepare(batch_of("t", 0, [b"due"]), for_service=True)
        delivered = rig.store.command(AdvanceDelayLevel(level=1, offset=1))
        rig.append(rig.store.command(DeleteTopicIf(name="t", only_if=EMPTY)))
        rig.append(AtomicPayload(due, delivered))
        await rig.commit()
        with pytest.raises(TopicNotFoundError):
            delivered.result()
        assert rig.store.delays.of(1) == 0
        assert rig.store.reader.bounds("t", 0) == (0, 1)
        await rig.close()

    run(scenario)
