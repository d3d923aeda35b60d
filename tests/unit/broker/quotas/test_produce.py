"""Quotas on Produce streams of whole nodes: who is delayed, by which rule, and that nothing is refused."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from broker.metrics.node_samples import NodeSamples
from dledger_client.aio import Admin, ClusterQuota, Message, Producer
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, InvalidNameError, NotLeaderError, NotSentError, UnreachableError
from dledger_wire.rpc import methods
from store.commands.quotas import Subject
from tests.sim.security import APPLICATION
from tests.sim.spread.users import create_users
from tests.unit.client.sim_rig import Rig, context_of, node_of, until

RATE = 20
SENT = 120  # of which a second of the rate goes at once


async def send_all(producer: Producer, topic: str, count: int = SENT) -> float:
    """How long it takes, in seconds, one message a request."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for number in range(count):
        await producer.send(Message(topic, b"%d" % number), queue_id=0)
    return loop.time() - began_s


def limited_s(count: int = SENT, rate: float = RATE) -> float:
    return (count - rate) / rate


async def only(admin: Admin) -> ClusterQuota:
    (quota,) = await admin.list_quotas()
    return quota


def test_a_topic_gets_its_rate_and_another_topic_is_not_slowed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("slow")
        await rig.topic("free")
        async with rig.admin() as admin, rig.producer() as one, rig.producer() as other:
            unlimited_s = await send_all(other, "free")
            await admin.set_quota("topic", "slow", produce_messages=RATE)
            slow_s, free_s = await asyncio.gather(send_all(one, "slow"), send_all(other, "free"))
            assert slow_s == pytest.approx(limited_s(), rel=0.1)
            assert free_s < max(2 * unlimited_s, 1.0)
            (use,) = (await only(admin)).used
            assert (use.name, use.replica_group, use.shares) == ("slow", "g0", 1)
            assert use.used["produce_messages"] == pytest.approx(RATE, rel=0.3)
            assert use.throttled_s == pytest.approx(slow_s, rel=0.2)
            assert use.throttled_requests > SENT / 2
            assert node_of(rig, rig.master).measures.requests["Broker/Produce", "OK"].total >= 0
            samples = (await NodeSamples(node_of(rig, rig.master)).samples()).values
            waited = samples["dledger_quota_throttled_seconds_total"]["g0", rig.master, "topic"]
            assert waited == pytest.approx(use.throttled_s, abs=1e-6)
            assert samples["dledger_quota_throttled_requests_total"]["g0", rig.master, "user"] == 0

    Rig().run(scenario)


def test_bytes_count_as_they_are_stored() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer:
            await admin.set_quota("topic", "*", produce_bytes=10_000)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            for _ in range(50):
                await producer.send(Message("t", bytes(1000)), queue_id=0)
            assert 50 * 1000 / 10_000 - 1 < loop.time() - began_s < 50 * 1300 / 10_000

    Rig().run(scenario)


