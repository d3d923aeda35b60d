"""What is wrong with a node: one list of conditions, for the words of ``dledger status`` and for the alarms of its metrics.

Owns when each of them is so, and what weighs most: the first state is the one that clients judge a replica group by, the others follow it
as warnings, so that a disk that is full hides neither a damage nor a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.config.units import span
from dledger.clock.clock_monitor import ClockMonitor
from dledger.settings import RaftStatus

OK = "ok"
SLOW_DISK_S = 1.0  # as in the critical alert DledgerSlowFsync
_REPLACE = (
    "stop this node, dledger member remove --id {0} --yes, move its data folder away, start it with an empty one and spare: true, "
    "dledger member add --id {0}, then promote it"
)


class Condition(NamedTuple):
    """``kind`` is that of the metric ``dledger_alarm``; empty for what needs no action at once.  ``must_not_lead``: while it is so."""

    kind: str
    text: str
    must_not_lead: bool = False


def conditions_of(
    raft: RaftStatus, *, refuses_messages: bool, clocks: ClockMonitor, damage_seen: Sequence[str], memory: str = ""
) -> list[Condition]:
    """All that hold now, the weightiest first; with the clocks as they were compared last.

    Args:
        raft: The replica's own state.
        refuses_messages: Whether the store takes no new messages, for want of disk space.
        clocks: Of this node and its group.
        damage_seen: Damages that a comparison of replicas has found.
        memory: What the memory alarm says while it is set.
    """
    return list(_conditions(raft, refuses_messages, clocks, damage_seen, memory))


def _conditions(
    raft: RaftStatus, refuses_messages: bool, clocks: ClockMonitor, damage_seen: Sequence[str], memory: str
) -> Iterator[Condition]:
    if raft.failed:
        yield Condition("stopped", f"stopped: {raft.failed}", True)
    if raft.copying:
        yield Condition("copying", raft.copying, True)
    yield from _want_of_room(raft, refuses_messages, memory)
    clock = _clock_problem(clocks)
    if clock:
        yield Condition("clock", clock, abs(clocks.skew_ms) > clocks.time.max_skew_ms)
    if raft.damaged:
        yield Condition("damaged", f"damaged: {_first_of(raft.damaged)}; no replica has the bytes so far")
    elif damage_seen:
        yield Condition("damaged", f"damaged: {_first_of(damage_seen)}; a restart fetches the bytes from a peer")
    if raft.contradicted:
        yield Condition("contradicted", f"contradicted: {raft.contradicted}; {_REPLACE.format(raft.node_id)}")
    if denied := sum(raft.contradictions.values()):
        yield Condition(
            "", f"{OK}; {denied} answers of followers contradict what they had acknowledged: look for peer_contradicts in the log"
        )
    if raft.slowest_flush_s >= SLOW_DISK_S:
        yield Condition("", f"{OK}; slow disk: a write took {raft.slowest_flush_s:.1f} s to be on it")
    if raft.refused_messages:
        yield Condition("", f"{OK}; refused {raft.refused_messages} messages on links of replicas: see the node's log")


def _want_of_room(raft: RaftStatus, refuses_messages: bool, memory: str) -> Iterator[Condition]:
    if raft.disk_full:
        yield Condition("disk_full", "read-only: the disk is full", True)
    elif refuses_messages:
        yield Condition("read_only", "read-only: the disk is used beyond diskSpaceWarningLevelRatio or diskFreeLimit", True)
    if memory:
        yield Condition("memory", f"{memory}: takes no new messages")


def states_of(conditions: Sequence[Condition]) -> list[str]:
    """At least one, ``ok`` when nothing is wrong."""
    return [condition.text for condition in conditions] or [OK]


def cannot_lead(conditions: Sequence[Condition], certificate: str) -> str:
    """Why a node must not lead by what it knows of itself; empty: nothing.  ``certificate``: what is wrong with its own."""
    found = [condition.text for condition in conditions if condition.must_not_lead]
    return "; ".join([*found, certificate] if certificate else found)


def warnings_of(states: Sequence[str]) -> list[str]:
    """The states behind the first, as warnings."""
    return [state.removeprefix(f"{OK}; ") for state in states[1:]]


def _clock_problem(clocks: ClockMonitor) -> str:
    """What is wrong with this node's clock or with the group's clocks; empty when nothing is."""
    limit_ms, skew_ms, lag_ms = clocks.time.max_skew_ms, clocks.skew_ms, clocks.time.lag_ms()
    if abs(skew_ms) > limit_ms:
        return f"clock off by {span(skew_ms)} from the group's majority (maxClockSkewMs {limit_ms}): leads only when no other node can"
    if abs(lag_ms) > limit_ms:
        return f"the clocks of the group jumped by {span(lag_ms)}: its time follows by 1 %, or at once after all nodes were down"
    return ""


def _first_of(damage: Sequence[str]) -> str:
    return damage[0] + (f" (and {len(damage) - 1} more)" if len(damage) > 1 else "")
