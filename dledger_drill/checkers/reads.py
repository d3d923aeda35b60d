"""Linearizable reads: one that began after an acknowledgement contains the message, reads never go back, none is ahead of its time.

That reads, also those of followers, are a part of the final log is checked with everything else that names an offset (``delivery``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dledger_drill.checkers.delivery import placed_sends
from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.order import Placed, contradictions
from dledger_drill.checkers.topic import Queue, TopicHistory, end_of, queue_of
from dledger_drill.history.records import Operation


def check_reads(topic: TopicHistory) -> Iterator[Violation]:
    reads: dict[Queue, list[Placed[Operation]]] = defaultdict(list)
    for read in topic.reads:
        if read.data["mode"] == "linearizable":
            reads[queue_of(read)].append(Placed(2 * seen_end(read), read.invoked_ns, end_of(read), read))
    appends = {queue: [_between_reads(placed) for placed in sends] for queue, sends in placed_sends(topic).items()}
    for queue, seen in reads.items():
        yield from _beyond_the_end(topic, queue, seen)
        yield from _stale(queue, seen, appends.get(queue, []))
        for append, read in contradictions(appends.get(queue, []), seen):
            text = f"{append.data['value']} was read in {queue} before it was sent"
            yield Violation(ViolationKind.STALE_READ, read.round, text, (append, read))


def _beyond_the_end(topic: TopicHistory, queue: Queue, reads: list[Placed[Operation]]) -> Iterator[Violation]:
    """Reads of nothing, at an offset that the queue never came to.  Those of something are found with all that names an offset."""
    if (content := topic.stored.get(queue)) is None:
        return
    end = max(content, default=-1) + 1
    for read in (placed.item for placed in reads):
        if seen_end(read) > end and not read.data["values"]:
            text = f"{queue} ended at offset {seen_end(read)} in a read, and ends at {end}"
            yield Violation(ViolationKind.CHANGED, read.round, text, (read,))


def seen_end(read: Operation) -> int:
    """One behind the last offset that the read saw."""
    return int(read.data["from_offset"]) + len(read.data["values"])


def _between_reads(append: Placed[Operation]) -> Placed[Operation]:
    """A read up to offset ``n`` stands before the append at ``n`` and behind the one before that."""
    return Placed(2 * append.place + 1, append.invoked, append.returned, append.item)


def _stale(queue: Queue, reads: list[Placed[Operation]], appends: list[Placed[Operation]]) -> Iterator[Violation]:
    for read, known in contradictions(reads, [*appends, *reads]):
        what = f"{known.data['value']} was acknowledged" if "value" in known.data else f"offset {seen_end(known) - 1} was read"
        text = f"a linearizable read of {queue} ended before offset {seen_end(read)}, but {what} before it began"
        yield Violation(ViolationKind.STALE_READ, read.round, text, (known, read))
