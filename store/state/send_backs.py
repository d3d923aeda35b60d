"""What consumer groups have sent back, as replicated state: so that a message is stored again once an attempt, whatever is repeated.

Owns config/sendBack.json.  An attempt is a place: the queue and offset where the group read the message (the original the first time, the
group's retry topic after that).  The command that marks places as sent back stands in the same log entry as the copies, so both are
committed or neither.  Places in front of the group's committed position are forgotten: whoever sends those back comes late, the group is
done with them.  Also how far a group's dead letters were redriven, for the same reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dledger_wire.names import DLQ_PREFIX
from store.state.sections import CommandContext, CommandResult, Handler

SENT_BACK, REDRIVEN = "sent_back", "redriven"
MAX_RUNS = 4096  # runs of a group in one queue: so many gaps it may leave in front of its committed position

Place = tuple[str, str, int]  # consumer group, topic, queue


class Runs:
    """A set of offsets, kept as sorted runs ``[first, upto)`` that neither touch nor overlap."""

    __slots__ = ("_firsts", "_uptos")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._uptos: list[int] = []
        for first, upto in runs:
            self.add(first, upto)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._uptos[at]

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Any:
        return iter(zip(self._firsts, self._uptos, strict=True))

    def add(self, first: int, upto: int) -> None:
        """Add ``first`` to ``upto`` (exclusive); what is in already stays."""
        low = bisect_right(self._firsts, first)
        if low and self._uptos[low - 1] >= first:
            low -= 1
        high = low
        while high < len(self._firsts) and self._firsts[high] <= upto:
            first, upto = min(first, self._firsts[high]), max(upto, self._uptos[high])
            high += 1
        self._firsts[low:high], self._uptos[low:high] = [first], [upto]

    def first_gap(self, offset: int) -> int:
        """The first offset from ``offset`` on that is not in."""
        at = bisect_right(self._firsts, offset) - 1
        return self._uptos[at] if at >= 0 and offset < self._uptos[at] else offset

    def forget_below(self, offset: int) -> None:
        at = bisect_right(self._firsts, offset)
        if at and self._uptos[at - 1] > offset:
            at -= 1
            self._firsts[at] = max(offset, self._firsts[at])
        del self._firsts[:at], self._uptos[:at]


class SendBacks:
    """Implements ``group_state.Section``; ``committed`` tells a group's position in a queue, 0 for none."""

    file_name = "sendBack.json"

    def __init__(self, committed: Callable[[str, str, int], int]) -> None:
        self._committed = committed
        self._sent: dict[Place, Runs] = {}
        self._redriven: dict[str, int] = {}

    def sent(self, place: Place) -> Runs:
        """Offsets of the queue that the group has sent back."""
        return self._sent.get(place) or Runs()

    def redriven(self, group: str) -> int:
        """The next dead letter of the group that a redrive would send."""
        return self._redriven.get(group, 0)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: one made again starts anew."""
        for place in [place for place in self._sent if place[1] == topic]:
            del self._sent[place]
        if topic.startswith(DLQ_PREFIX):
            self._redriven.pop(topic.removeprefix(DLQ_PREFIX), None)

    def went_back(self, group: str, topic: str, queue_id: int) -> None:
        """The group's position was reset: what it reads again may be sent back again."""
        self._sent.pop((group, topic, queue_id), None)

    def handlers(self) -> Mapping[str, Handler]:
        return {SENT_BACK: self._sent_back, REDRIVEN: self._redrive}

    def _sent_back(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        place = (str(arguments["group"]), str(arguments["topic"]), int(arguments["queue_id"]))
        runs = self._sent.setdefault(place, Runs())
        for first, upto in arguments["runs"]:
            runs.add(int(first), int(upto))
        runs.forget_below(self._committed(*place))
        if not runs:
            del self._sent[place]
        return {}

    def _redrive(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        group = str(arguments["group"])
        self._redriven[group] = max(int(arguments["offset"]), self.redriven(group))
        return {"offset": self._redriven[group]}

    def dump(self) -> dict[str, Any]:
        table = {f"{topic}@{group}@{queue_id}": [list(run) for run in runs] for (group, topic, queue_id), runs in self._sent.items()}
        return {"sentBackTable": table, "redrivenTable": dict(self._redriven)}

    def load(self, data: dict[str, Any]) -> None:
        self._sent.clear()
        for name, runs in data["sentBackTable"].items():
            topic, group, queue_id = name.split("@")
            self._sent[group, topic, int(queue_id)] = Runs((first, upto) for first, upto in runs)
        self._redriven = {group: int(offset) for group, offset in data["redrivenTable"].items()}


def runs_of(offsets: Iterable[int]) -> list[list[int]]:
    """Rising offsets as runs ``[first, upto)``."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1][1] += 1
        else:
            runs.append([offset, offset + 1])
    return runs
