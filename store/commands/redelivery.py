"""Commands that say how far messages were stored again: delay levels, timers, messages sent back, dead letters.

Each is proposed in one log entry with the messages it is about, so both are committed or neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from store.commands.command import Command, Fields, JsonObject, OffsetRun, json_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceDelayLevel(Command[None]):
    """Everything of a delay level in front of ``offset`` is delivered."""

    KIND: ClassVar[str] = "advance_delay"
    level: int
    offset: int

    def encode(self) -> JsonObject:
        return {"level": self.level, "offset": self.offset}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(level=fields.integer("level"), offset=fields.integer("offset"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceTimers(Command[None]):
    """The new progress of the timer queue (``store/state/timers.py``)."""

    KIND: ClassVar[str] = "advance_timers"
    low: int
    seen: int
    done_ms: int
    done_offset: int
    held: tuple[int, ...] = ()

    def encode(self) -> JsonObject:
        return {
            "low": self.low,
            "seen": self.seen,
            "done_ms": self.done_ms,
            "done_offset": self.done_offset,
            "held": list(self.held),
        }

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(
            low=fields.integer("low"),
            seen=fields.integer("seen"),
            done_ms=fields.integer("done_ms"),
            done_offset=fields.integer("done_offset", -1),
            held=fields.integers("held"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSentBack(Command[None]):
    """A group has sent these messages of a queue back."""

    KIND: ClassVar[str] = "sent_back"
    group: str
    topic: str
    queue_id: int
    runs: tuple[OffsetRun, ...]

    def encode(self) -> JsonObject:
        return {"group": self.group, "topic": self.topic, "queue_id": self.queue_id, "runs": json_runs(self.runs)}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(group=fields.text("group"), topic=fields.text("topic"), queue_id=fields.integer("queue_id"), runs=fields.runs("runs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRedriven(Command[None]):
    """A group's dead letters in front of ``offset`` were redriven."""

    KIND: ClassVar[str] = "redriven"
    group: str
    offset: int

    def encode(self) -> JsonObject:
        return {"group": self.group, "offset": self.offset}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(group=fields.text("group"), offset=fields.integer("offset"))
