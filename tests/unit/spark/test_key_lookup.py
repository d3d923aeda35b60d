"""Ranges narrowed by the index of keys, against nodes in virtual time: never a match left out, and little else read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_client.aio import Message
from pyspark_dledger.planning import key_lookup as by_key
from pyspark_dledger.planning.key_lookup import MAX_GAP, cut_to, keyed_offsets
from pyspark_dledger.planning.partitions import OffsetRange
from pyspark_dledger.planning.queue_offsets import QueueId
from tests.unit.client.sim_rig import Rig

QUEUES = [QueueId("t", "g0", number) for number in range(2)]


def test_the_index_names_every_message_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_key, "MAX_PAGE", 7)

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        expected: dict[QueueId, list[int]] = {}
        draw = random.Random(1)
        async with rig.producer() as producer:
            sent = []
            for _ in range(200):
                keys = [f"k{draw.randrange(9)}", f"k{draw.randrange(9)}"]
                sent.append((keys, producer.send_async(Message("t", b"x", keys=keys), queue_id=draw.randrange(2))))
            for keys, future in sent:
                result = await future
                if {"k3", "k5"} & set(keys):
                    expected.setdefault(QUEUES[result.queue_id], []).append(result.queue_offset)
        ranges = [OffsetRange(queue, 0, 200) for queue in QUEUES]
        router = rig.router()
        found = await keyed_offsets(router, ranges, ("k3", "k5"))
        assert found is not None
        assert {queue: sorted(set(offsets)) for queue, offsets in found.items()} == {q: sorted(each) for q, each in expected.items()}
        assert await keyed_offsets(router, ranges, ("nobody",)) == {}
        monkeypatch.setattr(by_key, "MAX_MATCHES", 10)
        assert await keyed_offsets(router, ranges, ("k3", "k5")) is None
        await router.close()

    Rig().run(scenario)


@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(0, 2000), st.integers(0, 2000))
def test_parts_cover_every_match_in_the_range_and_little_else(offsets: list[int], start: int, size: int) -> None:
    parts = cut_to([OffsetRange(QUEUES[0], start, start + size)], {QUEUES[0]: offsets, QUEUES[1]: [1]})
    covered = [offset for part in parts for offset in range(part.start, part.end)]
    wanted = {offset for offset in offsets if start <= offset < start + size}
    assert wanted <= set(covered)
    assert len(covered) == len(set(covered)) <= len(wanted) * MAX_GAP
    assert all(part.start in wanted and part.end - 1 in wanted for part in parts)
