"""Bits flip in messages that wait to be stored again: what is damaged is mended from a peer, never copied on, and holds up nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

import broker.delivery.timers
from broker.delivery.waiting_for_topic import waiting_for
from dledger.runtime.folders import LOG_FOLDER
from dledger_client.admin.send_back import DEAD_LETTER, SentBack
from dledger_client.aio import Message, Producer, TransactionOutcome, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.errors import BusyError, StorageDamagedError
from store.state import transactions
from tests.sim.cluster import SMALL_LOG
from tests.unit.broker.test_send_back import GROUP, RETRY, back, outcomes
from tests.unit.client.sim_rig import Rig, node_of, until

LOG = replace(SMALL_LOG, cache_bytes=2 << 10)  # what is sealed is read from the disk
BODY, FLIPPED = b"precious-body", b"qrecious-body"

SIZE_AT = -88 + 1  # from the body, in the size at the frame's start
STORED_AT = -88 + 56 + 3  # from the body, in the store time: whole weeks


async def seal(rig: Rig, producer: Producer) -> None:
    """Let what is stored up to now lie in sealed segments, on every replica."""
    end = node_of(rig, rig.master).raft.log.end_pos

    def sealed() -> bool:
        return all(node_of(rig, node_id).raft.log.segments[-1].start_pos >= end for node_id in rig.cluster.hosts)

    while not sealed():
        await producer.send(Message("fill", b"\x00" * 1500), queue_id=0)


def flip(rig: Rig, node_id: str, what: bytes, skip: int = 0, bit: int = 0) -> None:
    """Flip a bit of the newest place in a node's log where these bytes are, ``skip`` bytes on."""
    disk = rig.cluster.hosts[node_id].disk
    for path in sorted((path for path in disk.names if path.startswith(LOG_FOLDER)), reverse=True):
        if (at := disk.names[path].current.whole().rfind(what)) >= 0:
            disk.flip_bit(path, at + skip, bit)
            return
    raise AssertionError(f"{node_id} has no {what!r}")


def commit_asked(asked: list[bytes]) -> Callable[[ReceivedMessage], TransactionState]:
    """A producer's check that commits; ``asked`` takes what it was asked about."""

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    return check


async def send_timed(rig: Rig, producer: Producer, body: bytes, in_ms: int) -> None:
    due_ms = rig.cluster.hosts[rig.master].clock.wall_ms() + in_ms
    await producer.send(Message("t", body, deliver_at_ms=due_ms), queue_id=0)


async def store_first(rig: Rig, producer: Producer, how: str) -> None:
    """Store a message that is to be stored again."""
    if how == "delay":
        await producer.send(Message("t", BODY, delay_level=3), queue_id=0)
    elif how == "timer":
        await send_timed(rig, producer, BODY, 10_000)
    else:
        await producer.send(Message("t", BODY), queue_id=0)
    if how == "redrive":
        assert outcomes(await back(rig, [0], level=DEAD_LETTER)) == [SentBack.DEAD]


async def store_again(rig: Rig, how: str) -> None:
    if how == "retry":
        assert outcomes(await back(rig, [0], level=1)) == [SentBack.RETRY]
    elif how == "redrive":
        async with rig.admin() as admin:
            (letters,) = await admin.dead_letters(GROUP)
            assert await admin.redrive(letters) == 1


async def store_over_damage(rig: Rig, producer: Producer, how: str, at: int = 0) -> None:
    """Store a message, flip a bit ``at`` bytes from its body's start at the master, once it is read from there, and store it again."""
    await store_first(rig, producer, how)
    await seal(rig, producer)
    flip(rig, rig.master, BODY, at)
    await store_again(rig, how)


@pytest.mark.parametrize(("how", "place"), [("delay", ("t", 0)), ("timer", ("t", 0)), ("retry", (RETRY, 0)), ("redrive", ("t", 1))])
def test_a_damaged_body_is_mended_and_never_copied_on(how: str, place: tuple[str, int]) -> None:
    """docs/reference/semantics, row D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer, rig.consumer() as consumer:
            await store_over_damage(rig, producer, how)
            (found,) = await consumer.fetch(place[0], 0, place[1], wait_ms=20_000)
            assert found.body == BODY

    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize("how", ["delay", "timer", "retry", "redrive"])
def test_a_damaged_head_is_mended(how: str) -> None:
    """docs/reference/semantics, row D4.  The size at the frame's start is what is flipped, so that no frame is found there."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer, rig.consumer() as consumer:
            await store_over_damage(rig, producer, how, SIZE_AT)
            topic = RETRY if how == "retry" else "t"
            bodies: list[bytes] = []
            while len(bodies) < (2 if how == "redrive" else 1):
                bodies += [message.body for message in await consumer.fetch(topic, 0, len(bodies), wait_ms=20_000)]
            assert set(bodies) == {BODY}

    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize(("where", "skip"), [(b"TIMER_OUT_MS\x01", 2), (b"REAL_TOPIC\x01t", 11)], ids=["when", "where"])
