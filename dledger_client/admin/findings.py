"""A check of the cluster's state, and what it found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: Which one; see ``status_checks.NAMES``.
        value: Its limit or its node as text; empty for a check that has none.
    """

    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a check found.

    Attributes:
        check: Name of the check.
        replica_group: The replica group it is about; empty when it is about no single one.
        node: The node it is about; empty when it is the whole replica group.
        text: What it is.
        consumer_group: The consumer group it is about; empty when it is about none.
    """

    check: str
    replica_group: str
    node: str
    text: str
    consumer_group: str = ""

    def __str__(self) -> str:
        where = self.consumer_group or (f"{self.replica_group}/{self.node}" if self.node else self.replica_group)
        return ": ".join(filter(None, (self.check, where, self.text)))
