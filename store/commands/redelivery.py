"""Commands that say how far messages were stored again: delay levels, timers, messages sent back, dead letters.

Each is proposed in one log entry with the messages it is about, so both are committed or neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from store.commands.command import Command, OffsetRun


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceDelayLevel(Command[None]):
    """Everything of a delay level in front of ``offset`` is delivered."""

    KIND: ClassVar[str] = "advance_delay"
    level: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceTimers(Command[None]):
    """The new progress of the timer queue (``store/state/timers.py``)."""

    KIND: ClassVar[str] = "advance_timers"
    low: int
    seen: int
    done_ms: int
    done_offset: int
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTimed(Command[None]):
    """The message at ``offset`` of the timer queue, due at ``due_ms``, is not to be delivered."""

    KIND: ClassVar[str] = "recall_timed"
    offset: int
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSentBack(Command[None]):
    """A group has sent these messages of a queue back."""

    KIND: ClassVar[str] = "sent_back"
    group: str
    topic: str
    queue_id: int
    runs: tuple[OffsetRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRedriven(Command[None]):
    """A group's dead letters in front of ``offset`` were redriven."""

    KIND: ClassVar[str] = "redriven"
    group: str
    offset: int
