"""Waiting messages whose properties cannot be stored again: they are delivered, and hold up nobody else."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

import broker.delivery.timers
from broker.node import BrokerNode
from dledger_client.aio import Message, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.append import message_log
from store.queues.queue_files import QUEUE_FOLDER
from store.state.transactions import Outcome
from tests.sim.cluster import SMALL_LOG
from tests.unit.broker.test_transactions import QUICK
from tests.unit.client.sim_rig import Rig, node_of, until
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import LOG as SMALL
from tests.unit.store.store_rig import StoreRig, run
from tests.unit.store.test_parked_places import ID, TO_T, raw_batch

LEVEL = 3
LOG = replace(SMALL_LOG, segment_bytes=1 << 20)
FULL = MAX_PROPERTIES_BYTES - 400
MALFORMED = pytest.mark.parametrize(
    ("bad", "kept"),
    [
        (b"a\x01b\x01c\x02", "b?c"),
        (b"a\x01" + b"\xff" * 20_000 + b"\x02", "?" * 20_000),
        (b"a\x01" + b"\xff" * FULL + b"\x02", "?" * FULL),
    ],
    ids=["two separators", "longer as UTF-8", "no room"],
)
OF_GROUP = b"TRAN_MSG\x01true\x02PGROUP\x01tests\x02"


def master_of(rig: Rig) -> BrokerNode:
    return node_of(rig, rig.master)


async def store(rig: Rig, topic: str, properties: bytes, queue_id: int = 0) -> None:
    """Store a message as it was taken once."""
    node = master_of(rig)

    async def propose() -> None:
        prepared = node.store.prepare(raw_batch(topic, properties, queue_id), for_service=True)
        assert [outcome.error for outcome in prepared.outcomes] == [None]
        await node.raft.propose(prepared)

    await rig.cluster.loop.spawn(rig.cluster.hosts[rig.master].process, propose(), "propose")  # type: ignore[arg-type]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "properties_changed"]


def due(rig: Rig, in_ms: int) -> tuple[int, bytes]:
    due_ms = rig.cluster.hosts[rig.master].clock.wall_ms() + in_ms
    return due_ms, b"TIMER_OUT_MS\x01%d\x02" % due_ms


@MALFORMED
@pytest.mark.parametrize("how", ["delay", "timer"])
def test_it_is_delivered_with_what_can_be_kept_and_told(how: str, bad: bytes, kept: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            if how == "delay":
                await store(rig, SCHEDULE_TOPIC, ID + bad + b"DELAY\x013\x02" + TO_T, LEVEL - 1)
                await producer.send(Message("t", b"behind", delay_level=LEVEL))
            else:
                due_ms, stands = due(rig, 5000)
                await store(rig, TIMER_TOPIC, ID + stands + bad + TO_T)
                await producer.send(Message("t", b"behind", deliver_at_ms=due_ms + 1000))
            await until(lambda: master_of(rig).store.queues.max_offset(("t", 0)) == 2)
            first, behind = await consumer.fetch("t", 0, 0)
            assert (first.body, first.properties["a"], first.msg_id) == (b"x", kept, "0" * 32)
            assert behind.body == b"behind"
        (line,) = told(caplog)
        topic, queue_id = (SCHEDULE_TOPIC, LEVEL - 1) if how == "delay" else (TIMER_TOPIC, 0)
        assert f"{topic}/{queue_id} offset 0" in line

    caplog.set_level(logging.WARNING)
    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize(("bad", "kept"), [(b"a\x01" + b"\xff" * FULL + b"\x02", "?" * FULL)], ids=["no room"])
@pytest.mark.parametrize("how", ["delay", "timer"])
def test_it_waits_on_while_its_topic_takes_no_writes(how: str, bad: bytes, kept: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("other")
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer() as consumer:
            if how == "delay":
                await store(rig, SCHEDULE_TOPIC, ID + bad + b"DELAY\x013\x02" + TO_T, LEVEL - 1)
                await producer.send(Message("other", b"behind", delay_level=LEVEL))
            else:
                due_ms, stands = due(rig, 5000)
                await store(rig, TIMER_TOPIC, ID + stands + bad + TO_T)
                await producer.send(Message("other", b"behind", deliver_at_ms=due_ms + 1000))
            await admin.update_topic("t", perm=4)
            await until(lambda: master_of(rig).store.queues.max_offset(("other", 0)) == 1)
            await admin.update_topic("t", perm=6)
            await until(lambda: master_of(rig).store.queues.max_offset(("t", 0)) == 1)
            (found,) = await consumer.fetch("t", 0, 0)
            assert (found.body, found.properties["a"]) == (b"x", kept)

    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize(
    "bad",
    [b"a\x01b\x01c\x02", b"a\x01" + b"\xff" * 20_000 + b"\x02", b"TIMER_OUT_MS\x01soon\x02"],
    ids=["two separators", "longer as UTF-8", "two times"],
)
def test_it_is_stored_again_at_the_end_of_the_log_as_others_are(bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            due_ms, stands = due(rig, 100_000)
            await store(rig, TIMER_TOPIC, ID + stands + bad + TO_T)
            await producer.send(Message("t", b"behind", deliver_at_ms=due_ms + 1000))
            await until(lambda: master_of(rig).store.timers.progress.low >= 2)
            assert rig.cluster.hosts[rig.master].clock.wall_ms() < due_ms
            found: list[ReceivedMessage] = []
            while len(found) < 2:
                found += await consumer.fetch("t", 0, len(found), wait_ms=10_000)
            assert [message.body for message in found] == [b"x", b"behind"]
            assert found[0].store_timestamp - due_ms < 1000

    monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 5000)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 500)
    Rig(log=LOG).run(scenario)


@MALFORMED
@pytest.mark.parametrize("end", ["committed", "parked"])
def test_a_transaction_of_it_ends_and_so_do_others(end: str, bad: bytes, kept: str, caplog: pytest.LogCaptureFixture) -> None:
    def check(_message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if end == "committed" else TransactionState.UNKNOWN

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await store(rig, HALF_TOPIC, ID + bad + OF_GROUP + TO_T)
        await store(rig, HALF_TOPIC, ID.replace(b"00", b"01") + OF_GROUP + TO_T)
        node = master_of(rig)
        async with rig.transactions(check), rig.consumer() as consumer:
            while any(node.store.transactions.outcome(offset) is Outcome.OPEN for offset in (0, 1)):  # noqa: ASYNC110 - virtual
                await asyncio.sleep(1)
            topic = "t" if end == "committed" else CHECK_MAX_TIME_TOPIC
            found = await consumer.fetch(topic, 0, 0)
            assert [message.body for message in found] == [b"x", b"x"]
            assert kept in [message.properties.get("a") for message in found]
        assert [f"{HALF_TOPIC}/0 offset 0" in line for line in told(caplog)] == [True]

    caplog.set_level(logging.WARNING)
    Rig(log=LOG, settings=QUICK).run(scenario)


def test_an_entry_that_does_not_say_when_it_is_due_is_applied_and_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, log=replace(SMALL, segment_bytes=1 << 20))
        for name in ("t", TIMER_TOPIC):
            await rig.topic(name)
        waits = b"TIMER_OUT_MS\x011700000100000\x02"
        monkeypatch.setattr(message_log, "batch_due_times", lambda _batch: None)
        payload = raw_batch(TIMER_TOPIC, ID + waits + TO_T) + raw_batch(TIMER_TOPIC, ID + b"TIMER_OUT_MS\x01soon\x02" + TO_T)
        rig.append(rig.store.prepare(payload, for_service=True))
        await rig.commit()
        _, second = await rig.read_all((TIMER_TOPIC, 0))
        expected = [1_700_000_100_000, second.store_timestamp]
        assert (await rig.units((TIMER_TOPIC, 0)))["tag_hash"].tolist() == expected
        await rig.save()
        disk = disk.after_kill()
        for path in [path for path in disk.files if path.startswith(QUEUE_FOLDER)]:
            del disk.files[path]
        rig = await StoreRig.open(disk, log=replace(SMALL, segment_bytes=1 << 20))
        assert (await rig.units((TIMER_TOPIC, 0)))["tag_hash"].tolist() == expected
        await rig.close()

    run(scenario)
