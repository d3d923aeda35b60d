"""dledger's client: ``send_async`` or ``send_many``, ``scan_chunks`` or ``scan_arrow``."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy  # noqa: F401  here, so that no clock runs while they are loaded
import pyarrow  # noqa: F401

from benchmarks.bodies import Bodies, Seen
from benchmarks.peers.load import Load
from dledger_client import Admin, Message, Producer, PullConsumer

AT_ONCE = 10_000
TIMEOUT_MS = 60_000


class DledgerClient:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = Admin(bootstrap)
        self._producer = Producer(bootstrap, group="peers", compress_type="none", send_timeout_ms=TIMEOUT_MS)

    def make_topic(self, topic: str, config: dict[str, str], *, queues: int) -> None:
        self._admin.create_topic(topic, queues=queues)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topic(topic)

    def produce(self, topic: str, bodies: list[bytes], way: str) -> int:
        return self._at_once(topic, bodies) if way == "many" else self._one_by_one(topic, bodies)

    def _one_by_one(self, topic: str, bodies: list[bytes]) -> int:
        futures: deque[Any] = deque()
        send, add, acknowledged = self._producer.send_async, futures.append, 0
        for number, body in enumerate(bodies):
            add(send(Message(topic, body)))
            while number % 1000 == 0 and futures and futures[0].done():
                acknowledged += futures.popleft().exception() is None
        self._producer.flush()
        return acknowledged + sum(future.exception() is None for future in futures)

    def _at_once(self, topic: str, bodies: list[bytes]) -> int:
        send = self._producer.send_many_async
        futures = [send(topic, bodies[first : first + AT_ONCE]) for first in range(0, len(bodies), AT_ONCE)]
        return sum(part.count for future in futures for part in future.result().ranges)

    def consume(self, topic: str, seen: Seen, way: str) -> None:
        with PullConsumer(self._bootstrap, "peers") as consumer:
            if way == "many":
                for table in consumer.scan_arrow(topic, columns=["body"]):
                    seen.see_column(table["body"])
            else:
                for chunk in consumer.scan_chunks(topic):
                    seen.see(message.body for message in chunk.messages())

    def latencies_ms(self, topic: str, bodies: list[bytes]) -> list[float]:
        times = []
        for body in bodies:
            began = time.perf_counter()
            self._producer.send(Message(topic, body))
            times.append((time.perf_counter() - began) * 1e3)
        return times

    def leader(self, topic: str) -> str:
        return ""  # the cluster is asked itself

    def load(self, topic: str, load: Load, bodies: Bodies, kill: Any) -> None:
        futures: list[Any] = []

        def send(number: int) -> None:
            future = self._producer.send_async(Message(topic, bodies.body(number)))
            future.add_done_callback(lambda done: load.acknowledged(number) if done.exception() is None else None)
            futures.append(future)

        load.run(send, kill)
        self._producer.flush()
        load.failed = sum(future.exception(TIMEOUT_MS / 1000) is not None for future in futures)

    def close(self) -> None:
        self._producer.close()
        self._admin.close()


def connect(bootstrap: str) -> DledgerClient:
    return DledgerClient(bootstrap)
