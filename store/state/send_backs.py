"""What consumer groups have sent back, as replicated state: so that a message is stored again once an attempt, whatever is repeated.

Owns config/sendBack.json.  An attempt is a place: the queue and offset where the group read the message (the original the first time, the
group's retry topic after that).  The command that marks places as sent back is in the same log entry as the copies, so both are
committed or neither.  Places in front of the group's committed position are forgotten: a send-back of those is late, the group is
done with them.  Also how far a group's dead letters were redriven, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger_wire.names import DLQ_PREFIX
from store.commands.command import JsonObject
from store.commands.redelivery import MarkRedriven, MarkSentBack
from store.state.offset_runs import OffsetRuns
from store.state.state_machine import CommandContext, CommandHandlers

MAX_RUNS = 4096  # runs of a group in one queue: so many gaps it may leave in front of its committed position

GroupQueue = tuple[str, str, int]  # consumer group, topic, queue id


class SendBacks:
    """Implements ``StateMachineSection``; ``committed`` returns a group's offset in a queue, 0 for none."""

    file_name = "sendBack.json"

    def __init__(self, committed: Callable[[str, str, int], int]) -> None:
        self._committed = committed
        self._sent: dict[GroupQueue, OffsetRuns] = {}
        self._redriven: dict[str, int] = {}

    def sent(self, place: GroupQueue) -> OffsetRuns:
        """Offsets of the queue that the group has sent back."""
        return self._sent.get(place) or OffsetRuns()

    def queues_of(self, group: str) -> list[tuple[str, int]]:
        """Topic and queue of whatever the group has sent back."""
        return sorted((topic, queue_id) for name, topic, queue_id in self._sent if name == group)

    def redriven(self, group: str) -> int:
        """The next dead letter of the group that a redrive would send."""
        return self._redriven.get(group, 0)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: one created later starts without marks."""
        for place in [place for place in self._sent if place[1] == topic]:
            del self._sent[place]
        if topic.startswith(DLQ_PREFIX):
            self._redriven.pop(topic.removeprefix(DLQ_PREFIX), None)

    def went_back(self, group: str, topic: str, queue_id: int) -> None:
        """The group's position was reset: what it reads again may be sent back again."""
        self._sent.pop((group, topic, queue_id), None)

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(MarkSentBack, self._mark_sent_back)
        handlers.on(MarkRedriven, self._mark_redriven)

    def _mark_sent_back(self, command: MarkSentBack, _context: CommandContext) -> None:
        queue = (command.group, command.topic, command.queue_id)
        runs = self._sent.setdefault(queue, OffsetRuns())
        for first, end in command.runs:
            runs.add(first, end)
        runs.forget_below(self._committed(*queue))
        if not runs:
            del self._sent[queue]

    def _mark_redriven(self, command: MarkRedriven, _context: CommandContext) -> None:
        self._redriven[command.group] = max(command.offset, self.redriven(command.group))

    def dump(self) -> JsonObject:
        table = {f"{topic}@{group}@{queue_id}": [list(run) for run in runs] for (group, topic, queue_id), runs in self._sent.items()}
        return {"sentBackTable": table, "redrivenTable": dict(self._redriven)}

    def load(self, data: JsonObject) -> None:
        self._sent.clear()
        for name, runs in data["sentBackTable"].items():
            topic, group, queue_id = name.split("@")
            self._sent[group, topic, int(queue_id)] = OffsetRuns((first, end) for first, end in runs)
        self._redriven = {group: int(offset) for group, offset in data["redrivenTable"].items()}
