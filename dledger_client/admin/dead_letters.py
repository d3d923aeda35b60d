"""Dead letters of consumer groups: listed, made readable, and sent again to where they came from.

Every call is safe to repeat: the cluster keeps how far a group's dead letters were sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from dledger_client.admin.calls import ClusterCalls, Listed, Sources
from dledger_client.cluster.router import Router
from dledger_client.runtime.argument_ranges import MAX_OFFSET, check_kind, within
from dledger_wire._pb import admin_pb2, retry_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.status import Perm

CALL_MESSAGES = 200
CALL_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a consumer group in one replica group.

    Attributes:
        consumer_group: The consumer group.
        replica_group: The replica group that stores them.
        topic: The topic that holds them.
        perm: That topic's permission bits: 2 write, 4 read.
        min_offset: Offset of the oldest one that is still stored.
        max_offset: Offset of the next one.
        redriven_end: Offset of the next one that a redrive sends.
    """

    consumer_group: str
    replica_group: str
    topic: str
    perm: int
    min_offset: int
    max_offset: int
    redriven_end: int

    @property
    def waiting(self) -> int:
        """How many were not sent again yet."""
        return self.max_offset - self.redriven_end

    @property
    def readable(self) -> bool:
        """Whether consumers may read them."""
        return bool(self.perm & Perm.READ)


async def list_dead_letters(calls: ClusterCalls, consumer_group: str, *, partial: bool = False) -> Listed[DeadLetters]:
    """By consumer group and replica group; of all consumer groups when none is named."""
    request = retry_pb2.DeadLettersRequest(groups=[consumer_group] if consumer_group else [], any_replica=calls.spares_leader)
    sources = Sources()
    answers = await calls.of_all(lambda group: calls.read(group, methods.DEAD_LETTERS, request, sources))
    found = [
        DeadLetters(each.group, replica_group, each.topic, each.perm, each.min_offset, each.max_offset, each.redriven_upto)
        for replica_group, answer in (answers.some() if partial else answers.complete()).items()
        for each in answer.queues
    ]
    return Listed(sorted(found, key=lambda each: (each.consumer_group, each.replica_group)), answers.unanswered, sources)


async def set_readable(calls: ClusterCalls, consumer_group: str, *, readable: bool) -> list[DeadLetters]:
    """Grant or revoke read permission on a group's dead letters; they are listed as they were before."""
    found = await list_dead_letters(calls.at_leaders(), consumer_group)
    for letters in found:
        perm = int(Perm.READ_WRITE if readable else Perm.WRITE)
        spec = admin_pb2.TopicSpec(name=letters.topic, perm=perm, group=letters.replica_group)
        await calls.ask_leader(letters.replica_group, methods.UPDATE_TOPIC, spec, again=spec)
    return found


async def redrive(
    router: Router,
    letters: DeadLetters,
    *,
    count: int = 0,
    rate: float = 0,
    to_retry_topic: bool = False,
    on_progress: Callable[[int], object] | None = None,
) -> int:
    """Send up to ``count`` waiting dead letters again (0: all), at most ``rate`` a second (0: no limit); how many were sent."""
    check_kind(DeadLetters, "letters", letters)
    within(0, MAX_OFFSET, count=count)
    if not isinstance(rate, Real) or not 0 <= rate < math.inf:
        raise InvalidArgumentError(f"rate {rate!r}: expected a number of messages a second, 0 for no limit")
    clock, first = router.clock, letters.redriven_end
    end = min(letters.max_offset, first + count) if count else letters.max_offset
    max_messages = CALL_MESSAGES if not rate else max(1, min(CALL_MESSAGES, int(rate / 5)))
    request = retry_pb2.RedriveRequest(
        group=letters.consumer_group, upto_offset=end, max_messages=max_messages, to_retry_topic=to_retry_topic
    )
    started_ms, at = clock.monotonic_ms(), first
    while at < end:
        deadline_ms = clock.monotonic_ms() + CALL_TIMEOUT_MS
        reply = await router.call_leader(letters.replica_group, methods.REDRIVE, request, deadline_ms=deadline_ms)
        at = max(at, reply.next_offset)
        if on_progress is not None:
            on_progress(at - first)
        if not reply.redriven and at < end:
            break  # the rest has expired
        if rate and at < end:
            due_ms = started_ms + int((at - first) * 1000 / rate)
            await asyncio.sleep(max(0, due_ms - clock.monotonic_ms()) / 1000)
    return at - first
