"""Workload W1: an append-only log seen through its clients.  Names every anomaly, in time linear in the history.

An append is identified by (producer, sequence).  Outcomes are three: ACKED (the server said yes and gave an offset), FAILED (it said a
definite no) and UNKNOWN (timeout, broken connection).  ``check`` returns the anomalies found; an empty list means the history is one
that a single log, appended to atomically, could have produced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from dledger_drill.checkers.order import Placed, contradictions


class Outcome(Enum):
    ACKED = "acked"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AppendId:
    """What a payload says of itself."""

    producer: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Append:
    """One append as its producer saw it; times are those of one common clock, ``returned`` is meaningless when UNKNOWN."""

    id: AppendId
    invoked: float
    returned: float
    outcome: Outcome
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Poll:
    """What one read of one consumer returned: (offset, payload) in the order received, from ``replica``, at ``at``."""

    consumer: str
    replica: str
    at: float
    messages: tuple[tuple[int, AppendId], ...]
    # A consumer that jumped on purpose (seek) starts a new run; order across it is not promised.
    after_seek: bool = False


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    text: str


@dataclass(slots=True)
class LogHistory:
    """All that clients of one queue saw.  ``drained`` is the final content per replica, read after everything healed."""

    appends: list[Append] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    drained: dict[str, list[tuple[int, AppendId]]] = field(default_factory=dict)
    # At-least-once producers may store a retried append twice; idempotent ones must not.
    duplicates_allowed: bool = False
    # Producers that wait for each acknowledgement, or keep order by sequence numbers, promise increasing offsets.
    ordered_producers: bool = True


def check(history: LogHistory) -> list[Anomaly]:
    """Every anomaly of the history, in a fixed order of kinds."""
    found: list[Anomaly] = []
    content = _final_content(history, found)
    _check_offsets_agree(history, found)
    _check_lost(history, content, found)
    _check_invented(history, content, found)
    _check_duplicates(history, content, found)
    _check_producer_order(history, content, found)
    _check_real_time_order(history, found)
    _check_gaps(history, found)
    _check_polls(history, content, found)
    return found


def _final_content(history: LogHistory, found: list[Anomaly]) -> dict[int, AppendId]:
    """Offset -> payload of the longest drained replica; replicas that differ are an anomaly of their own."""
    if not history.drained:
        return {}
    longest = max(sorted(history.drained), key=lambda replica: len(history.drained[replica]))
    reference = history.drained[longest]
    for replica, messages in sorted(history.drained.items()):
        if messages != reference:
            place = next((i for i, (a, b) in enumerate(zip(messages, reference, strict=False)) if a != b), len(messages))
            sizes = f"{len(messages)} and {len(reference)} messages"
            found.append(Anomaly("replicas differ", f"{replica} and {longest} differ from message {place} on ({sizes})"))
    return dict(reference)


def _sightings(history: LogHistory) -> Iterable[tuple[str, int, AppendId]]:
    for append in history.appends:
        if append.outcome is Outcome.ACKED:
            yield f"acknowledgement to {append.id.producer}", append.offset, append.id
    for poll in history.polls:
        for offset, identity in poll.messages:
            yield f"poll of {poll.consumer} at {poll.replica}", offset, identity
    for replica, messages in sorted(history.drained.items()):
        for offset, identity in messages:
            yield f"final content of {replica}", offset, identity


def _check_offsets_agree(history: LogHistory, found: list[Anomaly]) -> None:
    """One offset never means two payloads, to anybody, ever."""
    first: dict[int, tuple[str, AppendId]] = {}
    reported: set[int] = set()
    for where, offset, identity in _sightings(history):
        known = first.setdefault(offset, (where, identity))
        if known[1] != identity and offset not in reported:
            reported.add(offset)
            found.append(Anomaly("inconsistent offset", f"offset {offset}: {known[1]} in {known[0]}, {identity} in {where}"))


def _check_lost(history: LogHistory, content: dict[int, AppendId], found: list[Anomaly]) -> None:
    if not history.drained:
        return
    present = set(content.values())
    acked = sorted((append.offset, append.id) for append in history.appends if append.outcome is Outcome.ACKED)
    lost = [place for place, (_, identity) in enumerate(acked) if identity not in present]
    if lost:
        where = "prefix" if lost == list(range(len(lost))) else "suffix" if lost[0] == len(acked) - len(lost) else "middle"
        found.append(Anomaly("lost", f"{len(lost)} of {len(acked)} acknowledged ({where}), first {acked[lost[0]]}"))


def _check_invented(history: LogHistory, content: dict[int, AppendId], found: list[Anomaly]) -> None:
    outcomes = {append.id: append.outcome for append in history.appends}
    seen = {identity: where for where, _, identity in _sightings(history)} | dict.fromkeys(content.values(), "final content")
    for identity, where in seen.items():
        outcome = outcomes.get(identity)
        if outcome is None:
            found.append(Anomaly("unexpected", f"{identity} in {where} was never sent"))
        elif outcome is Outcome.FAILED:
            found.append(Anomaly("resurrected", f"{identity} in {where} had definitely failed"))


def _check_duplicates(history: LogHistory, content: dict[int, AppendId], found: list[Anomaly]) -> None:
    if history.duplicates_allowed:
        return
    places: dict[AppendId, set[int]] = defaultdict(set)
    for _, offset, identity in _sightings(history):
        places[identity].add(offset)
    for offset, identity in content.items():
        places[identity].add(offset)
    for identity, offsets in places.items():
        if len(offsets) > 1:
            found.append(Anomaly("duplicate", f"{identity} at offsets {sorted(offsets)}"))


def _check_producer_order(history: LogHistory, content: dict[int, AppendId], found: list[Anomaly]) -> None:
    """A producer's messages stand in the order of their sequence numbers (its unknown ones too, where they were stored)."""
    if not history.ordered_producers:
        return
    newest: dict[str, int] = {}
    for offset, identity in sorted(content.items()):
        before = newest.get(identity.producer, -1)
        if identity.sequence < before and not history.duplicates_allowed:
            found.append(Anomaly("order", f"{identity} at offset {offset} stands behind sequence {before} of the same producer"))
        newest[identity.producer] = max(before, identity.sequence)


