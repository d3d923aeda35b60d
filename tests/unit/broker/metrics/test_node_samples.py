"""The metrics of whole nodes in virtual time: which there are, what they say, and that they stay bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from broker.delivery import waiting_messages
from broker.delivery.waiting_messages import WaitingMessages
from broker.metrics import catalog, slow_figures
from broker.metrics.node_samples import NodeSamples
from broker.metrics.process_samples import add_process
from broker.metrics.samples import Samples, SamplesRegistry
from broker.metrics.slow_figures import SlowLook
from broker.node import BrokerNode
from broker.support.process_stats import ProcessStats
from dledger_client.aio import Message
from dledger_wire.errors import StorageDamagedError
from dledger_wire.measures import Histogram
from store.traffic import Counts, Traffic
from tests.unit.broker.test_pop import GROUP, Consumer, send
from tests.unit.client.sim_rig import Rig, until

# What a cluster without users, TLS, real connections and refusals cannot tell.
NOT_HERE = {"dledger_tls_certificate_expiry_timestamp_seconds", "dledger_connections", "dledger_refusals_total"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def _looks(rig: Rig) -> dict[str, NodeSamples]:
    return {node_id: NodeSamples(host.node) for node_id, host in rig.cluster.hosts.items() if host.node is not None}


def _values(samples: Samples, name: str) -> Mapping[tuple[str, ...], Any]:
    """By the labels behind group and node: numbers, or histograms."""
    return {labels[2:]: value for labels, value in samples.values.get(catalog.PREFIX + name, {}).items()}


def test_a_group_at_work_tells_every_metric_of_the_catalogue() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        looks = _looks(rig)
        async with rig.producer() as producer, rig.consumer(group="readers") as consumer:
            for _ in range(6):
                await producer.send(Message("t", b"x" * 50))
            await producer.send(Message("t", b"later", delay_level=5))
            await consumer.fetch("t", queue_id=0, offset=0, max_messages=4)
            await consumer.commit({("t", 0): 2})
            await asyncio.sleep(6)  # virtual: the lag is looked at now and then
            found = {node_id: await look.samples() for node_id, look in looks.items()}
        master = found[rig.master]
        assert _values(master, "messages_in_total") == {("t",): 6}
        assert _values(master, "consumer_lag_messages") == {("t", "readers"): 4}
        lag_s = _values(master, "consumer_lag_seconds")["t", "readers"]
        assert isinstance(lag_s, float)
        assert 5.9 < lag_s < 8
        assert _values(master, "consumer_inflight") == {("t", "readers"): 2}
        timeout_s = _values(master, "raft_election_timeout_seconds")[()]
        assert isinstance(timeout_s, float)
        assert 0.2 <= timeout_s < 0.6  # less than configured: no message was late
        assert _values(master, "delay_messages_pending") == {(): 1}
        assert [_values(found[node], "consumer_lag_messages") for node in rig.followers] == [{}, {}]
        assert _values(master, "raft_is_leader") == {(): 1}
        assert _values(master, "raft_voters_acknowledging") == {(): 3}
        took = _values(master, "raft_replication_seconds")
        assert set(took) == {(peer,) for peer in rig.followers}
        assert all(isinstance(each, Histogram) and each.count > 0 for each in took.values())
        assert set(_values(master, "raft_elections_total")) == {("start",)}
        for samples in found.values():
            add_process(samples, ProcessStats(version="1"))
        told = {name for samples in found.values() for name in samples.values}
        wanted = {metric.name for metric in catalog.METRICS if "node" in metric.on} - NOT_HERE
        # One series for each reason, and for each group, once there was one.
        later = {"dledger_raft_elections_total", "dledger_dlq_messages_total", "dledger_retry_messages_total"} | {
            name for name in catalog.BY_NAME if name.startswith("dledger_leased_")
        }
        assert wanted - told <= later
        assert told <= wanted | NOT_HERE

    Rig().run(scenario)


def test_both_formats_say_the_same_and_every_name_is_of_the_catalogue() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))
        samples, registry = await _looks(rig)[rig.master].samples(), SamplesRegistry()
        text, plain_type = registry.render(samples, "text/plain")
        opened, open_type = registry.render(samples, OPENMETRICS)
        assert plain_type.startswith("text/plain")
        assert open_type.startswith("application/openmetrics-text")
        plain = {sample for family in parse_text(text.decode()) for sample in _told(family.samples)}
        families = parse_openmetrics(opened.decode())  # type: ignore[no-untyped-call]
        assert plain == {sample for family in families for sample in _told(family.samples)}
        names = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _, _ in plain}
        assert names <= catalog.BY_NAME.keys()
        assert ("dledger_messages_in_total", (("group", "g0"), ("node", rig.master), ("topic", "t")), 1.0) in plain

    Rig().run(scenario)


def test_leases_are_counted_by_topic_and_consumer_group() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % number for number in range(6)])
        look, consumer = _looks(rig)[rig.master], Consumer(rig)
        got = await consumer.receive(5, invisible_ms=600_000)
        await consumer.acknowledge(got[:1])
        await consumer.change(got[1:2], 0)
        assert [each.lease.attempt for each in await consumer.receive(1, invisible_ms=600_000)] == [2]
        await consumer.change(got[2:3], 0)
        await consumer.bury(got[3:4])
        await asyncio.sleep(30)
        samples = await look.samples()
        assert _values(samples, "leased_messages") == {("t", GROUP): 2}, "one is free to be delivered again"
        oldest_s = _values(samples, "leased_oldest_seconds")["t", GROUP]
        assert 28.9 < oldest_s < 32
        assert _values(samples, "leased_again_total") == {(GROUP,): 1}
        assert _values(samples, "leased_dead_letters_total") == {(GROUP,): 1}

    Rig().run(scenario)


def test_ten_thousand_topics_with_traffic_make_a_bounded_answer() -> None:
    async def scenario(rig: Rig) -> None:
        host = rig.cluster.hosts[rig.master]
        assert host.node is not None
        host.node.store.traffic = Traffic(lambda _: True)
        for number in range(10_000):
            host.node.store.traffic.read(f"topic-{number}", 1, 100)
        look, registry = NodeSamples(host.node), SamplesRegistry()
        samples = await look.samples()
        shown = _values(samples, "messages_out_total")
        assert len(shown) == host.node.settings.cluster.metrics.topics + 1
        assert sum(value for value in shown.values() if not isinstance(value, Histogram)) == 10_000
        assert len(registry.render(samples, "")[0]) < 200_000

    Rig().run(scenario)


def test_retries_and_dead_letters_are_told_by_consumer_group() -> None:
    async def scenario(rig: Rig) -> None:
        host = rig.cluster.hosts[rig.master]
        assert host.node is not None
        traffic, look = host.node.store.traffic, NodeSamples(host.node)
        for topic, stored in (("%DLQ%billing", 2), ("%RETRY%billing", 5), ("%RETRY%shipping", 1)):
            traffic.topics[topic] = counts = Counts()
            counts.messages_in, traffic.changed[topic] = stored, None
        samples = await look.samples()
        assert _values(samples, "dlq_messages_total") == {("billing",): 2, ("shipping",): 0}
        assert _values(samples, "retry_messages_total") == {("billing",): 5, ("shipping",): 1}
        traffic.topics["%DLQ%billing"].messages_in, traffic.changed["%DLQ%billing"] = 3, None  # the other topic did not change
        samples = await look.samples()
        assert _values(samples, "dlq_messages_total") == {("billing",): 3, ("shipping",): 0}
        assert _values(samples, "retry_messages_total") == {("billing",): 5, ("shipping",): 1}
        del traffic.topics["%RETRY%shipping"]
        assert _values(await look.samples(), "retry_messages_total") == {("billing",): 5}

    Rig().run(scenario)


def test_a_node_that_recovers_its_log_says_that_it_takes_part_in_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        host = rig.cluster.hosts[rig.followers[0]]
        rig.cluster.kill(host.node_id)
        rig.cluster.start(host.node_id)
        node = host.node
        assert node is not None
        assert not node.is_open
        samples = await NodeSamples(node).samples()
        for name in ("is_leader", "has_leader", "is_master", "is_voter"):
            assert _values(samples, f"raft_{name}") == {(): 0}
        await until(lambda: node.is_open)
        assert _values(await NodeSamples(node).samples(), "raft_is_voter") == {(): 1}

    Rig().run(scenario)


def test_a_look_changes_nothing_of_the_clocks() -> None:
    async def scenario(rig: Rig) -> None:
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        clocks = node.raft.clocks
        clocks.skew_ms = clocks.time.max_skew_ms + 1  # until the next heartbeat
        assert _values(await NodeSamples(node).samples(), "alarm")["clock",] == 1
        assert not clocks.deprioritized
        assert clocks.skew_ms == clocks.time.max_skew_ms + 1

    Rig().run(scenario)


def test_a_follower_that_is_cut_off_lags_and_the_leader_says_so() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        looks, cut = _looks(rig), rig.followers[0]
        rig.isolate(cut)
        async with rig.producer() as producer:
            for _ in range(20):
                await producer.send(Message("t", b"x"))
        await asyncio.sleep(3)
        samples = await looks[rig.master].samples()
        lag = _values(samples, "raft_peer_lag_entries")
        assert isinstance(lag[cut,], int | float)
        assert lag[cut,] >= 20
        assert _values(samples, "raft_voters_acknowledging") == {(): 2}
        silent = _values(samples, "raft_peer_last_contact_seconds")[cut,]
        assert isinstance(silent, float)
        assert silent > 1
        assert _values(await looks[cut].samples(), "raft_has_leader") == {(): 0}

    Rig().run(scenario)


async def _lagging(rig: Rig, groups: Sequence[str]) -> tuple[BrokerNode, NodeSamples]:
    """The master, and a look at it; each group has read one of four messages of one queue, which are a minute old."""
    await rig.topic()
    async with rig.producer() as producer:
        for _ in range(4):
            await producer.send(Message("t", b"x"))
    for number, group in enumerate(groups):
        async with rig.consumer(group=group) as consumer:
            await consumer.commit({("t", 0): 1 + number})
    await asyncio.sleep(60)
    node = rig.cluster.hosts[rig.master].node
    assert node is not None
    return node, NodeSamples(node)


def test_the_lag_counts_queues_that_are_only_written_to() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer(group="readers") as consumer:
            await admin.create_topic("t", queues=1)
            await admin.update_topic("t", write_queues=2, force=True)
            await producer.send(Message("t", b"x"), queue_id=0)
            await producer.send(Message("t", b"x"), queue_id=1)
            await consumer.commit({("t", 0): 1})
        assert _values(await _looks(rig)[rig.master].samples(), "consumer_lag_messages") == {("t", "readers"): 1}

    Rig().run(scenario)


def test_a_scrape_does_not_wait_for_a_slow_disk_and_what_was_read_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        node, look = await _lagging(rig, ["readers"])
        read = node.store.reader.time_of

        async def slow(topic: str, queue_id: int, offset: int) -> int | None:
            await asyncio.sleep(30)
            return await read(topic, queue_id, offset)

        monkeypatch.setattr(node.store.reader, "time_of", slow)
        clock = node.context.env.clock
        for _ in range(3):
            begun_ms = clock.monotonic_ms()
            samples = await look.samples()
            assert clock.monotonic_ms() - begun_ms <= 1500
            assert _values(samples, "raft_is_leader") == {(): 1}
            assert _values(samples, "consumer_lag_messages") == {}
            await asyncio.sleep(5)
        await asyncio.sleep(30)
        samples = await look.samples()
        assert _values(samples, "consumer_lag_messages") == {("t", "readers"): 3}
        assert _values(samples, "consumer_lag_seconds")["t", "readers"] >= 60
        await rig.cluster.stop(rig.master)
        assert not len(node.looks)

    Rig().run(scenario)


def test_an_age_that_could_not_be_found_out_is_left_out_until_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_figures, "READS", 1)

    async def scenario(rig: Rig) -> None:
        _node, look = await _lagging(rig, ["a", "b", "c"])
        for known in (1, 2, 3):
            samples = await look.samples()
            assert len(_values(samples, "consumer_lag_messages")) == 3
            ages = _values(samples, "consumer_lag_seconds")
            assert len(ages) == known
            assert min(ages.values()) >= 60
            await asyncio.sleep(6)

    Rig().run(scenario)


def test_a_look_that_crashes_takes_its_last_figures_with_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    async def scenario(rig: Rig) -> None:
        _node, look = await _lagging(rig, ["readers"])
        assert _values(await look.samples(), "consumer_lag_messages") == {("t", "readers"): 3}
        with monkeypatch.context() as patch:
            patch.setattr(WaitingMessages, "levels", broken)
            for _ in range(3):
                await asyncio.sleep(6)
                assert _values(await look.samples(), "consumer_lag_messages") == {}
        await asyncio.sleep(6)
        assert _values(await look.samples(), "consumer_lag_messages") == {("t", "readers"): 3}

    Rig().run(scenario)
    assert [vars(record).get("event") for record in caplog.records if record.exc_info] == ["figures_failed"]


def test_figures_of_a_look_that_hangs_are_not_told_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def scenario(rig: Rig) -> None:
        _node, look = await _lagging(rig, ["readers"])
        await look.samples()
        monkeypatch.setattr(WaitingMessages, "levels", hang)
        await asyncio.sleep(6)
        assert _values(await look.samples(), "consumer_lag_messages") == {("t", "readers"): 3}
        await asyncio.sleep(slow_figures.STALE_MS / 1000)
        assert _values(await look.samples(), "consumer_lag_messages") == {}

    Rig().run(scenario)


def test_timers_that_were_not_all_looked_at_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_messages, "MAX_COUNTED", 1)
    monkeypatch.setattr(waiting_messages, "UNITS_A_READ", 1)

    async def scenario(rig: Rig) -> None:
        node, look = await _lagging(rig, ["readers"])
        async with rig.producer() as producer:
            for _ in range(3):
                await producer.send(Message("t", b"x", deliver_at_ms=node.context.env.clock.wall_ms() + 3_600_000))
        samples = await look.samples()
        assert _values(samples, "delay_messages_pending") == _values(samples, "delay_lag_seconds") == {}
        assert _values(samples, "half_messages") == {(): 0}

    Rig().run(scenario)


def test_the_alarm_ends_with_the_damage() -> None:
    async def scenario(rig: Rig) -> None:
        node, look = await _lagging(rig, ["readers"])
        node.damage.add(StorageDamagedError("entry 2 is damaged", index=2))  # as a comparison of replicas found it, before its repair
        assert _values(await look.samples(), "log_corrupt_entries") == {(): 1}
        await asyncio.sleep(6)
        samples = await look.samples()
        assert _values(samples, "log_corrupt_entries") == {(): 0}
        assert _values(samples, "alarm")[("damaged",)] == 0

    Rig().run(scenario)


def test_what_fails_is_left_out_and_takes_nothing_else_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def damaged(*_: object) -> None:
        raise StorageDamagedError("damaged")

    async def scenario(rig: Rig) -> None:
        node, look = await _lagging(rig, ["readers"])
        monkeypatch.setattr(node.store.reader, "time_of", damaged)
        monkeypatch.setattr(WaitingMessages, "levels", damaged)
        samples = await look.samples()
        assert _values(samples, "consumer_lag_messages") == {("t", "readers"): 3}
        for name in ("consumer_lag_seconds", "delay_messages_pending", "delay_lag_seconds", "half_messages"):
            assert _values(samples, name) == {}
        assert _values(samples, "store_oldest_message_seconds")[()] >= 60

    Rig().run(scenario)


def test_a_group_that_is_stuck_at_one_message_is_told_among_many_with_more_to_go() -> None:
    async def scenario(rig: Rig) -> None:
        node, _look = await _lagging(rig, ["stuck"])
        await rig.topic("u")
        async with rig.producer() as producer:
            for _ in range(10):
                await producer.send(Message("u", b"x"))
        for group in ("a", "b", "c"):
            async with rig.consumer(group=group) as consumer:
                await consumer.commit({("u", 0): 1})
        figures = await SlowLook(node.context, 2, node.looks, node.damage).figures()
        assert figures.lag_messages == {("t", "stuck"): 3, ("u", "a"): 9, (catalog.OTHERS, catalog.OTHERS): 18}
        assert figures.lag_seconds["t", "stuck"] >= 60
        assert figures.lag_seconds[catalog.OTHERS, catalog.OTHERS] < 30

    Rig().run(scenario)


def _told(samples: list[Any]) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    return [(each.name, tuple(sorted(each.labels.items())), each.value) for each in samples]
