"""What one replica has not, has lost or does not say, another one is asked for: expired, silent and damaged replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from broker.security.admission import ClusterAdmission
from dledger_client.aio import Message
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_client.fetch.replica_attempts import ReplicaFailover, Source
from dledger_wire.errors import AuthenticationFailedError, OffsetOutOfRangeError, UnreachableError
from store.state.security import SecurityState
from tests.sim.spread.users import create_users
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import CLIENT_IP, Rig, until

COUNT = 200  # of 1000 bytes: several segments of the simulated log


async def fill(rig: Rig, count: int = COUNT) -> None:
    await rig.topic()
    async with rig.producer() as producer:
        for number in range(count):
            producer.send_oneway(Message("t", b"%d " % number + bytes(1000), tags=f"a{number % 3}", keys=f"k{number}"))
        await producer.flush()
    await until(lambda: all(bounds(rig, node_id)[1] == count for node_id in rig.cluster.hosts))


def small_chunks(rig: Rig) -> None:
    """An answer takes many chunks, and not all of it is on its way at once."""
    rig.cluster.net.settings.window_bytes = 40_000
    for host in rig.cluster.running():
        assert host.node is not None
        host.node.store.settings = replace(host.node.store.settings, chunk_bytes=20_000)


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body.split()[0]) for message in messages]


def bounds(rig: Rig, node_id: str) -> tuple[int, int]:
    """What a node holds of the queue."""
    node = rig.cluster.hosts[node_id].node
    queue = node.store.queues.get(("t", 0)) if node is not None else None
    return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)


async def expire(rig: Rig, node_id: str, most: int = 1 << 30) -> int:
    """One node deletes the log's head by itself; the first offset it still holds."""
    node = rig.cluster.hosts[node_id].node
    assert node is not None
    await asyncio.sleep(3)  # clocks differ
    await node.store.expiry.expire(0, most)
    return bounds(rig, node_id)[0]


def test_what_a_follower_expired_is_read_from_another_replica() -> None:
    """docs/reference/semantics, row R5."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        least = [await expire(rig, node_id) for node_id in rig.followers]
        assert min(least) > 50
        for read_from in ("follower", "any"):
            async with rig.consumer(read_from=read_from) as consumer:
                for _ in range(4):
                    assert numbers(await consumer.fetch("t", 0, 3, 50)) == list(range(3, 53))
                    chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, COUNT)]
                    assert [number for chunk in chunks for number in numbers(chunk.messages())] == list(range(COUNT))
        async with rig.consumer(replica=rig.followers[0]) as pinned:
            with pytest.raises(OffsetOutOfRangeError):
                await pinned.fetch("t", 0, 0)

    Rig().run(scenario)


@pytest.mark.parametrize("read_from", ["follower", "any"])
def test_what_all_replicas_expired_is_told_with_the_smallest_first_offset(read_from: str) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        least = [await expire(rig, rig.followers[0], 4), await expire(rig, rig.followers[1], 2), await expire(rig, rig.master, 3)]
        assert 0 < least[1] < least[2] < least[0]
        async with rig.consumer(read_from=read_from) as consumer:
            for _ in range(4):
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    await consumer.fetch("t", 0, 0)
                assert (caught.value.min_offset, caught.value.max_offset) == (least[1], COUNT)
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    await anext(consumer.read_chunks("t", 0, 0, COUNT))
                assert caught.value.min_offset == least[1]

    Rig().run(scenario)


def test_without_the_leaders_word_nothing_is_given_up() -> None:
    """Followers that expired it, and nobody leads: the reader waits for a leader, and reads from it."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        expired = rig.followers[0]
        await expire(rig, expired)
        other = rig.followers[1]
        rig.cluster.kill(other)
        leader = rig.master
        rig.cluster.kill(leader)
        async with rig.consumer(read_from="follower", timeout_ms=20_000) as consumer:
            reading = asyncio.ensure_future(consumer.fetch("t", 0, 0, 5))
            await asyncio.sleep(2)
            assert not reading.done()
            rig.cluster.start(other)
            assert numbers(await reading) == list(range(5))

    Rig().run(scenario)


