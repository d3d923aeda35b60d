"""A producer that is started again under the same id: nothing twice, nothing lost, and whoever was left behind is fenced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger_client.aio import Message, Producer
from dledger_client.producer.delivery_report import AsyncSendFuture
from dledger_wire.batches.batch import Sequence64
from dledger_wire.errors import DledgerError, InvalidArgumentError, ProducerFencedError, ProducerForgottenError
from store.state.sequences import SequenceTable, TailSequences
from store.state.shared_places import SharedPlaces
from tests.sim.disk import DiskSettings
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_producer import bodies

ID = "loader-1"
COUNT = 60


def message(number: int) -> Message:
    return Message("t", b"%d" % number)


@pytest.mark.parametrize("seed", range(8))
def test_a_restarted_producer_goes_on_where_it_was(seed: int) -> None:
    """docs/reference/semantics, row P5: killed at any time, with its master, again and again."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        draw = rig.cluster.random
        lives = 0
        while True:
            producer = rig.producer(producer_id=ID, send_timeout_ms=30_000)
            done = await producer.stored("t")
            rest = [number for number in range(COUNT) if number // 2 >= done["g0", number % 2]]
            if not rest:
                await producer.close()
                break
            lives += 1
            waiting = [producer.send_async(message(number), queue_id=number % 2) for number in rest]
            if lives < 5:
                await asyncio.sleep(draw.random() * 0.02)
                if lives % 2:
                    await until(lambda: rig.cluster.master() is not None)
                    victim = rig.master
                    rig.cluster.kill(victim)
                    rig.cluster.start(victim)
                    await asyncio.sleep(draw.random() * 1.5)
                abandon(producer)
            else:
                for future in waiting:
                    await future
                await producer.close()
        async with rig.consumer() as consumer:
            for queue_id in range(2):
                assert await bodies(consumer, queue_id) == [b"%d" % number for number in range(queue_id, COUNT, 2)]

    Rig(seed).run(scenario)


def abandon(producer: Producer) -> None:
    """The process dies: nobody sends or hears anything any more."""
    producer._core.tasks.cancel()


def test_the_older_of_two_is_fenced_for_good() -> None:
    """docs/reference/semantics, row P5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        old, new = rig.producer(producer_id=ID), rig.producer(producer_id=ID)
        assert (await old.send(message(0))).queue_offset == 0
        assert await new.stored("t") == {("g0", 0): 1}
        with pytest.raises(ProducerFencedError, match="fenced"):
            await old.send(message(1))
        assert (await new.send(message(1))).queue_offset == 1
        for _ in range(3):
            with pytest.raises(ProducerFencedError):
                await old.send(message(2))
        assert (await new.send(message(2))).queue_offset == 2
        await old.close()
        await new.close()
        async with rig.producer() as nameless:
            with pytest.raises(InvalidArgumentError, match="producer_id"):
                await nameless.stored("t")

    Rig().run(scenario)


def test_counts_that_were_forgotten_are_refused_and_sends_go_on() -> None:
    """docs/reference/semantics, row P5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for host in rig.cluster.hosts.values():
            assert host.node is not None
            host.node.store.sequences._named_places = SharedPlaces(3)
        async with rig.producer(producer_id=ID) as first:
            await first.send(message(0))
        for number in range(3):
            async with rig.producer(producer_id=f"other-{number}") as other:
                await other.send(message(1))
        for _ in range(2):
            async with rig.producer(producer_id=ID) as again:
                with pytest.raises(ProducerForgottenError, match=f"g0 has forgotten what producer {ID} stored before; read the topic"):
                    await again.stored("t")
                await again.send(message(2))
        async with rig.producer(producer_id="never-used") as fresh:
            assert await fresh.stored("t") == {("g0", 0): 0}

    Rig().run(scenario)


def test_counts_survive_snapshots_epochs_and_other_topics() -> None:
    table = SequenceTable(10, 1000)
    producer_id, epoch = table.register(0, 77, 0, "x")
    assert (producer_id, epoch) == (77, 0)
    table.store(("t", 0), Sequence64(77, 0, 0), 5, 100, 1)
    assert table.register(0, 99, 2, "x") == (77, 1)
    table.store(("t", 0), Sequence64(77, 1, 0), 3, 105, 3)
    table.store(("u", 1), Sequence64(77, 1, 0), 2, 0, 3)
    assert table.register(0, 120, 4, "y") == (120, 0)
    copy = SequenceTable(10, 1000)
    copy.load(table.dump())
    assert copy.dump() == table.dump()
    assert copy.register(0, 130, 5, "x") == (77, 2)
    state = copy.get(77)
    assert state is not None
    assert state.stored() == {("t", 0): 8, ("u", 1): 2}
    copy.forget_topic("t")
    assert state.stored() == {("u", 1): 2}
    copy.register(0, 140, 2000, "z")  # everybody else has been silent for too long
    assert copy.register(0, 150, 2001, "x") == (150, 0)


def test_nothing_of_an_old_epoch_comes_behind_a_new_one() -> None:
    """Between a registration's place in the log and its application batches of the epoch before are refused already."""
    table = SequenceTable(10, 1000)
    tail = TailSequences(table)

    def judged(epoch: int) -> Any:
        return tail.judge(("t", 0), Sequence64(77, epoch, 0), 1)

    tail.registering("x")
    tail.registering("x")
    table.register(0, 77, 0, "x")
    tail.registered("x")
    assert isinstance(judged(0).error, ProducerFencedError)
    table.register(0, 88, 0, "x")
    tail.registered("x")
    assert isinstance(judged(0).error, ProducerFencedError)
    assert judged(1).is_fresh


@pytest.mark.parametrize("seed", range(6))
def test_what_an_earlier_life_still_sends_never_comes_behind_the_count(seed: int) -> None:
    """docs/reference/semantics, row P5: the older one never stops sending while the newer one starts, and the master may die."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        draw = rig.cluster.random
        old, new = rig.producer(producer_id=ID), rig.producer(producer_id=ID)
        await old.send(Message("t", b"old"))
        sent = [old.send_async(Message("t", b"old"))]

        async def keep_sending() -> None:
            for _ in range(200):
                sent.append(old.send_async(Message("t", b"old")))
                await asyncio.sleep(draw.random() * 0.004)

        sending = asyncio.create_task(keep_sending())
        await asyncio.sleep(draw.random() * 0.2)
        if seed % 2:
            rig.cluster.kill(rig.master)
        count = (await new.stored("t"))["g0", 0]
        await new.send(Message("t", b"new"))
        await sending
        sent.append(old.send_async(Message("t", b"old")))
        outcomes = [await known(future) for future in sent]
        assert isinstance(outcomes[-1], ProducerFencedError)
        async with rig.consumer() as consumer:
            assert await bodies(consumer) == [b"old"] * count + [b"new"]
        assert outcomes.count(None) < count
        await new.close()
        await old.close()

    # Slow disks: much is in the log and not applied yet when the newer one registers.
    Rig(seed, disk=DiskSettings(sync_s=0.02)).run(scenario)


async def known(future: AsyncSendFuture) -> DledgerError | None:
    try:
        await future
    except DledgerError as error:
        return error
    return None
