"""Messages with a delivery time that are recalled: never delivered, whoever dies, or the recall is refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import broker.delivery.timers
import store.state.timers
from dledger_client.aio import Message
from dledger_client.cluster.router import Router
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import BusyError, ClientClosedError, DledgerError, InvalidArgumentError
from dledger_wire.names import TIMER_TOPIC
from dledger_wire.rpc import methods
from store.commands.command import JsonObject
from store.commands.redelivery import AdvanceTimers, RecallTimed
from store.state.state_machine import CommandContext, CommandHandlers
from store.state.timers import Timers
from tests.unit.broker.test_timers import send_at, wall_ms
from tests.unit.client.sim_rig import Rig, node_of, until

LATE = r"does not wait any more|no message .* waits"


async def recall(router: Router, unique_id: str, offset: int, topic: str = "t", timeout_ms: int = 20_000) -> None:
    request = broker_pb2.RecallMessageRequest(topic=topic, unique_id=unique_id, offset=offset)
    deadline_ms = router.clock.monotonic_ms() + timeout_ms
    await router.ensure_group("g0", deadline_ms)
    await router.call_leader("g0", methods.RECALL_MESSAGE, request, deadline_ms=deadline_ms)


async def waiting(rig: Rig) -> dict[str, tuple[str, int]]:
    """Unique id and offset of every message that was stored to wait, by its body: the last copy."""
    node = node_of(rig, rig.master)
    found: dict[str, tuple[str, int]] = {}
    low, high = node.store.reader.bounds(TIMER_TOPIC, 0)
    for unit in await node.store.reader.units(TIMER_TOPIC, 0, low, high - low):
        message = await node.store.query.at(int(unit["pos"]))
        assert message is not None
        found[message.frame.body.decode()] = (message.frame.properties["UNIQ_KEY"], message.frame.queue_offset)
    return found


def test_a_producer_recalls_what_it_sent_also_at_the_next_leader() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            sent = [await producer.send(Message("t", b"%d" % number, deliver_at_ms=start + 20_000)) for number in range(3)]
            await producer.recall("t", sent[0])
            rig.isolate(rig.master)
            await producer.recall("t", sent[1])
            await producer.recall("t", sent[0])
            (kept,) = await consumer.fetch("t", 0, 0, 10, wait_ms=30_000)
            assert kept.body == b"2"
            with pytest.raises(InvalidArgumentError, match=LATE):
                await producer.recall("t", sent[2])
            plain = await producer.send(Message("t", b"at once"))
            with pytest.raises(InvalidArgumentError, match=LATE):
                await producer.recall("t", plain)
        with pytest.raises(ClientClosedError):
            await producer.recall("t", sent[0])

    Rig().run(scenario)


def test_what_is_recalled_is_not_delivered_and_the_others_are() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("other")
        router = rig.router()
        async with rig.producer() as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            for body, after_ms in ((b"a", 2000), (b"b", 2000), (b"c", 3000), (b"now", 500)):
                await send_at(producer, body, start + after_ms)
            places = await waiting(rig)
            with pytest.raises(InvalidArgumentError, match="no message"):
                await recall(router, *places["b"], topic="other")  # who may write there may not recall what is for others
            with pytest.raises(InvalidArgumentError, match="no message"):
                await recall(router, places["a"][0], places["b"][1])
            for _ in range(2):  # it may be repeated
                await recall(router, *places["b"])
            (now,) = await consumer.fetch("t", 0, 0, wait_ms=2000)
            assert now.body == b"now"
            with pytest.raises(InvalidArgumentError, match="does not wait any more"):
                await recall(router, *places["now"])
            await asyncio.sleep(4)
            assert [message.body for message in await consumer.fetch("t", 0, 0, 10)] == [b"now", b"a", b"c"]
            with pytest.raises(InvalidArgumentError, match="does not wait any more"):
                await recall(router, *places["b"])
        await router.close()

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_what_was_recalled_stays_so_whoever_dies_and_wherever_it_was_moved(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row D5.  A recall that is refused does not count; each other message comes once."""
    monkeypatch.setattr(broker.delivery.timers, "WINDOW_MESSAGES", 7)
    monkeypatch.setattr(broker.delivery.timers, "BATCH_MESSAGES", 3)
    monkeypatch.setattr(broker.delivery.timers, "SCAN_UNITS", 5)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 700)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 100)
    recalled, refused, unknown = set[str](), set[str](), set[str]()

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        randomness, router = rig.cluster.random, rig.router()

        async def recalls(places: dict[str, tuple[str, int]]) -> None:
            for body, place in places.items():
                await asyncio.sleep(randomness.random() * 0.3)
                try:
                    await recall(router, *place)
                    recalled.add(body)
                except InvalidArgumentError:
                    refused.add(body)
                except DledgerError:
                    unknown.add(body)

        async with rig.producer(send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            for number in range(60):
                await send_at(producer, b"%d" % number, start + 500 + int(randomness.random() * 60) * 100)
            places = await waiting(rig)
            chosen = {body: places[body] for body in randomness.sample(sorted(places), 30)}
            recalling = asyncio.create_task(recalls(chosen))
            for _ in range(3):
                await until(lambda: rig.cluster.master() is not None)
                victim = rig.master
                await asyncio.sleep(randomness.random() * 1.5)
                rig.cluster.kill(victim)
                await asyncio.sleep(0.2)
                rig.cluster.start(victim)
            await recalling
            await until(lambda: rig.cluster.master() is not None and wall_ms(rig) > start + 9000)
            messages: list[ReceivedMessage] = []
            while found := await consumer.fetch("t", 0, len(messages), 100, wait_ms=3000):
                messages += found
            bodies = [message.body.decode() for message in messages]
            assert len(bodies) == len(set(bodies))
            assert not recalled & set(bodies)
            assert {f"{number}" for number in range(60)} - set(bodies) <= recalled | unknown
            assert recalled
        await router.close()

    Rig(seed).run(scenario)


def test_a_recall_just_before_its_message_is_due_counts_or_is_refused() -> None:
    """The delivery may be on its way to the log already."""
    recalled, refused = set[bytes](), set[bytes]()

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        router = rig.router()

        async def recall_at(moment_ms: int, body: bytes, place: tuple[str, int]) -> None:
            await until(lambda: wall_ms(rig) >= moment_ms)
            try:
                await recall(router, *place)
                recalled.add(body)
            except InvalidArgumentError:
                refused.add(body)

        async with rig.producer() as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            due = {b"%d" % number: start + 4000 + 10 * number for number in range(150)}
            await asyncio.gather(*(send_at(producer, body, due_ms) for body, due_ms in due.items()))
            places, randomness = await waiting(rig), rig.cluster.random
            await asyncio.gather(
                *(recall_at(due_ms - int(randomness.random() * 40), body, places[body.decode()]) for body, due_ms in due.items())
            )
            await asyncio.sleep(3)
            delivered = [message.body for message in await consumer.fetch("t", 0, 0, 200)]
            assert sorted(delivered) == sorted(refused)
            assert recalled
            assert refused
        await router.close()

    Rig().run(scenario)


def test_a_message_that_was_moved_is_found_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 700)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 100)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        router = rig.router()
        async with rig.producer() as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            await send_at(producer, b"kept", start + 4000)
            await send_at(producer, b"back", start + 4000)
            first = await waiting(rig)
            await send_at(producer, b"early", start + 2000)
            await until(lambda: node_of(rig, rig.master).store.timers.progress.low > first["back"][1])
            await recall(router, *first["back"])
            await asyncio.sleep(5)
            assert [message.body for message in await consumer.fetch("t", 0, 0, 10)] == [b"early", b"kept"]
        await router.close()

    Rig().run(scenario)


