"""Upgrades: which builds and feature levels the nodes have, and what speaks against an upgrade or a downgrade now.

What may be done is decided by the leader of a replica group; the check here only says it beforehand, and for every node by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
from dledger_client.admin.status_checks import find, parse_checks
from dledger_wire.feature_levels import THIS_BUILD, LevelRange, refusal, release_of, switched_on
from dledger_wire.version import installed_version

CHECKS = "no-leader,no-writes,under-replicated,disk,damage,clock"  # of status_checks: what must be in order before a node is stopped


@dataclass(frozen=True, slots=True)
class GroupUpgrade:
    """What an upgrade means for a replica group.

    Attributes:
        replica_group: The group of nodes.
        level: The feature level it is at.
        needs: The first release that can do the level; empty for a level of a newer build than the one that made the check.
        can_rise_to: The level that it can be raised to now, since all members can do it.
        switches_on: What that would switch on, a text for each level.
        status: Its nodes and their builds.
        problems: What speaks against stopping a node now, or against starting this build on its folder.
        waits_for: What speaks against a higher level: members that are away, or whose build cannot do it.
    """

    replica_group: str
    level: int
    needs: str
    can_rise_to: int
    switches_on: tuple[str, ...]
    status: ReplicaGroupStatus
    problems: tuple[str, ...]
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpgradeCheck:
    """Whether the nodes of a cluster can be upgraded or downgraded now, one by one.

    Attributes:
        version: The build that the check is for: the one that made it.
        lowest_level: The lowest feature level that it can do.
        highest_level: The highest feature level that it can do.
        groups: What it means for each replica group.
    """

    version: str
    lowest_level: int
    highest_level: int
    groups: tuple[GroupUpgrade, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What speaks against it; empty when nothing does."""
        return tuple(text for group in self.groups for text in group.problems)


@dataclass(frozen=True, slots=True)
class RaisedLevel:
    """The feature level of a replica group after ``finish_upgrade``.

    Attributes:
        replica_group: The group of nodes.
        old_level: The level before.
        level: The level now.
        release: The first release that can do it.
    """

    replica_group: str
    old_level: int
    level: int
    release: str


def check(groups: Sequence[ReplicaGroupStatus], now_ms: int, build: LevelRange = THIS_BUILD) -> UpgradeCheck:
    """What the nodes' states say about an upgrade or a downgrade to ``build``."""
    version = installed_version()
    found = tuple(_group(group, now_ms, build, version) for group in groups)
    return UpgradeCheck(version, build.lowest, build.highest, found)


def _group(group: ReplicaGroupStatus, now_ms: int, build: LevelRange, version: str) -> GroupUpgrade:
    level = max((node.feature_level for node in group.nodes if node.reachable), default=0)
    members = [node for node in group.nodes if group.is_member(node.id)]
    highest = min((node.highest_level for node in members if node.reachable), default=level)
    silent = any(not node.reachable for node in members)
    rises_to = level if silent or not members else max(level, highest)
    problems = [f"{finding}" for finding in find([group], parse_checks(CHECKS), now_ms)]
    problems += _stops_writes(group, now_ms)
    if text := refusal(f"this build ({version})", build, level):
        problems.append(f"level: {group.name}: {text}")
    return GroupUpgrade(
        replica_group=group.name,
        level=level,
        needs=release_of(level),
        can_rise_to=rises_to,
        switches_on=tuple(each.switches_on for each in switched_on(level, rises_to)),
        status=group,
        problems=tuple(problems),
        waits_for=tuple(_waits_for(members, max(level, build.highest))) if rises_to < build.highest else (),
    )


def _stops_writes(group: ReplicaGroupStatus, now_ms: int) -> Iterator[str]:
    """Nodes without which writes stop.  A group with one voter always stands still while its node is restarted: that is no finding."""
    if len(group.voters) > 1:
        yield from (str(finding) for finding in find([group], parse_checks("quorum-critical"), now_ms))


def _waits_for(members: Sequence[NodeStatus], wanted: int) -> Iterator[str]:
    for node in members:
        if not node.reachable:
            yield f"{node.id} does not answer, and what its build can do is not known"
        elif node.highest_level < wanted:
            yield f"{node.id} ({node.version}) can do feature levels {node.lowest_level} to {node.highest_level} only"
