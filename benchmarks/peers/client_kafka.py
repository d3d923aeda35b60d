"""Kafka's client (librdkafka): ``produce`` or ``produce_batch``, ``consume`` of many messages a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.bodies import Bodies, Seen
from benchmarks.peers.load import Load

AT_ONCE = 10_000
IN_FLIGHT = 400_000  # messages; fewer made it slower, more did not help
TIMEOUT_S = 60.0
REPLICAS = 3
PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "compression.type": "none",
    "queue.buffering.max.messages": 2 * IN_FLIGHT,
    "queue.buffering.max.kbytes": 2_097_151,
    "message.timeout.ms": int(TIMEOUT_S * 1000),
}
CONSUMER = {
    "group.id": "peers",
    "enable.auto.commit": False,
    "enable.partition.eof": False,
    "check.crcs": True,
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 2,  # the default waits a second when its queue was full
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 262_144,
}


class KafkaClient:
    def __init__(self, bootstrap: str) -> None:
        self._to = {"bootstrap.servers": bootstrap, "log_level": 2}
        self._admin = AdminClient(self._to)
        self._producer = kafka.Producer(self._to | PRODUCER)
        # One message at a time must not wait for others: linger 0.
        self._single = kafka.Producer(self._to | PRODUCER | {"linger.ms": 0})
        self._acknowledged = self._failed = 0

    def make_topic(self, topic: str, config: dict[str, str], *, queues: int) -> None:
        made = self._admin.create_topics([NewTopic(topic, queues, REPLICAS, config=config)])
        made[topic].result(TIMEOUT_S)
        self._wait(lambda: self._complete(topic, queues), f"topic {topic} has not all its replicas")

    def _complete(self, topic: str, queues: int) -> bool:
        partitions = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions.values()
        return len(partitions) == queues and all(each.leader >= 0 and len(each.isrs) == REPLICAS for each in partitions)

    def _wait(self, done: Callable[[], bool], problem: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not done():
            if time.monotonic() > until:
                raise TimeoutError(problem)
            time.sleep(0.1)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failed += 1

    def produce(self, topic: str, bodies: list[bytes], way: str) -> int:
        self._acknowledged = self._failed = 0
        if way == "many":
            self._at_once(topic, bodies)
        else:
            self._one_by_one(topic, bodies)
        self._producer.flush(TIMEOUT_S)
        return self._acknowledged

    def _make_room(self, sent: int) -> None:
        self._producer.poll(0)
        while sent - self._acknowledged - self._failed > IN_FLIGHT:
            self._producer.poll(0.05)

    def _one_by_one(self, topic: str, bodies: list[bytes]) -> None:
        produce, delivered = self._producer.produce, self._delivered
        for number, body in enumerate(bodies):
            produce(topic, body, on_delivery=delivered)
            if number % 1000 == 0:
                self._make_room(number)

    def _at_once(self, topic: str, bodies: list[bytes]) -> None:
        for first in range(0, len(bodies), AT_ONCE):
            self._make_room(first)
            self._producer.produce_batch(topic, [{"value": body} for body in bodies[first : first + AT_ONCE]], on_delivery=self._delivered)

    def consume(self, topic: str, seen: Seen, way: str) -> None:
        consumer = kafka.Consumer(self._to | CONSUMER)
        partitions = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        ends = {number: consumer.get_watermark_offsets(kafka.TopicPartition(topic, number), TIMEOUT_S)[1] for number in partitions}
        consumer.assign([kafka.TopicPartition(topic, number, 0) for number in partitions])
        left, until = sum(ends.values()), time.monotonic() + TIMEOUT_S
        while left > 0:
            messages = consumer.consume(AT_ONCE, 0.5)
            if messages:
                until = time.monotonic() + TIMEOUT_S
            elif time.monotonic() > until:
                raise TimeoutError(f"{left} messages of {topic} did not come")
            given = [message for message in messages if message.error() is None]
            left -= seen.see(message.value() for message in given)
        consumer.close()

    def latencies_ms(self, topic: str, bodies: list[bytes]) -> list[float]:
        times: list[float] = []
        producer, done = self._single, [0]

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                raise kafka.KafkaException(error)
            done[0] += 1

        for body in bodies:
            began, before = time.perf_counter(), done[0]
            producer.produce(topic, body, on_delivery=delivered)
            while done[0] == before:
                producer.poll(TIMEOUT_S)
            times.append((time.perf_counter() - began) * 1e3)
        return times

    def leader(self, topic: str) -> str:
        return str(self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader)

    def load(self, topic: str, load: Load, bodies: Bodies, kill: Any) -> None:
        def send(number: int) -> None:
            def delivered(error: Any, _message: Any) -> None:
                if error is None:
                    load.acknowledged(number)
                else:
                    load.failed += 1

            self._producer.produce(topic, bodies.body(number), on_delivery=delivered)
            self._producer.poll(0)

        load.run(send, kill)
        self._producer.flush(TIMEOUT_S)

    def close(self) -> None:
        self._producer.flush(TIMEOUT_S)


def connect(bootstrap: str) -> KafkaClient:
    return KafkaClient(bootstrap)
