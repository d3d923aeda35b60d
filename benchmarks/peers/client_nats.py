"""NATS JetStream's client (nats-py): ``publish_async``, an ordered push consumer.  Its loop runs in a thread of its own.

There is one way to produce and one to consume, so ``way`` is not looked at.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats
from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType

from benchmarks.bodies import Bodies, Seen
from benchmarks.peers.load import Load

T = TypeVar("T")
REPLICAS = 3
TIMEOUT_S = 60.0
TRY_S = 2.0  # for one try of a publish; the application tries again, with the same id
PENDING = 4_000  # messages on their way, the client's own default
ROOM_MESSAGES, ROOM_BYTES = 10_000_000, 4 << 30  # a push consumer drops what does not fit


class NatsClient:
    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._connect(bootstrap.split(",")))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self, servers: list[str]) -> None:
        async def quiet(_error: Exception) -> None:
            """A broken connection is what failover is about; each publish reports its failure."""

        self._connection = await nats.connect(
            [f"nats://{server}" for server in servers], max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quiet
        )
        self._stream = self._connection.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=PENDING)

    def make_topic(self, topic: str, config: dict[str, str], *, queues: int) -> None:
        self._run(self._make(topic))

    async def _make(self, topic: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                await self._connection.jetstream(timeout=5).add_stream(
                    name=topic,
                    subjects=[topic],
                    num_replicas=REPLICAS,
                    storage=StorageType.FILE,
                    retention=RetentionPolicy.LIMITS,
                    discard=DiscardPolicy.NEW,
                )
                return
            except (NatsError, OSError):  # not all servers are there yet
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)

    def delete_topic(self, topic: str) -> None:
        self._run(self._stream.delete_stream(topic))

    def produce(self, topic: str, bodies: list[bytes], way: str) -> int:
        return self._run(self._produce(topic, bodies))

    async def _produce(self, topic: str, bodies: list[bytes]) -> int:
        futures: deque[asyncio.Future[Any]] = deque()
        publish, acknowledged = self._stream.publish_async, 0
        for body in bodies:
            futures.append(await publish(topic, body))
            while futures[0].done():
                acknowledged += _stored(futures.popleft())
                if not futures:
                    break
        await asyncio.wait_for(self._stream.publish_async_completed(), TIMEOUT_S)
        return acknowledged + sum(map(_stored, futures))

    def consume(self, topic: str, seen: Seen, way: str) -> None:
        self._run(self._consume(topic, seen))

    async def _consume(self, topic: str, seen: Seen) -> None:
        left = (await self._stream.stream_info(topic)).state.messages
        done = asyncio.Event()

        async def take(message: Any) -> None:
            nonlocal left
            left -= seen.see((message.data,))
            if not left:
                done.set()

        if left:
            subscription = await self._stream.subscribe(
                topic, cb=take, stream=topic, ordered_consumer=True, pending_msgs_limit=ROOM_MESSAGES, pending_bytes_limit=ROOM_BYTES
            )
            await asyncio.wait_for(done.wait(), 10 * TIMEOUT_S)
            await subscription.unsubscribe()

    def latencies_ms(self, topic: str, bodies: list[bytes]) -> list[float]:
        return self._run(self._latencies_ms(topic, bodies))

    async def _latencies_ms(self, topic: str, bodies: list[bytes]) -> list[float]:
        times = []
        for body in bodies:
            began = time.perf_counter()
            await self._stream.publish(topic, body)
            times.append((time.perf_counter() - began) * 1e3)
        return times

    def leader(self, topic: str) -> str:
        cluster = self._run(self._stream.stream_info(topic)).cluster
        return str(cluster.leader) if cluster else ""

    def load(self, topic: str, load: Load, bodies: Bodies, kill: Any) -> None:
        waiting: list[Any] = []

        def send(number: int) -> None:
            waiting.append(asyncio.run_coroutine_threadsafe(self._until_stored(topic, load, number, bodies.body(number)), self._loop))

        load.run(send, kill)
        load.failed = sum(not each.result() for each in waiting)

    async def _until_stored(self, topic: str, load: Load, number: int, body: bytes) -> bool:
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            try:
                await self._stream.publish(topic, body, timeout=TRY_S, headers={"Nats-Msg-Id": str(number)})
            except (NatsError, OSError):
                await asyncio.sleep(0.05)
            else:
                load.acknowledged(number)
                return True
        return False

    def close(self) -> None:
        self._run(self._connection.close())


def _stored(future: asyncio.Future[Any]) -> bool:
    return future.exception() is None and future.result().seq > 0


def connect(bootstrap: str) -> NatsClient:
    return NatsClient(bootstrap)