class _Section:
    """The state alone, with commands applied to it."""

    def __init__(self) -> None:
        self.timers, self._handlers = Timers(), CommandHandlers()
        self.timers.register(self._handlers)

    def apply(self, command: RecallTimed | AdvanceTimers) -> None:
        self._handlers.apply(command, CommandContext(1, 1, 1, 1))

    def recall(self, offset: int, due_ms: int) -> None:
        self.apply(RecallTimed(offset=offset, due_ms=due_ms))

    @property
    def recalled(self) -> JsonObject:
        return dict(self.timers.dump().get("recalled", {}))


def test_the_state_decides_by_where_a_recall_stands_and_forgets_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.state.timers, "MAX_RECALLED", 3)
    section = _Section()
    for offset, due_ms in ((0, 50), (1, 40), (7, 10)):
        section.recall(offset, due_ms)
    with pytest.raises(BusyError, match="3 messages were recalled"):
        section.recall(2, 60)
    section.recall(0, 50)
    section.apply(AdvanceTimers(low=0, seen=5, done_ms=40, done_offset=1))
    with pytest.raises(InvalidArgumentError, match=LATE):
        section.recall(1, 40)  # though what is due first is not scanned yet, so that nothing was forgotten
    assert section.recalled == {"0": 50, "1": 40, "7": 10}
    section.apply(AdvanceTimers(low=0, seen=8, done_ms=40, done_offset=1))
    assert section.recalled == {"0": 50}
    restored = _Section()
    restored.timers.load(section.timers.dump())
    assert restored.timers.not_recalled(np.arange(3)).tolist() == [False, True, True]
    restored.apply(AdvanceTimers(low=1, seen=8, done_ms=40, done_offset=1))
    assert restored.recalled == {}
