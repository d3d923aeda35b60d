"""Where long reads go and what they bring: near replicas first, none that lags too far, frames without bodies."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from dledger_client.aio import Message
from dledger_client.fetch.records import ReplicaLag
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frames import frame_heads, frame_positions
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


def test_a_follower_tells_how_far_it_is_behind_and_since_when_it_heard_nothing() -> None:
    """docs/reference/semantics, row R2.  It tells so by its own clock, which does not run like the one that the test sleeps by."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        lagging = rig.followers[0]
        clock = rig.cluster.hosts[lagging].clock
        async with rig.producer() as producer, rig.consumer(replica=lagging) as pinned, rig.consumer() as at_leader:
            await producer.send(Message("t", b"0"))
            await asyncio.sleep(1)
            chunk, *_ = await pinned.fetch_chunks("t", 0, 0)
            assert (chunk.count, chunk.lag.entries) == (1, 0)
            assert 0 <= (chunk.lag.leader_silent_ms or 0) < 300
            assert (await at_leader.fetch_chunks("t", 0, 0))[0].lag == ReplicaLag(0, 0)
            for node_id in rig.cluster.hosts:
                if node_id != lagging:
                    rig.cluster.net.cut(rig.cluster.hosts[node_id].ip, rig.cluster.hosts[lagging].ip)
            cut_ms = clock.monotonic_ms()
            await producer.send(Message("t", b"1"))
            sent_ms = clock.monotonic_ms()  # what was under way at the cut has arrived by then
            await asyncio.sleep(5)
            least_ms = clock.monotonic_ms() - sent_ms
            chunk, *_ = await pinned.fetch_chunks("t", 0, 0)
            assert chunk.count == 1
            assert least_ms <= (chunk.lag.leader_silent_ms or 0) <= clock.monotonic_ms() - cut_ms + 300
            *_, empty = await pinned.fetch_chunks("t", 0, 1)
            assert (empty.count, (empty.lag.leader_silent_ms or 0) >= least_ms) == (0, True)

    Rig().run(scenario)


def test_a_follower_that_does_not_apply_tells_what_it_has_heard_of() -> None:
    """docs/reference/semantics, row R2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        lagging = rig.followers[0]
        node = rig.cluster.hosts[lagging].node
        assert node is not None
        async with rig.producer() as producer, rig.consumer(replica=lagging) as pinned:
            await producer.send(Message("t", b"0"))
            await asyncio.sleep(1)
            node.raft._replica.core._core.following.seen_commit += 40  # a leader says so; the entries have not come
            chunk, *_ = await pinned.fetch_chunks("t", 0, 0)
            assert chunk.lag.entries == 40

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


def test_a_compressed_message_without_its_body_has_none() -> None:
    """Its body was called damaged, also by who only printed the message."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send(Message("t", bytes(100_000)))
            (chunk,) = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 1, without_body=True)]
            (message,) = chunk.messages()
            assert message.body == b""
            assert repr(message) == "ReceivedMessage(t/0@0, b'')"

    Rig().run(scenario)