def _check_real_time_order(history: LogHistory, found: list[Anomaly]) -> None:
    """If a was acknowledged before b was sent, a stands before b (the log is linearizable)."""
    acked = [
        Placed(append.offset, append.invoked, append.returned, append) for append in history.appends if append.outcome is Outcome.ACKED
    ]
    for late, early in contradictions(acked, acked):
        text = f"{early.id} was acknowledged at {early.offset} before {late.id} was sent, which got {late.offset}"
        found.append(Anomaly("external order", text))


def _check_gaps(history: LogHistory, found: list[Anomaly]) -> None:
    for replica, messages in sorted(history.drained.items()):
        for (left, _), (right, _) in pairwise(messages):
            if right != left + 1:
                found.append(Anomaly("gap", f"{replica}: offset {right} follows {left}"))


def _check_polls(history: LogHistory, content: dict[int, AppendId], found: list[Anomaly]) -> None:
    """Within a poll and from poll to poll a consumer goes forward without jumping; what it saw stays."""
    position: dict[str, int] = {}
    for poll in sorted(history.polls, key=lambda poll: poll.at):
        offsets = [offset for offset, _ in poll.messages]
        if not offsets:
            continue
        for left, right in pairwise(offsets):
            if right <= left:
                found.append(Anomaly("non-monotonic poll", f"{poll.consumer}: {right} after {left} inside one poll"))
            elif right != left + 1:
                found.append(Anomaly("poll skip", f"{poll.consumer}: {right} after {left} inside one poll"))
        expected = position.get(poll.consumer)
        if expected is not None and not poll.after_seek and offsets[0] != expected:
            kind = "non-monotonic poll" if offsets[0] < expected else "poll skip"
            found.append(Anomaly(kind, f"{poll.consumer}: poll at {poll.at} starts at {offsets[0]}, expected {expected}"))
        position[poll.consumer] = offsets[-1] + 1
        for offset, identity in poll.messages:
            if history.drained and content.get(offset) != identity:
                found.append(Anomaly("precommitted read", f"{poll.consumer} saw {identity} at {offset}, which did not stay"))
                break