def test_what_waits_for_a_topic_is_counted_where_its_properties_are_damaged(where: bytes, skip: int) -> None:
    """No checksum of the message holds its properties, only that of its entry; what is not counted would be dropped with the topic."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer:
            await send_timed(rig, producer, BODY, 600_000)
            await seal(rig, producer)
            flip(rig, rig.master, where, skip)
            context = node_of(rig, rig.master).context
            assert await waiting_for(context, context.store.topics.require("t")) == "1 messages with a delivery time are not delivered yet"

    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize("bit", [0, 3], ids=["earlier", "later"])
@pytest.mark.parametrize("place", range(3))
def test_a_level_skips_and_repeats_nothing_where_a_store_time_is_damaged(place: int, bit: int) -> None:
    """docs/reference/semantics, rows D1 and D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        bodies = [b"in-front", b"between", b"at-the-end"]
        async with rig.producer() as producer, rig.consumer() as consumer:
            for body in bodies:
                await producer.send(Message("t", body, delay_level=3), queue_id=0)
            await seal(rig, producer)
            for node_id in rig.followers:
                flip(rig, node_id, bodies[place], STORED_AT, bit)
            await rig.restart(rig.master)  # the next one looks at the level anew
            assert await consumer.fetch("t", 0, 0, wait_ms=6_000) == []
            found: list[bytes] = []
            while len(found) < len(bodies):
                got = await consumer.fetch("t", 0, len(found), wait_ms=20_000)
                assert got, found
                found += [message.body for message in got]
            assert found == bodies
            assert await consumer.fetch("t", 0, len(bodies), wait_ms=15_000) == []

    Rig(log=LOG).run(scenario)


def told(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING and what in record.getMessage()]


def test_a_level_waits_for_what_nobody_can_mend_and_the_others_do_not(caplog: pytest.LogCaptureFixture) -> None:
    """docs/reference/semantics, row D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer, rig.consumer() as consumer:
            for body in (b"in-front", BODY, b"behind"):
                await producer.send(Message("t", body, delay_level=3), queue_id=0)
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            await producer.send(Message("t", b"other", delay_level=4), queue_id=0)
            (first,) = await consumer.fetch("t", 0, 0, wait_ms=12_000)
            (second,) = await consumer.fetch("t", 0, 1, wait_ms=40_000)
            assert (first.body, second.body) == (b"in-front", b"other")
            (line,) = told(caplog, "delay level 3")
            assert "SCHEDULE_TOPIC_XXXX/2 offset 1" in line
            assert "byte" in line
            flip(rig, rig.followers[0], FLIPPED)  # a peer has it again
            late = [message.body for message in await consumer.fetch("t", 0, 2, wait_ms=6_000)]
            late += [message.body for message in await consumer.fetch("t", 0, 2 + len(late), wait_ms=1_000)]
            assert late == [BODY, b"behind"]
            assert len(told(caplog, "delay level 3")) == 2  # it goes on

    Rig(log=LOG).run(scenario)


def test_timed_messages_pass_over_what_nobody_can_mend(caplog: pytest.LogCaptureFixture) -> None:
    """docs/reference/semantics, row D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer, rig.consumer() as consumer:
            await send_timed(rig, producer, BODY, 10_000)
            await send_timed(rig, producer, b"same-time", 10_000)
            await send_timed(rig, producer, b"later", 15_000)
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            for number, body in enumerate((b"same-time", b"later")):
                (found,) = await consumer.fetch("t", 0, number, wait_ms=20_000)
                assert found.body == body
            (line,) = told(caplog, "timers:")
            assert "rmq_sys_wheel_timer/0 offset 0" in line
            await rig.restart(rig.master)
            await send_timed(rig, producer, b"next", 1_000)
            (found,) = await consumer.fetch("t", 0, 2, wait_ms=20_000)
            assert found.body == b"next"
            await until(lambda: rig.cluster.master() is not None)
            flip(rig, rig.master, FLIPPED)  # it was mended by hand
            (found,) = await consumer.fetch("t", 0, 3, wait_ms=5_000)
            assert found.body == BODY
            assert await consumer.fetch("t", 0, 4, wait_ms=3_000) == []

    Rig(log=LOG).run(scenario)