def test_a_push_consumer_at_followers_skips_nothing_that_another_replica_holds() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 120)
        for node_id in rig.followers:
            assert await expire(rig, node_id) > 50
        group = Group(rig, read_from="follower")
        await group.start("a")
        await until(lambda: len(group.seen) >= 120)
        assert sorted(int(body.split()[0]) for body in group.bodies()) == list(range(120))
        await group.stop()

    Rig().run(scenario)


def test_a_replica_that_falls_silent_is_left_after_a_few_seconds() -> None:
    """docs/reference/semantics, row R1: one process stands still while it is read from."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        loop = rig.cluster.loop
        async with rig.consumer(read_from="follower", timeout_ms=120_000) as consumer:
            offsets, replicas, paused_at = [], [], 0.0
            async for chunk in consumer.read_chunks("t", 0, 0, COUNT, chunk_bytes=20_000):
                offsets += chunk.offsets.tolist()
                replicas.append(chunk.replica)
                if not paused_at:
                    paused_at = loop.now_s
                    process = rig.cluster.hosts[chunk.replica].process
                    assert process is not None
                    loop.pause(process)
            assert offsets == list(range(COUNT))
            assert loop.now_s - paused_at < 4
            assert replicas[-1] != replicas[0]
            paused_at = loop.now_s
            for _ in range(4):
                assert len(await consumer.fetch("t", 0, 0, 10)) == 10
            assert loop.now_s - paused_at < 7, "it is tried every other time, and left"
            assert process is not None
            loop.resume(process)
            await asyncio.sleep(1)

    Rig().run(scenario)


def test_the_callers_own_time_is_not_counted() -> None:
    """Rows are worked on for longer than the timeout, then the replica dies: another one goes on."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        small_chunks(rig)
        async with rig.consumer(read_from="follower", timeout_ms=2_000) as consumer:
            offsets: list[int] = []
            async for chunk in consumer.read_chunks("t", 0, 0, COUNT, chunk_bytes=1 << 20):
                offsets += chunk.offsets.tolist()
                await asyncio.sleep(5)
                if chunk.offsets[0] == 0:
                    rig.cluster.kill(chunk.replica)
            assert offsets == list(range(COUNT))

    Rig().run(scenario)


def test_replicas_that_are_all_slow_are_waited_for_longer_each_time() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 20)
        async with rig.consumer(read_from="follower", timeout_ms=60_000) as consumer:
            assert len(await consumer.fetch("t", 0, 0, 1)) == 1
            for host in rig.cluster.hosts.values():
                rig.cluster.net.link(host.ip, CLIENT_IP).extra_s = 5.0
            chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 20)]
            assert [number for chunk in chunks for number in numbers(chunk.messages())] == list(range(20))

    Rig().run(scenario)