def test_producers_of_a_group_share_its_rate_and_a_new_stream_pays_first() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            await admin.set_quota("producer-group", "tests", produce_messages=RATE)
            async with rig.producer() as one, rig.producer() as other:
                took = await asyncio.gather(send_all(one, "t", SENT // 2), send_all(other, "t", SENT // 2))
                assert max(took) == pytest.approx(limited_s(), rel=0.15)
            began_s = asyncio.get_running_loop().time()
            for number in range(SENT):
                async with rig.producer() as again:
                    await again.send(Message("t", b"%d" % number))
            assert asyncio.get_running_loop().time() - began_s > 0.8 * limited_s()

    Rig().run(scenario)


def test_a_user_is_delayed_whatever_it_sends_to() -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        for topic in ("a", "b"):
            await rig.topic(topic)
        async with rig.admin() as admin, rig.producer() as producer:
            await admin.set_quota("user", "*", produce_messages=RATE)
            for topic in ("a", "b"):
                await send_all(producer, topic, SENT // 2)
            (use,) = (await only(admin)).used
            assert (use.name, use.throttled_s > 0.8 * limited_s()) == (APPLICATION, True)

    Rig(secured=True).run(scenario)


@pytest.mark.parametrize("most", [1, 50_000])
def test_what_a_user_has_unacknowledged_is_bounded_over_all_its_streams(most: int) -> None:
    size, streams = 20_000, 8

    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await rig.topic()
        seen: list[int] = []
        quotas = context_of(rig, rig.master).quotas
        producers = [rig.producer(compress_type="none") for _ in range(streams)]
        async with rig.admin() as admin:
            await admin.set_quota("user", APPLICATION, unacknowledged_bytes=most)
            for producer in producers:
                await producer.send(Message("t", b"first"))  # the stream is open
            sent = quotas.unacknowledged[APPLICATION]
            assert (sent.streams, sent.size_bytes) == (streams, 0)

            async def look() -> None:
                while True:
                    seen.append(sent.size_bytes)
                    await asyncio.sleep(0.0005)

            async def send(producer: Producer) -> None:
                for _ in range(20):
                    await producer.send(Message("t", bytes(size)))

            looking = asyncio.create_task(look())
            await asyncio.gather(*map(send, producers))
            looking.cancel()
            assert most / 2 < statistics.median(seen) < most + 1.2 * size, "in turn; without the quota all have a message under way"
            (use,) = (await only(admin)).used
            assert (use.used["unacknowledged_bytes"], use.throttled_requests > 0) == (0, True)
        for producer in producers:
            await producer.close()
        await until(lambda: APPLICATION not in quotas.unacknowledged)
        assert sent.size_bytes == 0

    Rig(secured=True).run(scenario)


def test_a_stream_that_breaks_off_gives_back_what_it_held_and_wakes_others() -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await rig.topic()
        quotas = context_of(rig, rig.master).quotas
        async with rig.admin() as admin, rig.producer(send_timeout_ms=60_000) as other:
            await admin.set_quota("user", "*", unacknowledged_bytes=1_000)
            await other.send(Message("t", b"first"))
            for follower in rig.followers:
                rig.cluster.kill(follower)  # nothing commits any more
            broken = rig.producer(send_timeout_ms=500)
            with pytest.raises(DledgerError):
                await broken.send(Message("t", bytes(5_000)))
            sent = quotas.unacknowledged[APPLICATION]
            waiting = [asyncio.create_task(other.send(Message("t", b"%d" % number))) for number in range(3)]
            await broken.close()
            for follower in rig.followers:
                rig.cluster.start(follower)
            await asyncio.gather(*waiting)
            await until(lambda: sent.size_bytes == 0)

    Rig(secured=True).run(scenario)


def test_a_producer_that_floods_learns_how_long_it_is_held_back_and_leaves_nothing_in_doubt() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer(send_timeout_ms=3_000, batch_bytes=20_000, compress_type="none") as producer:
            await producer.send(Message("t", b"first"))
            assert producer.throttled_s == 0
            await admin.set_quota("topic", "t", produce_bytes=100_000)
            began_s = asyncio.get_running_loop().time()
            sent = await asyncio.gather(*(producer.send(Message("t", bytes(10_000))) for _ in range(100)), return_exceptions=True)
            took_s = asyncio.get_running_loop().time() - began_s
            failed = [each for each in sent if isinstance(each, BaseException)]
            assert 20 < 100 - len(failed) < 50, "a second's worth at once, and the rate"
            assert {type(each) for each in failed} == {NotSentError}, "none may be stored"
            assert "a quota is exceeded: the leader of replica group g0 takes no more now" in str(failed[-1])
            assert 0.5 * took_s < producer.throttled_s < took_s + 1
            await admin.delete_quota("topic", "t")
            await producer.send(Message("t", bytes(10_000)))
            before_s = producer.throttled_s
            await producer.send(Message("t", bytes(10_000)))
            assert producer.throttled_s == before_s

    Rig().run(scenario)


def test_a_rule_that_goes_frees_who_waits_for_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer(send_timeout_ms=60_000) as producer:
            await admin.set_quota("topic", "t", produce_messages=1)
            await producer.send_many("t", [b"x"] * 30)
            waiting = asyncio.create_task(send_all(producer, "t", 2))
            quotas = context_of(rig, rig.master).quotas
            await until(lambda: any(each.debt_s(quotas.now_s()) > 20 for each in quotas.used_lately()))
            (use,) = (await only(admin)).used
            assert 20 < use.waits_s < 31
            await admin.delete_quota("topic", "t")
            await asyncio.wait_for(waiting, 2)
            assert await admin.list_quotas() == []

    Rig().run(scenario)


def test_rules_survive_changes_of_the_leader_restarts_and_snapshots() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer:
            await admin.set_quota("topic", "t", produce_messages=RATE)
            await admin.set_quota("topic", "*", produce_bytes=1 << 20)
            expected = await admin.list_quotas()
            for node_id in list(rig.cluster.groups["g0"].node_ids):
                await rig.restart(node_id)
                assert [(each.name, each.limits) for each in await admin.list_quotas()] == [(each.name, each.limits) for each in expected]
                assert await send_all(producer, "t", 3 * RATE) == pytest.approx(limited_s(3 * RATE), rel=0.5)
            for node_id in rig.cluster.groups["g0"].node_ids:
                await until(lambda node_id=node_id: node_of(rig, node_id).store.quotas.rule(Subject.TOPIC, "t") is not None)

    Rig().run(scenario)


def test_every_replica_group_has_the_rules_and_what_lacks_them_is_named() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        async with rig.admin() as admin:
            await admin.set_quota("topic", "t", produce_messages=RATE)
            assert (await only(admin)).missing_in == ()
            router = rig.router()
            rule = admin_pb2.QuotaRule(kind="topic", name="t", limits={"produce_messages": 1})
            await router.call_leader("g1", methods.SET_QUOTA, rule, deadline_ms=router.clock.monotonic_ms() + 5000)
            assert (await only(admin)).missing_in == ("g0",)
            await admin.set_quota("topic", "t", produce_messages=RATE)
            async with rig.producer() as producer:
                loop = asyncio.get_running_loop()
                began_s = loop.time()
                for number in range(SENT):
                    await producer.send(Message("t", b"x"), queue_key=lambda count, number=number: number % count)
                assert loop.time() - began_s == pytest.approx(limited_s(), rel=0.2), "both leaders together give the rate"
            assert {(use.replica_group, use.shares) for use in (await only(admin)).used} == {("g0", 2), ("g1", 2)}
            for node_id in rig.cluster.groups["g1"].node_ids:
                rig.cluster.kill(node_id)
            with pytest.raises((NotLeaderError, UnreachableError), match=r"is changed in g0, not in g1: repeat it"):
                await admin.delete_quota("topic", "t")

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize(
    ("kind", "name", "limits"),
    [
        ("planet", "t", {"produce_bytes": 1}),
        ("topic", "a b", {"produce_bytes": 1}),
        ("user", "a/b", {}),
        ("topic", "t", {"produce_bytes": 0}),
        ("topic", "t", {"produce_bytes": 1 << 60}),
        ("topic", "t\udc80", {}),
    ],
)
def test_a_rule_that_means_nothing_is_refused(kind: str, name: str, limits: dict[str, int]) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            with pytest.raises((InvalidArgumentError, InvalidNameError)):
                await admin.set_quota(kind, name, **limits)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="there is no quota for topic 't'"):
                await admin.delete_quota("topic", "t")
            assert await admin.list_quotas() == []

    Rig().run(scenario)
