"""When single messages were stored: how long the oldest unread message of a queue waits, how old the oldest one is.

Owns how the questions are bundled: a call to each replica group, however many queues there are.  What cannot be known stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger_client.admin.calls import ClusterCalls, Sources
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, PermissionDeniedError, TopicNotFoundError, TopicPermissionError
from dledger_wire.rpc import methods

PLACES_A_CALL = 1000
NO_TIME = -1

Place = tuple[str, str, int, int]  # topic, replica group, queue, offset


async def stored_times(calls: ClusterCalls, places: Iterable[Place]) -> dict[Place, int]:
    """Milliseconds since 1970 at which messages were stored, of an expired one when the oldest one was; what is not known is left out."""
    of_group: dict[str, list[Place]] = {}
    try:
        for topic, replica_group, queue_id, offset in places:
            of_group.setdefault(replica_group, []).append((topic, replica_group, queue_id, offset))
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"places {places!r}: expected (topic, replica group, queue, offset) of each") from None

    async def ask(group: str) -> dict[Place, int]:
        found: dict[Place, int] = {}
        wanted = of_group[group]
        for first in range(0, len(wanted), PLACES_A_CALL):
            found |= await _ask(calls, group, wanted[first : first + PLACES_A_CALL])
        return found

    answers = await calls.of_all(ask, of_group)
    return {place: at_ms for found in answers.of_group.values() for place, at_ms in found.items()}


async def _ask(calls: ClusterCalls, group: str, places: list[Place]) -> dict[Place, int]:
    """A topic that was deleted, or that the caller may not see, takes the others' answers away with it: they are asked for without it."""
    while places:
        queues = [
            broker_pb2.QueueRef(topic=topic, queue_id=number, timestamp_ms=NO_TIME, at_offset=offset) for topic, _, number, offset in places
        ]
        try:
            answer = await calls.read(group, methods.QUEUE_OFFSETS, broker_pb2.OffsetsRequest(queues=queues), Sources())
        except (TopicNotFoundError, TopicPermissionError, PermissionDeniedError) as error:
            gone = error.details.get("topic", error.details.get("name", places[0][0]))
            places = [place for place in places if place[0] != gone]
            continue
        except DledgerError:
            return {}
        return {place: each.stored_ms for place, each in zip(places, answer.queues, strict=False) if each.stored_ms}
    return {}