def test_an_answer_that_breaks_off_is_asked_for_whole_at_the_next_replica() -> None:
    """What came before the break is not in the result, so it is not passed over either."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        small_chunks(rig)
        async with rig.consumer(read_from="follower", timeout_ms=30_000) as consumer:
            seen = 0
            original = Fetcher._response

            async def dying(self: Fetcher, source: Source, *rest: Any) -> AsyncGenerator[Chunk]:
                nonlocal seen
                async for chunk in original(self, source, *rest):
                    seen += 1
                    if seen == 2:
                        raise UnreachableError("broken off")
                    yield chunk

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Fetcher, "_response", dying)
                assert numbers(await consumer.fetch("t", 0, 0, 150)) == list(range(150))
            assert seen > 3

    Rig().run(scenario)


def test_a_long_read_that_begins_while_nobody_leads_waits_for_a_leader() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 20)
        gone = [rig.master, rig.followers[0]]
        for node_id in gone:
            rig.cluster.kill(node_id)
        await asyncio.sleep(5)

        async def read() -> list[int]:
            async with rig.consumer(read_from="leader", timeout_ms=30_000) as consumer:
                chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 20, replica_group="g0")]
                return [number for chunk in chunks for number in numbers(chunk.messages())]

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(3)
        assert not reading.done()
        rig.cluster.start(gone[0])
        assert await reading == list(range(20))

    Rig().run(scenario)


def test_a_follower_that_refuses_the_client_is_passed_over() -> None:
    """As one whose certificate has expired: it alone is wrong.  What two replicas say is final."""

    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await fill(rig, 20)
        strange = ClusterAdmission("another", administrators={}, secret=None, users_required=True, users=SecurityState)
        listeners = rig.cluster.net.listeners

        def refuse(node_id: str) -> None:
            listener = listeners[rig.cluster.hosts[node_id].address]
            listener.security = replace(listener.security, admission=strange)
            listener.callers.clear()
            rig.cluster.net.break_connections(CLIENT_IP, rig.cluster.hosts[node_id].ip)

        for read_from in ("follower", "any"):
            async with rig.consumer(read_from=read_from, timeout_ms=5_000) as consumer:
                await consumer.fetch("t", 0, 0, 1)
                refuse(rig.followers[0])
                for _ in range(4):
                    assert numbers(await consumer.fetch("t", 0, 3, 5)) == list(range(3, 8))
                    chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 20)]
                    assert [number for chunk in chunks for number in numbers(chunk.messages())] == list(range(20))
        async with rig.consumer(replica=rig.followers[0]) as pinned:
            with pytest.raises(AuthenticationFailedError):
                await pinned.fetch("t", 0, 0)
        async with rig.consumer(read_from="follower") as consumer:
            await consumer.fetch("t", 0, 0, 1)
            refuse(rig.followers[1])
            await consumer.fetch("t", 0, 3, 5)  # finds that a stream is broken, and reads from the leader
            with pytest.raises(AuthenticationFailedError):
                await consumer.fetch("t", 0, 3, 5)

    Rig(secured=True).run(scenario)


class Hands:
    """A clock that the test turns."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def test_what_a_replica_failed_with_is_not_hidden_by_the_end_of_the_time() -> None:
    clock, source = Hands(), Source("n1", "h:1", is_leader=False, pinned=True)
    attempts = ReplicaFailover(clock, 2_000)
    assert attempts.left_s(source) == 0.5
    broken = UnreachableError("checksum does not match")
    assert attempts.failed(broken, source, 0, is_last=True) is broken
    clock.now_ms = 1_900
    assert attempts.left_s(source) == 0.1
    clock.now_ms = 2_000
    assert attempts.failed(UnreachableError("did not answer in time"), source, 0, is_last=True) is broken
    assert attempts.is_over
    attempts.progress()
    clock.now_ms += 2_000
    late = UnreachableError("did not answer in time")
    assert attempts.failed(late, source, 0, is_last=True) is late


@pytest.mark.parametrize(("waited_ms", "is_final"), [(1, True), (500, False)])
def test_a_refusal_is_not_final_while_another_replica_is_only_slow(waited_ms: int, is_final: bool) -> None:
    """As of a follower that does not know a new user yet, while the leader is busy: it is given more time in the next round."""
    clock, follower, leader = Hands(), Source("n1", "h:1", is_leader=False), Source("n0", "h:0", is_leader=True)
    attempts, refusal = ReplicaFailover(clock, 2_000), AuthenticationFailedError("user u is not known")
    assert attempts.in_order([follower, leader]) == [follower, leader]
    attempts.left_s(follower)
    assert attempts.failed(refusal, follower, 0, is_last=False).retriable
    attempts.left_s(leader)
    clock.now_ms += waited_ms
    assert (attempts.failed(UnreachableError("h:0: no response"), leader, 0, is_last=True) is refusal) is is_final


def test_a_replica_that_became_a_member_since_the_last_look_is_found() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        async with rig.consumer(replica=rig.followers[0]) as pinned:
            assert numbers(await pinned.fetch("t", 0, 0, 5)) == list(range(5))
            groups = pinned._router.groups
            group = groups["g0"]
            groups["g0"] = replace(group, nodes=tuple(node for node in group.nodes if node.id != rig.followers[0]))  # as it was before
            assert numbers(await pinned.fetch("t", 0, 5, 5)) == list(range(5, 10))

    Rig().run(scenario)
