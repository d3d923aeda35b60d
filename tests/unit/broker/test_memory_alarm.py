"""The memory alarm: set and cleared with hysteresis; it keeps new messages out and nothing else, and producers know of it."""

from __future__ import annotations

import asyncio

import pytest

from broker.support.memory_alarm import MemoryAlarm
from dledger_client import Producer as SyncProducer
from dledger_client.aio import Message, Producer
from dledger_wire.errors import DledgerError, ReadOnlyError
from tests import waiting
from tests.unit.client.sim_rig import Rig, context_of, node_of, until

MIB = 1 << 20


def test_it_is_set_above_the_watermark_and_cleared_below_nine_tenths_with_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    alarm, seen = MemoryAlarm(1000 * MIB), []
    for used in (900, 1000, 1001, 1000, 950, 901, 900, 950, 1000, 1100):
        alarm.look(used * MIB)
        seen.append(alarm.is_set)
    assert seen == [False, False, True, True, True, True, False, False, False, True]
    assert [record.event for record in caplog.records] == ["memory_alarm"] * 3  # type: ignore[attr-defined]
    assert alarm.text == "memory alarm: 1.1 GiB in use, memoryHighWatermark is 1000.0 MiB"


def test_without_a_watermark_it_is_never_set() -> None:
    alarm = MemoryAlarm()
    alarm.look(1 << 60)
    assert (alarm.is_set, alarm.text) == (False, "")


def test_a_watch_looks_at_what_the_process_uses() -> None:
    async def scenario() -> None:
        alarm, mark = MemoryAlarm(), [MIB]
        watching = asyncio.ensure_future(alarm.watch(lambda: 2 * MIB, lambda: mark[0]))
        await waiting.until(lambda: alarm.is_set)
        mark[0] = 3 * MIB
        await waiting.until(lambda: not alarm.is_set)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(scenario())


def set_alarm(rig: Rig, *, on: bool) -> None:
    node_of(rig, rig.master).memory_alarm.look(600 * MIB if on else 0)


def watermark(rig: Rig) -> None:
    for node_id in rig.cluster.hosts:
        node_of(rig, node_id).memory_alarm.mark_bytes = 512 * MIB


def test_producers_are_blocked_and_learn_of_it_and_all_else_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        watermark(rig)
        calls: list[str] = []
        settings = {"on_blocked": calls.append, "on_unblocked": lambda: calls.append("unblocked"), "send_timeout_ms": 60_000}
        async with rig.producer(**settings) as producer, rig.consumer() as consumer, rig.admin() as admin:
            await producer.send(Message("t", b"before"))
            assert (producer.blocked, calls) == ("", [])
            set_alarm(rig, on=True)
            sent = asyncio.ensure_future(producer.send(Message("t", b"held")))
            await until(lambda: bool(producer.blocked))
            expected = f"{rig.master}: memory alarm: 600.0 MiB in use, memoryHighWatermark is 512.0 MiB"
            assert (producer.blocked, calls) == (expected, [expected])
            assert [each.body for each in await consumer.fetch("t", 0, 0)] == [b"before"]
            await rig.topic("another")
            (group,) = await admin.cluster_status()
            (noted,) = [node for node in group.nodes if node.id == rig.master]
            assert noted.state == expected.partition(": ")[2] + ": takes no new messages"
            assert not sent.done()
            set_alarm(rig, on=False)
            await sent
            assert (producer.blocked, calls) == ("", [expected, "unblocked"])
            assert [each.body for each in await consumer.fetch("t", 0, 0)] == [b"before", b"held"]

    Rig().run(scenario)
    assert [record.getMessage().partition(":")[0] for record in caplog.records if record.name == "dledger_client.producer.blocked"] == [
        "blocked",
        "not blocked any more",
    ]


def test_a_send_that_expires_meanwhile_names_alarm_and_node_and_leaves_nothing_blocked() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        watermark(rig)
        calls: list[str] = []
        settings = {"on_blocked": calls.append, "on_unblocked": lambda: calls.append("unblocked"), "send_timeout_ms": 500}
        async with rig.producer(**settings) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"before"))
            set_alarm(rig, on=True)
            with pytest.raises(DledgerError, match=f"{rig.master}: memory alarm: 600.0 MiB in use"):
                await producer.send(Message("t", b"late"))
            set_alarm(rig, on=False)
            await until(lambda: not producer.blocked)
            await producer.send(Message("t", b"after"))
            assert [each.body for each in await consumer.fetch("t", 0, 0)][0::2][:1] == [b"before"]
            assert calls[-1] == "unblocked"

    Rig().run(scenario)


def test_an_error_of_a_callback_does_not_end_the_sender(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_reason: str) -> None:
        raise RuntimeError("of the application")

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        watermark(rig)
        async with rig.producer(on_blocked=fail) as producer:
            await producer.send(Message("t", b"before"))
            set_alarm(rig, on=True)
            sent = asyncio.ensure_future(producer.send(Message("t", b"held")))
            await until(lambda: bool(producer.blocked))
            set_alarm(rig, on=False)
            await sent

    Rig().run(scenario)
    assert "a callback of the producer failed" in caplog.text


def test_a_disk_that_is_too_full_is_an_alarm_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        context = context_of(rig, rig.master)

        def full(_store: object) -> None:
            raise ReadOnlyError("the disk is used to 96.0 %, above diskSpaceWarningLevelRatio 90; nothing was stored")

        monkeypatch.setattr("store.store.MessageStore.require_disk_room", full)
        for in_memory in (True, False):
            with pytest.raises(ReadOnlyError, match=f"^{rig.master}: the disk is used to 96.0 %.* 90; nothing was stored$") as caught:
                context.require_room(in_memory=in_memory)
            assert caught.value.details == {"alarm": "disk", "node": rig.master}

    Rig().run(scenario)


def test_both_faces_have_the_state() -> None:
    assert isinstance(Producer.blocked, property)
    assert isinstance(SyncProducer.blocked, property)
