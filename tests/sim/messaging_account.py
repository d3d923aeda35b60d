"""What must be true of a run of ``messaging.py``: every rule is a function of what was sent, stored and given to listeners."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.frames.timer import TIMER_DELIVER
from tests.unit.client.push_rig import Seen


def check_once(topic: str, found: Sequence[ReceivedMessage], sent: Collection[bytes]) -> None:
    counts = Counter(message.body for message in found)
    assert [body for body, count in counts.items() if count > 1] == [], f"{topic}: stored twice"
    assert set(counts) <= set(sent), f"{topic}: nobody sent this"


def check_none_lost(topic: str, found: Sequence[ReceivedMessage], acknowledged: Collection[bytes]) -> None:
    assert set(acknowledged) - {message.body for message in found} == set(), f"{topic}: acknowledged and lost"


def check_paid(paid: Sequence[bytes], acknowledged: Collection[bytes]) -> None:
    """Of three transactions the second was rolled back."""
    assert {body for body in acknowledged if int(body) % 3 != 1} <= set(paid), "a committed transaction was lost"
    assert [body for body in paid if int(body) % 3 == 1] == [], "a transaction that was rolled back was published"


def check_none_early(found: Sequence[ReceivedMessage], waiting_since: Mapping[bytes, int], delay_ms: int) -> None:
    """By the clock of the master that delivered; ``waiting_since``: when those of a delay level were stored to wait."""
    for message in found:
        due_ms = int(message.properties[TIMER_DELIVER]) if TIMER_DELIVER in message.properties else waiting_since[message.body] + delay_ms
        assert message.store_timestamp >= due_ms, f"{message.body!r} came {due_ms - message.store_timestamp} ms early"


def refused_for_good(seen: Sequence[Seen]) -> list[Seen]:
    """Calls that refused a message which never came again.

    An attempt is sent back once, so that two who refuse the same one see the next one once; and when another member was given it too and
    took it, the one that refuses may have lost the queue by then.
    """
    attempts = {(each.body, each.attempt) for each in seen}
    last = {(each.body, each.attempt): number for number, each in enumerate(seen)}
    takers: dict[tuple[bytes, int], set[str]] = defaultdict(set)
    for each in seen:
        if each.refused is False:
            takers[each.body, each.attempt].add(each.member)
    return [
        each
        for number, each in enumerate(seen)
        if each.refused
        and (each.body, each.attempt + 1) not in attempts
        and last[each.body, each.attempt] == number
        and not takers[each.body, each.attempt] - {each.member}
    ]


def check_epochs(orderly: Sequence[Seen]) -> dict[tuple[str, int], list[bytes]]:
    """Owners of a queue take turns: epochs only grow.  Returns what each queue gave, in the order of the first times."""
    by_queue: dict[tuple[str, int], list[Seen]] = defaultdict(list)
    for seen in orderly:
        by_queue[seen.replica_group, seen.queue_id].append(seen)
    for queue, all_seen in by_queue.items():
        epochs = [seen.epoch for seen in all_seen]
        assert epochs == sorted(epochs), f"queue {queue}: an older owner after a newer one"
    return {queue: list(dict.fromkeys(seen.body for seen in all_seen)) for queue, all_seen in by_queue.items()}


def check_order(orderly: Sequence[Seen]) -> None:
    """Owners of a queue take turns, and what each was given rises but for repeats in place."""
    for first_times in check_epochs(orderly).values():
        for key in {body.partition(b":")[0] for body in first_times}:
            numbers = [int(body.partition(b":")[2]) for body in first_times if body.startswith(key + b":")]
            assert numbers == sorted(numbers), f"messages of {key!r} out of order"
