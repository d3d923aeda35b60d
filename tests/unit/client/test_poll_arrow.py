"""Tables of Arrow out of a polled consumer, against real nodes in virtual time."""

from __future__ import annotations

import pytest

from dledger_wire.errors import InvalidArgumentError
from tests.unit.client.poll_rig import PolledGroup
from tests.unit.client.push_rig import numbers, send
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_polled import committed

pytest.importorskip("pyarrow")


def test_tables_have_what_polls_would_return_and_count_as_consumed_alike() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 100, 2)
        group = PolledGroup(rig)
        member = group.add("a")
        consumer = member.consumer
        first = await group.poll(member, 100, 7)
        found = [(message.queue_id, message.queue_offset, message.body) for message in first]
        while len(found) < 100:
            table = await group.on(member, consumer.poll_arrow(30))
            assert 0 < table.num_rows <= 30
            assert table.column_names[:3] == ["topic", "group", "queue_id"]
            assert set(table["topic"].to_pylist()) == {"t"}
            found += zip(*(table[name].to_pylist() for name in ("queue_id", "queue_offset", "body")), strict=True)
        assert sorted(body for _, _, body in found) == sorted(numbers(100))
        for queue_id in (0, 1):
            assert [offset for number, offset, _ in found if number == queue_id] == list(range(50))
        assert (await group.on(member, consumer.poll_arrow(timeout_ms=0))).num_rows == 0
        await group.stop("a")
        assert set((await committed(rig)).values()) == {50}

    Rig().run(scenario)


def test_only_messages_of_the_filter_are_in_a_table() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for number in range(10):
            await send(rig, 1, first=number, tags="even" if number % 2 == 0 else "odd")
        group = PolledGroup(rig)
        member = group.add("a", topics=())
        member.consumer.subscribe("t", "odd")
        await group.on(member, member.consumer.start())
        table = await group.on(member, member.consumer.poll_arrow(columns=["tags", "body"]))
        assert table.to_pydict() == {"tags": ["odd"] * 5, "body": numbers(10)[1::2]}
        await group.stop("a")

    Rig().run(scenario)


def test_an_unknown_column_is_refused_before_anything_is_given() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 5)
        group = PolledGroup(rig)
        member = group.add("a")
        with pytest.raises(InvalidArgumentError, match="columns"):
            await group.on(member, member.consumer.poll_arrow(columns=["nonsense"]))
        assert (await group.on(member, member.consumer.poll_arrow(columns=["body"])))["body"].to_pylist() == numbers(5)
        await group.stop("a")

    Rig().run(scenario)
