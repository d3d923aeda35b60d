"""What a start found: the typed recovery report, and the findings of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class DamageKind(Enum):
    """What kind of damage a finding is."""

    BAD_ENTRY = "bad entry"
    MISSING_ENTRY = "missing entry"
    MISSING_SEGMENT = "missing segment"
    BAD_FILLER = "bad filler"
    BAD_UNIT = "bad index unit"
    MISSING_UNITS = "missing index units"
    TORN_TAIL = "torn tail"
    HARD_STATE = "bad hard state"
    HARD_STATE_COPY = "bad copy of the hard state"
    LOG_START = "bad log start"
    PREPARED = "spoilt prepared file"
    FOREIGN_FILE = "foreign file"
    QUEUE_FILE = "bad queue file"
    INDEX_FILE = "bad key index file"
    SNAPSHOT = "bad snapshot"
    OWN_FILE = "bad file of the node"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, with its exact place; ``index`` is 0 when no entry can be named."""

    file: str
    pos: int
    index: int
    kind: DamageKind
    text: str

    def __str__(self) -> str:
        entry = f" entry {self.index}" if self.index else ""
        return f"{self.file}: byte {self.pos}:{entry} {self.kind.value}: {self.text}"

    @property
    def is_damage(self) -> bool:
        """Whether bytes are not what was written.  Not a torn tail (never acknowledged), a prepared file (empty) or a foreign one."""
        return self.kind not in (DamageKind.TORN_TAIL, DamageKind.PREPARED, DamageKind.FOREIGN_FILE)


@dataclass(frozen=True, slots=True)
class TornTail:
    """A tail that was never acknowledged, or given up, was cut at ``pos``; its bytes are in ``quarantine``."""

    pos: int
    size_bytes: int
    reason: str
    quarantine: str


@dataclass(slots=True)
class RecoveryReport:
    """What ``Log.open`` found and did.  Clean: neither ``torn`` nor ``damaged``."""

    torn: TornTail | None = None
    damaged: list[Finding] = field(default_factory=list)
    units_rewritten: int = 0
    fillers_rewritten: int = 0
    spoilt_prepared: str | None = None  # where the bytes are kept that stood in a file which was only prepared
    entries_checked: int = 0
    foreign_files: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return self.torn is None and not self.damaged

    def summary(self) -> str:
        """One line for the node's own log."""
        if self.damaged:
            return f"damaged in {len(self.damaged)} places, first {self.damaged[0]}"
        if self.torn is not None:
            return f"torn tail of {self.torn.size_bytes} bytes cut at {self.torn.pos} ({self.torn.reason}), kept in {self.torn.quarantine}"
        if self.spoilt_prepared is not None:
            return f"clean; a preallocated segment was not empty; its bytes are kept in {self.spoilt_prepared}"
        rewritten = f"{self.units_rewritten} index units and {self.fillers_rewritten} fillers rewritten"
        return f"clean, {self.entries_checked} entries checked, {rewritten}"
