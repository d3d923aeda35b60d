"""Metrics of clients, against real nodes in virtual time: what is counted where, in both adapters, and what a bad sink may not do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from dledger_client.aio import Action, ConsumeContext, Message, ReceivedMessage
from dledger_client.metrics import CATALOG, OTHER_TOPICS, Instruments, Metric, MetricKind, install
from dledger_client.metrics import catalog as metrics
from dledger_client.metrics.otel import OtelMetrics
from dledger_client.metrics.prometheus import PrometheusMetrics
from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.core import ProducerCore, buffered_by
from dledger_wire.errors import MessageTooLargeError, TopicNotFoundError
from tests.unit.client.sim_rig import CLIENT_IP, Rig, until
from tests.unit.client.test_accumulator import accumulator, put
from tests.unit.client.test_tracing import GROUP, push


@dataclass
class Holder:
    """What is asked of a ``ProducerCore`` here."""

    accumulator: RecordAccumulator


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    made = CollectorRegistry()
    install(PrometheusMetrics(made))
    yield made
    install(None)


def value(registry: CollectorRegistry, metric: Metric, suffix: str = "", **labels: str) -> float:
    found = registry.get_sample_value(metric.name + suffix, labels)
    return 0.0 if found is None else found


def test_a_producer_counts_what_became_of_its_messages(registry: CollectorRegistry) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(max_message_bytes=1000) as producer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number))
            await producer.send_batch([Message("t", b"a"), Message("t", b"b")])
            with pytest.raises(MessageTooLargeError):
                await producer.send(Message("t", b"x" * 1001))
            with pytest.raises(TopicNotFoundError):
                await producer.send(Message("nowhere", b"x"))
            waiting = producer.send_async(Message("t", b"y" * 300))
            assert value(registry, metrics.BUFFERED, producer_group="tests") >= 300
            await waiting
            assert value(registry, metrics.BUFFERED, producer_group="tests") == 0
        assert value(registry, metrics.SENT, topic="t", result="stored") == 6
        assert value(registry, metrics.SENT, topic="t", result="failed") == 1
        assert value(registry, metrics.SENT, topic="nowhere", result="failed") == 1
        assert value(registry, metrics.SENT_BYTES, topic="t") > 300
        assert value(registry, metrics.SEND_SECONDS, "_count", topic="t") == 5
        assert value(registry, metrics.BATCH_MESSAGES, "_sum", topic="t") == 6
        assert metrics.BUFFERED.name + "{" not in generate_latest(registry).decode(), "a closed producer shows nothing"

    Rig().run(scenario)


def test_what_is_sent_again_and_what_nobody_knows_is_counted(registry: CollectorRegistry) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"first"))
            master = rig.master
            rig.isolate(master)
            await producer.send(Message("t", b"second"))
            assert value(registry, metrics.RESENT, topic="t") >= 1
            assert value(registry, metrics.SEND_SECONDS, "_sum", topic="t") > 0.1
        async with rig.producer(send_timeout_ms=500) as producer:
            await producer.send(Message("t", b"third"))
            for node in rig.cluster.groups["g0"].node_ids:
                rig.cluster.net.cut(rig.cluster.hosts[node].ip, CLIENT_IP)  # the message leaves, and no answer comes
            future = producer.send_async(Message("t", b"fourth"))
            await until(future.done)
        assert value(registry, metrics.SENT, topic="t", result="unknown") == 1
        assert value(registry, metrics.SENT, topic="t", result="stored") == 3

    Rig().run(scenario)


def test_a_push_consumer_counts_fetches_calls_and_what_waits(registry: CollectorRegistry) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        calls: list[bytes] = []

        def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
            calls.append(messages[0].body)
            context.delay_level = 1
            if len(calls) == 1:
                assert value(registry, metrics.WAITING, consumer_group=GROUP) >= 1
                assert value(registry, metrics.ASSIGNED, consumer_group=GROUP) >= 2
                raise ValueError("no")
            return Action.COMMIT

        async with rig.producer() as producer:
            for number in range(4):
                await producer.send(Message("t", b"%d" % number), queue_id=number % 2)
        async with push(rig, listener):
            await until(lambda: len(calls) == 5)
            await until(lambda: value(registry, metrics.WAITING, consumer_group=GROUP) == 0)
        labels = {"topic": "t", "consumer_group": GROUP}
        assert value(registry, metrics.RECEIVED, **labels) == 4
        assert value(registry, metrics.RECEIVED, topic="%RETRY%billing", consumer_group=GROUP) == 1
        assert value(registry, metrics.RECEIVED_BYTES, **labels) > 400
        assert value(registry, metrics.PROCESSED, **labels, result="consumed") == 4
        assert value(registry, metrics.PROCESSED, **labels, result="redelivered") == 1
        assert value(registry, metrics.PROCESS_SECONDS, "_count", **labels) == 5
        assert value(registry, metrics.DELIVERY_SECONDS, "_sum", **labels) < 60
        assert metrics.ASSIGNED.name + "{" not in generate_latest(registry).decode()

    Rig().run(scenario)


def test_a_pull_consumer_counts_what_it_reads_either_way(registry: CollectorRegistry) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer(group="audit") as consumer:
            for number in range(5):
                await producer.send(Message("t", b"%d" % number))
            await consumer.fetch("t", 0, 0)
            async for _chunk in consumer.read_chunks("t", 0, 0, 3):
                pass
            assert value(registry, metrics.RECEIVED, topic="t", consumer_group="audit") == 8

    Rig().run(scenario)


def test_opentelemetry_gets_the_same(registry: CollectorRegistry) -> None:
    reader = InMemoryMetricReader()
    install(OtelMetrics(MeterProvider([reader])))

    def points(name: str) -> list[Any]:
        data = reader.get_metrics_data()
        assert data is not None
        every = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
        return [point for metric in every if metric.name == name for point in metric.data.data_points]

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number))
            (buffered,) = points(metrics.BUFFERED.name)
            assert (buffered.value, dict(buffered.attributes)) == (0, {"producer_group": "tests"})
        (stored,) = [point for point in points(metrics.SENT.name) if point.value]
        assert (stored.value, dict(stored.attributes)) == (3, {"topic": "t", "result": "stored"})
        (seconds,) = points(metrics.SEND_SECONDS.name)
        assert (seconds.count, tuple(seconds.explicit_bounds)) == (3, metrics.SEND_SECONDS.bounds)

    Rig().run(scenario)
    assert not generate_latest(registry), "clients made after another sink was installed count there"


class Refusing:
    """A sink that is worth nothing."""

    def __init__(self) -> None:
        self.calls = 0

    def counter(self, _metric: Metric, _labels: Mapping[str, str]) -> Callable[[float], object]:
        return self._raise

    def histogram(self, _metric: Metric, _labels: Mapping[str, str]) -> Callable[[float], object]:
        raise RuntimeError("no histograms")

    def gauge(self, _metric: Metric, _labels: Mapping[str, str], _read: Callable[[], float]) -> Callable[[], object]:
        raise RuntimeError("no gauges")

    def _raise(self, _amount: float) -> None:
        self.calls += 1
        raise RuntimeError("no")


def test_a_sink_that_raises_harms_no_message(caplog: pytest.LogCaptureFixture) -> None:
    sink = Refusing()
    install(sink)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        seen: list[bytes] = []
        async with rig.producer() as producer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number))
        async with push(rig, lambda messages, _context: seen.append(messages[0].body) or Action.COMMIT):
            await until(lambda: len(seen) == 3)

    try:
        Rig().run(scenario)
    finally:
        install(None)
    assert sink.calls > 6
    assert caplog.text.count("dledger_client_sent_messages_total could not be counted") == 1


def test_the_number_of_topics_is_bounded() -> None:
    made = CollectorRegistry()
    instruments = Instruments(PrometheusMetrics(made), max_topics=2)
    for number in range(1000):
        instruments.counter(metrics.SENT, f"t{number}", "stored")(1)
    instruments.counter(metrics.SENT, "t0", "stored")(1)
    assert [value(made, metrics.SENT, topic=topic, result="stored") for topic in ("t0", "t1", "t2", OTHER_TOPICS)] == [2, 1, 0, 998]


def test_clients_of_one_group_are_added_and_one_left_open_is_not_kept(registry: CollectorRegistry) -> None:
    gauges = PrometheusMetrics(registry)
    made, _ = accumulator()
    put(made, b"x" * 100)
    core = cast(ProducerCore, Holder(made))
    reads = [buffered_by(core), lambda: 2.0]
    removes = [gauges.gauge(metrics.BUFFERED, {"producer_group": "g"}, read) for read in reads]
    assert value(registry, metrics.BUFFERED, producer_group="g") > 102
    del made, core
    gc.collect()
    assert value(registry, metrics.BUFFERED, producer_group="g") == 2
    removes[0]()
    assert value(registry, metrics.BUFFERED, producer_group="g") == 2
    removes[1]()
    assert not generate_latest(registry).decode().count("{")


def test_names_and_units_follow_the_rules() -> None:
    assert len({metric.name for metric in CATALOG}) == len(CATALOG)
    for metric in CATALOG:
        assert metric.name.startswith("dledger_client_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert ("_seconds" in metric.name) == (metric.unit == "seconds")
        assert ("_bytes" in metric.name) == (metric.unit == "bytes")
        assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM)
        assert metric.labels[0] in ("topic", "producer_group", "consumer_group")
