"""Where long reads go and what they bring: near replicas first, none that lags too far, frames without bodies."""

from __future__ import annotations

import numpy as np
import pytest

from dledger_client.aio import Message
from dledger_wire.errors import DledgerError
from dledger_wire.frames import frame_heads, frame_positions
from tests.unit.client.sim_rig import Rig


def test_a_near_follower_is_read_first_and_left_when_it_lags_too_far() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for number in range(10):
                await producer.send(Message("t", b"%d" % number))
            lagging = rig.followers[0]
            near = frozenset({rig.cluster.hosts[lagging].ip})
            async with rig.consumer(read_from="follower", near=near) as consumer:
                found = [chunk.replica async for chunk in consumer.read_chunks("t", 0, 0, 10)]
                assert set(found) == {lagging}
            for node_id in rig.cluster.hosts:
                if node_id != lagging:
                    rig.cluster.net.cut(rig.cluster.hosts[node_id].ip, rig.cluster.hosts[lagging].ip)
            for number in range(10, 20):
                await producer.send(Message("t", b"%d" % number))
        async with rig.consumer(read_from="follower", near=near) as consumer:
            whole = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 20)]
            assert whole[0].replica == lagging
            assert whole[-1].replica != lagging
            for max_lag, first in ((10, lagging), (9, None)):
                chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 20, max_lag=max_lag)]
                assert [int(m.body) for chunk in chunks for m in chunk.messages()] == list(range(20))
                assert (chunks[0].replica == lagging) == (first == lagging)
        async with rig.consumer(replica=lagging, timeout_ms=500) as pinned:
            with pytest.raises(DledgerError):
                [chunk async for chunk in pinned.read_chunks("t", 0, 0, 20)]

    Rig().run(scenario)


def test_frames_come_without_bodies_when_nobody_wants_them() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            for size in (0, 5, 3000, 77):
                await producer.send(Message("t", bytes(size), keys=f"k{size}"))
            bare = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 4, without_body=True)]
            whole = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 4)]
            assert sum(len(chunk.frames) for chunk in whole) - sum(len(chunk.frames) for chunk in bare) == 3082
            heads = [frame_heads(np.frombuffer(chunk.frames, np.uint8), frame_positions(chunk.sizes))[0] for chunk in bare]
            assert [int(size) for each in heads for size in each["body_length"]] == [0, 5, 3000, 77]

    Rig().run(scenario)