def test_a_message_whose_topic_seems_gone_is_not_dropped_before_it_is_whole() -> None:
    """docs/reference/semantics, row D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic("topic-with-a-name")
        await rig.topic("fill")
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send(Message("topic-with-a-name", b"delayed", delay_level=3), queue_id=0)
            await seal(rig, producer)
            flip(rig, rig.master, b"topic-with-a-name")
            (found,) = await consumer.fetch("topic-with-a-name", 0, 0, wait_ms=20_000)
            assert found.body == b"delayed"

    Rig(log=LOG).run(scenario)


def test_a_half_message_is_mended_before_it_is_published() -> None:
    """docs/reference/semantics, row D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer, rig.consumer() as consumer:
            transaction = await producer.prepare(Message("t", BODY))
            await seal(rig, producer)
            flip(rig, rig.master, BODY, SIZE_AT)
            assert await transaction.commit() is TransactionOutcome.COMMITTED
            (found,) = await consumer.fetch("t", 0, 0, wait_ms=1000)
            assert found.body == BODY

    Rig(log=LOG, settings="broker: {transactionTimeOut: 1h}\n").run(scenario)


def test_what_nobody_can_mend_is_neither_taken_back_nor_redriven() -> None:
    """docs/reference/semantics, row D4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer, rig.admin() as admin:
            for body in (b"in-front", BODY, b"behind"):
                await producer.send(Message("t", body), queue_id=0)
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            results = await back(rig, [0, 1, 2], level=DEAD_LETTER)
            assert outcomes(results) == [SentBack.DEAD, SentBack.REFUSED, SentBack.DEAD]
            assert isinstance(results[1].error, StorageDamagedError)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, FLIPPED)
            assert outcomes(await back(rig, [1], level=DEAD_LETTER)) == [SentBack.DEAD]
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            (letters,) = await admin.dead_letters(GROUP)
            with pytest.raises(StorageDamagedError, match="%DLQ%g/0 offset 2"):
                await admin.redrive(letters)
            flip(rig, rig.followers[0], FLIPPED)
            (letters,) = await admin.dead_letters(GROUP)
            assert (letters.redriven_end, await admin.redrive(letters)) == (2, 1)

    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize("due_ms", [8_000, 35_000])
def test_what_waits_behind_damage_is_delivered_once_though_it_is_old(
    due_ms: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The damaged message is due, and held, or waits still when old messages are moved to the log's end.

    docs/reference/semantics, row D4.
    """
    monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 5_000)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 500)
    monkeypatch.setattr(broker.delivery.timers, "MAX_SLEEP_S", 1.0)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.producer() as producer, rig.consumer() as consumer:
            await send_timed(rig, producer, b"in-front", 30_000)
            await send_timed(rig, producer, BODY, due_ms)
            await send_timed(rig, producer, b"behind", 31_000)
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            await asyncio.sleep(15)
            progress = node_of(rig, rig.master).store.timers.progress
            assert (progress.low, progress.held) == (1, (1,) if due_ms < 15_000 else ())
            assert len(told(caplog, "timers:")) == 1 + len(progress.held)  # when it is old, and when it is due
            flip(rig, rig.followers[0], FLIPPED)
            bodies: list[bytes] = []
            while len(bodies) < 3:
                bodies += [message.body for message in await consumer.fetch("t", 0, len(bodies), wait_ms=20_000)]
            assert bodies == ([BODY, b"in-front", b"behind"] if due_ms < 15_000 else [b"in-front", b"behind", BODY])
            assert await consumer.fetch("t", 0, 3, wait_ms=20_000) == []
            assert node_of(rig, rig.master).store.timers.progress.held == ()

    Rig(log=LOG).run(scenario)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with another one"])
