"""A drill's options, and what one round does.  Everything that is drawn is in the plan, so a round can be repeated alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Need(StrEnum):
    """What a fault needs of the machine."""

    NAMESPACES = "network namespaces"
    LOOP_DISKS = "loop disks"
    PRELOAD = "a preloaded library"
    FIVE_NODES = "five nodes"
    TLS = "certificates"
    RESTART = "a command that restarts a node"


@dataclass(frozen=True, slots=True)
class FaultChoice:
    """One fault of a round.  ``after_s`` counts from the start of the round's load; ``seed`` is for what the fault draws itself."""

    name: str
    group: str
    after_s: float
    hold_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """``faults``: one, or two that overlap."""

    number: int
    seed: int
    faults: tuple[FaultChoice, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(choice.name for choice in self.faults)


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """What was asked for.

    Args:
        faults: Names of faults; those that are not possible are left out.
        rounds: How many, unless ``duration_s`` ends the drill before.
        workloads: Names of workloads.
        only_round: Run this round alone.
        pairs: Share of the rounds that have two faults, once every fault was there.
        tls: The private cluster speaks TLS.
        settings: Added to the private cluster's file.
    """

    faults: tuple[str, ...]
    workloads: tuple[str, ...]
    seed: int
    rounds: int | None = None
    duration_s: float | None = None
    only_round: int | None = None
    nodes: int = 3
    groups: int = 2
    pairs: float = 0.25
    tls: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
