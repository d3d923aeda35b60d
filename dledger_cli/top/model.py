"""What one look at a cluster shows: replica groups with their nodes, consumer groups, and the changes of leader so far.

Shapes only; ``history.py`` makes them of what the nodes report, ``screen.py`` and ``text.py`` show them.  Rates are per second; None where
there is nothing to compare with yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages and bytes a second; ``in`` is stored, ``out`` is given to readers."""

    messages_in: float | None = None
    bytes_in: float | None = None
    messages_out: float | None = None
    bytes_out: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of a replica group.  Without an answer only the ids and ``note`` mean something.

    ``lag``: committed entries that it does not have; ``loop_lag_ms``: how late its event loop was; ``rss_bytes``: its memory.
    ``connection_states``, ``bottleneck``: see ``NodeStatus``.
    """

    replica_group: str
    id: str
    reachable: bool
    role: str
    term: int
    lag: int | None
    disk_used_percent: float
    loop_lag_ms: float
    rss_bytes: int
    rates: Rates
    note: str
    connection_states: Mapping[str, int] = field(default_factory=dict, hash=False)
    bottleneck: str = ""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A replica group with its nodes.  ``spare``: how many more voters may fail; negative when writes have stopped."""

    name: str
    leader: str
    term: int
    voters: int
    acknowledging: int
    spare: int
    healthy: bool
    takes_messages: bool
    rates: Rates
    nodes: tuple[NodeRow, ...]


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer group: what it has not read, and how fast that changes.  ``lag_change`` is above zero when it falls back."""

    name: str
    members: int
    topics: tuple[str, ...]
    lag: int
    consumed: float | None
    lag_change: float | None


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A change of leader, as the nodes or the looks at them saw it.

    ``at_ms``: milliseconds since 1970.  ``old``: empty when there was none before, or it is not known.  ``new``: empty while there is none.
    ``without_ms``: how long there was no leader; None when it is not known.
    """

    at_ms: int
    replica_group: str
    old: str
    new: str
    term: int
    without_ms: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """One look.  ``consumers_trouble``: why the consumer groups are not those of now; empty when they are."""

    at_ms: int
    cluster: str
    sentence: str
    groups: tuple[GroupRow, ...]
    consumers: tuple[ConsumerRow, ...] = ()
    consumers_trouble: str = ""
    changes: tuple[LeaderChange, ...] = field(default=())  # newest first

    @property
    def healthy(self) -> bool:
        """Whether every replica group is in order."""
        return all(group.healthy for group in self.groups)

    @property
    def takes_messages(self) -> bool:
        """Whether every replica group can store messages."""
        return all(group.takes_messages for group in self.groups)