def test_a_half_message_that_nobody_can_mend_holds_up_no_other_one(alone: bool, caplog: pytest.LogCaptureFixture) -> None:
    """docs/reference/semantics, rows D4, X1 and X3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer, rig.admin() as admin, rig.consumer() as consumer:
            broken = await producer.prepare(Message("t", BODY))
            whole = await producer.prepare(Message("t", b"whole"))
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            if alone:
                assert await whole.commit() is TransactionOutcome.COMMITTED
                with pytest.raises(StorageDamagedError):
                    await broken.commit()
            else:
                ended = await asyncio.gather(broken.commit(), whole.commit(), return_exceptions=True)
                assert isinstance(ended[0], StorageDamagedError)
                assert ended[1] is TransactionOutcome.COMMITTED
            (found,) = await consumer.fetch("t", 0, 0, wait_ms=1000)
            assert found.body == b"whole"
            await producer.prepare(Message("t", b"open"))
            (group,) = await admin.transactions()
            assert group.open == 2
            assert [transaction.half_offset for transaction in group.transactions] == [2]

    Rig(log=LOG, settings="broker: {transactionTimeOut: 1h}\n").run(scenario)


@pytest.mark.parametrize("bit", [0, 3], ids=["earlier", "later"])
def test_a_half_message_whose_store_time_is_damaged_is_checked_with_the_others(bit: int) -> None:
    """docs/reference/semantics, rows D4 and X3."""
    asked: list[bytes] = []

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.transactions(commit_asked(asked)) as producer, rig.consumer() as consumer:
            await producer.prepare(Message("t", BODY))
            await producer.prepare(Message("t", b"whole"))
            await seal(rig, producer)
            for node_id in rig.followers:
                flip(rig, node_id, BODY, STORED_AT, bit)
            await rig.restart(rig.master)
            bodies: list[bytes] = []
            while len(bodies) < 2:
                got = await consumer.fetch("t", 0, len(bodies), wait_ms=20_000)
                assert got, (bodies, asked)
                bodies += [message.body for message in got]
            assert set(bodies) == set(asked) == {BODY, b"whole"}

    Rig(log=LOG, settings="broker: {transactionTimeOut: 2s}\n").run(scenario)


def test_a_half_message_is_checked_once_a_peer_can_mend_it() -> None:
    """docs/reference/semantics, rows D4 and X3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.transactions(lambda _: TransactionState.COMMIT) as producer, rig.consumer() as consumer:
            await producer.prepare(Message("t", BODY))
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            assert await consumer.fetch("t", 0, 0, wait_ms=8_000) == []
            flip(rig, rig.followers[0], FLIPPED)
            (found,) = await consumer.fetch("t", 0, 0, wait_ms=20_000)
            assert found.body == BODY

    Rig(log=LOG, settings="broker: {transactionTimeOut: 2s, transactionCheckInterval: 5s}\n").run(scenario)


def test_a_half_message_that_is_mended_later_counts_for_the_share_of_its_group(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_OPEN_OF_GROUP", 1)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer:
            await producer.prepare(Message("t", BODY))
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            caplog.clear()
            restarted = rig.master  # a start that finds damage asks its peers, and serves them nothing before it is whole
            await rig.restart(restarted)
            await until(lambda: bool(told(caplog, "half message 0 cannot be read")))
            (serving,) = (node_id for node_id in rig.followers if node_id != restarted)
            flip(rig, serving, FLIPPED)
            open_ones = node_of(rig, rig.master).store.transactions
            await until(lambda: open_ones.checks(0)[0] > 0)
            with pytest.raises(BusyError, match="1 transactions of producer group tests are open"):
                open_ones.require_share("tests")

    Rig(log=LOG, settings="broker: {transactionTimeOut: 2s, transactionCheckInterval: 5s}\n").run(scenario)


def test_a_half_message_that_nobody_can_mend_does_not_stop_the_checks_of_later_ones(caplog: pytest.LogCaptureFixture) -> None:
    """docs/reference/semantics, rows D4 and X3."""
    asked: list[bytes] = []

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("fill")
        async with rig.transactions(commit_asked(asked)) as producer, rig.consumer() as consumer:
            await producer.prepare(Message("t", BODY))
            await asyncio.sleep(1.5)  # it is scheduled
            await seal(rig, producer)
            for node_id in rig.cluster.hosts:
                flip(rig, node_id, BODY)
            rig.isolate(rig.followers[0])
            await asyncio.sleep(5)
            await producer.prepare(Message("t", b"later"))
            (found,) = await consumer.fetch("t", 0, 0, wait_ms=20_000)
            assert (found.body, asked) == (b"later", [b"later"])
            assert len(told(caplog, "half message 0 cannot be read")) == 1

    Rig(log=LOG, settings="broker: {transactionTimeOut: 2s}\n").run(scenario)


@pytest.mark.parametrize("what", [b"topic-with-a-name", b"PGROUP"])
@pytest.mark.parametrize("everywhere", [False, True], ids=["a peer has it", "nobody has it"])
def test_an_end_is_not_refused_for_what_damage_makes_of_a_half_message(what: bytes, everywhere: bool) -> None:
    """docs/reference/semantics, rows D4 and X1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic("topic-with-a-name")
        await rig.topic("fill")
        async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer, rig.consumer() as consumer:
            transaction = await producer.prepare(Message("topic-with-a-name", BODY))
            await seal(rig, producer)
            for node_id in rig.cluster.hosts if everywhere else [rig.master]:
                flip(rig, node_id, what)
            if everywhere:
                with pytest.raises(StorageDamagedError):
                    await transaction.commit()
                flip(rig, rig.followers[0], bytes([what[0] ^ 1]) + what[1:])
            assert await transaction.commit() is TransactionOutcome.COMMITTED
            (found,) = await consumer.fetch("topic-with-a-name", 0, 0, wait_ms=1000)
            assert found.body == BODY

    Rig(log=LOG, settings="broker: {transactionTimeOut: 1h}\n").run(scenario)
