"""Sends that a leader cannot store in time: refused before they are stored, rather than left in doubt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from dledger_client.aio import Message, Producer
from dledger_client.producer.sender import LATE_S, QUICK_MS, WINDOW_BYTES, Sender
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DeadlineExceededError, DledgerError, NotSentError
from dledger_wire.rpc import envelope
from tests.unit.client.sim_rig import CLIENT_IP, Rig


def slow_down(rig: Rig, sync_s: float) -> None:
    for host in rig.cluster.hosts.values():
        host.disk.settings.sync_s = sync_s


async def outcomes(producers: Sequence[Producer], bodies: Sequence[bytes], every_s: float) -> dict[bytes, DledgerError | None]:
    """What became of each message; the producers send them in turn."""

    async def one(producer: Producer, body: bytes) -> DledgerError | None:
        try:
            await producer.send(Message("t", body))
        except DledgerError as error:
            return error
        return None

    tasks: dict[bytes, asyncio.Task[DledgerError | None]] = {}
    for number, body in enumerate(bodies):
        tasks[body] = asyncio.ensure_future(one(producers[number % len(producers)], body))
        await asyncio.sleep(every_s)
    return {body: await task for body, task in tasks.items()}


async def stored(rig: Rig) -> Counter[bytes]:
    async with rig.consumer() as consumer:
        return Counter([message.body for message in await consumer.fetch("t", 0, 0, 1000)])


def test_what_cannot_be_committed_in_time_is_refused_and_not_stored() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        producers = [rig.producer(send_timeout_ms=250) for _ in range(10)]
        for producer in producers:
            await producer.send(Message("t", b"first"))
        slow_down(rig, 0.2)
        ends = await outcomes(producers, [b"%d" % number for number in range(200)], 0.02)
        refused = {body: error for body, error in ends.items() if isinstance(error, NotSentError)}
        by_leader = {error.message for error in refused.values() if error.message.startswith("refused by the leader")}
        assert any("a commit takes 0." in text and "0.2 s were given; nothing was stored" in text for text in by_leader), refused
        assert len(ends) - len(refused) <= 50
        slow_down(rig, 0.001)
        await asyncio.sleep(2)
        for producer in producers:
            await producer.send(Message("t", b"last"))  # the leader takes sends again at once
            await producer.close()
        found = await stored(rig)
        assert not found.keys() & refused.keys()
        assert {body for body, error in ends.items() if error is None} <= found.keys()
        assert (found.pop(b"first"), found.pop(b"last")) == (10, 10)
        assert max(found.values()) == 1

    Rig().run(scenario)


def test_sends_with_time_enough_are_stored_at_the_pace_of_the_disks() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=20_000) as producer:
            await producer.send(Message("t", b"first"))
            slow_down(rig, 0.2)
            ends = await outcomes([producer], [b"%d" % number for number in range(100)], 0.05)
        assert not any(ends.values())
        assert len(await stored(rig)) == 101

    Rig().run(scenario)


@pytest.mark.parametrize(("sync_s", "is_small"), [(0.001, False), (0.2, True)])
def test_a_producer_keeps_less_in_flight_while_answers_take_long(sync_s: float, is_small: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=600) as producer:
            await producer.send(Message("t", b"first"))
            slow_down(rig, sync_s)
            for _ in range(5):
                await outcomes([producer], [b"%d" % number for number in range(20)], 0.1)
            (sender,) = producer._core._senders.values()
            assert sender._window_bytes <= WINDOW_BYTES // 4 if is_small else sender._window_bytes == WINDOW_BYTES

    Rig().run(scenario)


def test_what_has_less_time_left_than_answers_take_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be under way when its time is over, which leaves it in doubt."""
    spare_ms: list[int] = []
    next_request = Sender._next_request

    def noted(sender: Sender) -> bytes | None:
        expected_ms = sender._expected_ms(sender._clock.monotonic_ms())
        request = next_request(sender)
        if request is not None and expected_ms > QUICK_MS:
            spare_ms.append(envelope.decode(broker_pb2.ProduceRequest, request)[0].timeout_ms - expected_ms)
        return request

    monkeypatch.setattr(Sender, "_next_request", noted)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=1000) as producer:
            await producer.send(Message("t", b"first"))
            slow_down(rig, 0.03)
            ends = await outcomes([producer], [(b"%d " % number).ljust(2000) for number in range(300)], 0.02)
            in_doubt = [error for error in ends.values() if isinstance(error, DeadlineExceededError)]
            assert len(in_doubt) <= 25  # 72 when one quick answer was enough to send what had any time left
            assert len(spare_ms) > 3
            assert min(spare_ms) >= 0
            slow_down(rig, 0.001)
            await asyncio.sleep(2)
            for _ in range(50):
                await producer.send(Message("t", b"last"))
            (sender,) = producer._core._senders.values()
            assert sender._answer_ms <= QUICK_MS

    Rig().run(scenario)


def test_a_process_that_was_held_up_reads_answers_before_it_looks_whose_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"first"))
            (sender,) = producer._core._senders.values()
            looks: list[float] = []
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(sender, "_sweep", lambda: looks.append(loop.time()))
            sender._on_timer(loop.time() - 2 * LATE_S)
            assert looks == []
            await asyncio.sleep(LATE_S)
            assert looks

    Rig().run(scenario)


def test_a_request_that_has_not_left_when_its_time_is_over_is_recalled_and_not_in_doubt() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        net, master = rig.cluster.net, rig.cluster.hosts[rig.master].ip
        async with rig.producer(send_timeout_ms=500) as producer:
            await producer.send(Message("t", b"first"))
            net.cut(CLIENT_IP, master)
            late = [producer.send_async(Message("t", b"late %d" % number)) for number in range(3)]
            for error in await asyncio.gather(*late, return_exceptions=True):
                assert isinstance(error, NotSentError), error
            net.heal(CLIENT_IP, master)
            for _ in range(5):
                await producer.send(Message("t", b"then"))
        assert await stored(rig) == {b"first": 1, b"then": 5}

    Rig().run(scenario)


def test_a_request_that_has_left_is_not_recalled() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        net, master = rig.cluster.net, rig.cluster.hosts[rig.master].ip
        async with rig.producer(send_timeout_ms=500) as producer:
            await producer.send(Message("t", b"first"))
            net.cut(master, CLIENT_IP)
            with pytest.raises(DeadlineExceededError, match="may be stored"):
                await producer.send(Message("t", b"left"))
            net.heal(master, CLIENT_IP)
            await producer.send(Message("t", b"then"))
        assert await stored(rig) == {b"first": 1, b"left": 1, b"then": 1}

    Rig().run(scenario)
