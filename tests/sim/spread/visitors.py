"""Clients that have just begun and know nothing, while nodes and name servers fail: what they may be told, and what never.

Owns the exact list of errors a visitor may meet.  Whatever a name server says that has just begun or was wiped, an existing topic is not
denied, and a part of its queues is not taken for all of them: a key goes to the queue that all queues together give it, and a consumer that
asks for all offsets is given those of all queues, or an error.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dledger_client.aio import Message
from dledger_wire.errors import (
    DeadlineExceededError,
    DledgerError,
    NotLeaderError,
    NotReadyError,
    NotSentError,
    NotYetError,
    UnreachableError,
)
from dledger_wire.java_hash import cached_java_hash
from tests.sim.spread.account import StoredAt

if TYPE_CHECKING:
    from tests.sim.spread.world import SpreadWorld

VISITS = 6
TIMEOUT_MS = 3000
TOPIC = "plain"
Place = tuple[str, int]

# Nothing was stored, for certain: those that answered knew no topic yet (NotReadyError), a replica group had no leader all the time
# (NotLeaderError), the queues of a key are not all known, or nothing left in time (NotSentError).
NOTHING_STORED = (NotReadyError, NotLeaderError, NotSentError)
# It was sent, and no answer came before the deadline; or neither a name server nor a node was reachable.
MAYBE_STORED = (DeadlineExceededError, UnreachableError)
# A consumer that asks for the offsets of all queues: not all queues are known, a leader is not there or does not answer in time, or who was
# taken for it had not heard of the topic when the time was over.
NOT_READ = (NotReadyError, NotYetError, NotLeaderError, UnreachableError, DeadlineExceededError)


class Visitors:
    """Of one run.  ``told``: how often each error was met."""

    def __init__(self, world: SpreadWorld, draw: random.Random) -> None:
        self._world, self._draw = world, draw
        self.told: Counter[str] = Counter()
        self._keys: dict[bytes, str] = {}
        self._not_stored: set[bytes] = set()

    async def come(self) -> None:
        for number in range(VISITS):
            await asyncio.sleep(self._draw.random() * 1.3)
            if number % 3 == 2:
                await self._ask_for_offsets()
            else:
                await self._send(b"v%d:%d" % (number, number), f"visitor {number}" if number % 2 else None)

    async def _send(self, body: bytes, key: str | None) -> None:
        world = self._world
        world.sent[TOPIC].add(body)
        async with world.rig.producer(send_timeout_ms=TIMEOUT_MS) as producer:
            try:
                await producer.send(Message(TOPIC, body), queue_key=key)
            except DledgerError as error:
                self._note("a message", error, NOTHING_STORED + MAYBE_STORED)
                if isinstance(error, NOTHING_STORED):
                    self._not_stored.add(body)
            else:
                world.acknowledged[TOPIC].add(body)
        if key is not None:
            self._keys[body] = key

    async def _ask_for_offsets(self) -> None:
        async with self._world.rig.consumer("visitors", timeout_ms=TIMEOUT_MS) as consumer:
            try:
                found = set(await consumer.offsets(TOPIC))
            except DledgerError as error:
                self._note("offsets", error, NOT_READ)
            else:
                lacking = self._world.first_queues(TOPIC) - found
                assert not lacking, f"a consumer that began at {self._world.cluster.loop.now_s:.3f} s was not told of {sorted(lacking)}"

    def _note(self, what: str, error: DledgerError, allowed: tuple[type[DledgerError], ...]) -> None:
        self._world.cluster.trace.note("visitor", what, error.code)
        self.told[f"{what}: {error.code}"] += 1
        if not isinstance(error, allowed):
            raise AssertionError(f"a client that began at {self._world.cluster.loop.now_s:.3f} s was told: {error!r}") from error

    def check(self, found: Sequence[StoredAt], queues: Sequence[set[Place]]) -> None:
        """``queues``: all of the topic, before and after each change of them."""
        places: Mapping[bytes, Place] = {each.body: (each.replica_group, each.queue_id) for each in found}
        for body in self._not_stored:
            assert body not in places, f"{body!r} is stored at {places[body]}, and its producer was told that it is not"
        for body, key in self._keys.items():
            expected = {sorted(each)[abs(cached_java_hash(key)) % len(each)] for each in queues}
            assert places.get(body, next(iter(expected))) in expected, f"{key} went to {places[body]}, expected {sorted(expected)}"
