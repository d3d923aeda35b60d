"""What the parts of a machine offer to faults: links, disks, clocks and processes of this package implement it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A running process of a machine."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout_s: float) -> int: ...

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""

    def terminate(self, timeout_s: float) -> int:
        """SIGTERM; returns the exit status."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Disk(Protocol):
    """Where a node's data lies.  What a machine has no means for raises InvalidArgumentError."""

    @property
    def path(self) -> Path: ...

    def power_off(self) -> None:
        """Drop what was not synced and make the file system unusable; the process must be killed by the caller right after."""

    def power_on(self) -> None:
        """Mount it again, after the process is gone."""

    def fill(self, leave_bytes: int) -> None: ...

    def free(self) -> None:
        """Take ``fill`` back."""

    def slow(self, sync_ms: float, write_ms: float = 0.0) -> None:
        """Every sync and write takes so much longer; 0 for as before.  Works on a running process."""

    def fail(self, failing: bool) -> None:
        """Syncs and writes fail with EIO while ``failing``."""

    @property
    def struck(self) -> int:
        """How many writes and syncs ``slow`` and ``fail`` have delayed or failed so far."""

    def wipe(self, folder: str) -> None:
        """Remove a folder (relative to ``path``), also for the case that the power fails; nothing when it is not there."""

    def flip_bit(self, file: str, byte: int, bit: int = 0) -> None:
        """Change one bit of a file (path relative to ``path``), also while a process writes it."""


class Clock(Protocol):
    """The wall clock that a machine's processes see."""

    def shift(self, seconds: float) -> None:
        """How far it is ahead of the right time; 0: right."""


class Machine(Protocol):
    """What one node or name server lives on, as faults see it."""

    @property
    def process(self) -> Process | None: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def clock(self) -> Clock: ...


@dataclass(frozen=True, slots=True)
class LinkShape:
    """One direction of a link.  ``loss`` and ``reorder``: share of the frames; jitter alone keeps their order."""

    cut: bool = False
    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float | None = None


class Links(Protocol):
    """The network between machines; names of nodes, of name servers, ``clients`` and ``drill``.  Each direction by itself."""

    def cut(self, source: str, target: str) -> None:
        self.shape(source, target, LinkShape(cut=True))

    def isolate(self, name: str, others: Sequence[str]) -> None:
        """Cut both directions between ``name`` and each of ``others``."""
        for other in others:
            self.cut(name, other)
            self.cut(other, name)

    def shape(self, source: str, target: str, shape: LinkShape) -> None:
        """What this direction does to all that is sent from now on."""

    def restore(self, source: str, target: str) -> None:
        """This direction carries again, as it came."""

    def heal(self) -> None:
        """Everything carries again."""


class CountedLinks(Links, Protocol):
    """Links that tell whether a fault of theirs met any traffic."""

    def struck(self, source: str, target: str) -> int:
        """How much this direction has dropped or held back so far: frames, or pieces of a connection."""
