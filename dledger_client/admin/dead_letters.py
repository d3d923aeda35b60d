"""Dead letters: listing them, letting consumers read them, sending them to where they came from.

Owns the calls and the pace of a redrive.  All are safe to repeat: how far a group's dead letters were redriven is the cluster's to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods

CALL_MESSAGES = 200
CALL_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a consumer group in one replica group; ``waiting`` ones were not redriven yet."""

    consumer_group: str
    group: str
    topic: str
    perm: int
    min_offset: int
    max_offset: int
    redriven_upto: int

    @property
    def waiting(self) -> int:
        return self.max_offset - self.redriven_upto


async def list_dead_letters(router: Router, consumer_group: str, deadline_ms: int) -> list[DeadLetters]:
    """What there is, by consumer group; of all groups when none is named."""
    request = retry_pb2.DeadLettersRequest(groups=[consumer_group] if consumer_group else []).SerializeToString()
    found = []
    for group in sorted(await router.ensure_groups(deadline_ms)):
        answer = await router.call_leader(group, methods.DEAD_LETTERS.path, request, deadline_ms=deadline_ms)
        found += [
            DeadLetters(each.group, group, each.topic, each.perm, each.min_offset, each.max_offset, each.redriven_upto)
            for each in parse(retry_pb2.DeadLettersResponse, answer, group).queues
        ]
    return sorted(found, key=lambda each: (each.consumer_group, each.group))


async def redrive(
    router: Router,
    letters: DeadLetters,
    *,
    count: int = 0,
    rate: float = 0,
    to_retry_topic: bool = False,
    told: Callable[[int], object] | None = None,
) -> int:
    """Send the dead letters that ``letters`` shows as waiting to their original topics; returns how many went.

    ``count`` of them at most (0: all), ``rate`` a second at most (0: as fast as they are stored); ``told`` hears the number so far.
    Made again with the same ``letters`` it goes on where it ended, and sends none twice.
    """
    if count < 0 or rate < 0:
        raise InvalidArgumentError(f"count {count}, rate {rate}: expected none below 0")
    clock = router.clock
    upto = min(letters.max_offset, letters.redriven_upto + count) if count else letters.max_offset
    most = CALL_MESSAGES if not rate else max(1, min(CALL_MESSAGES, int(rate / 5)))
    request = retry_pb2.RedriveRequest(group=letters.consumer_group, upto_offset=upto, max_messages=most, to_retry_topic=to_retry_topic)
    started_ms, at = clock.monotonic_ms(), letters.redriven_upto
    while at < upto:
        deadline_ms = clock.monotonic_ms() + CALL_TIMEOUT_MS
        answer = await router.call_leader(letters.group, methods.REDRIVE.path, request.SerializeToString(), deadline_ms=deadline_ms)
        reply = parse(retry_pb2.RedriveResponse, answer, letters.group)
        at = max(at, reply.next_offset)
        if told is not None:
            told(at - letters.redriven_upto)
        if not reply.redriven and at < upto:
            break  # they are not there any more
        if rate and at < upto:
            due_ms = started_ms + int((at - letters.redriven_upto) * 1000 / rate)
            await asyncio.sleep(max(0, due_ms - clock.monotonic_ms()) / 1000)
    return at - letters.redriven_upto
