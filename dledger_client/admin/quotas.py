"""What ``Admin`` returns of quotas, and how the answers of replica groups and nodes become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dledger_wire._pb import admin_pb2

QuotaKind: TypeAlias = Literal["user", "producer-group", "consumer-group", "topic"]


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a name used of a quota at one node, within the last minute.

    Attributes:
        name: The user, group or topic.
        replica_group: The node's replica group.
        node: The node: a leader, or a follower that is read from.
        used: By limit what it uses now; of what is a second an average of some seconds.
        shares: By how many leaders the limits are divided; each enforces its share.
        waits_s: How long its streams have to wait now, in seconds; 0 while it is not throttled.
        throttled_s: How long they have waited for this rule, in seconds.
        throttled_requests: How many requests waited, or made their stream wait.
    """

    name: str
    replica_group: str
    node: str
    used: Mapping[str, float]
    shares: int
    waits_s: float
    throttled_s: float
    throttled_requests: int


@dataclass(frozen=True, slots=True)
class ClusterQuota:
    """A quota.

    Attributes:
        kind: ``user``, ``producer-group``, ``consumer-group`` or ``topic``.
        name: Whom it is for; ``*`` for each one that has no quota of its own.
        limits: By limit how much: ``produce_bytes``, ``produce_messages``, ``fetch_bytes``, ``fetch_messages`` a second, and
            ``unacknowledged_bytes`` and ``connections`` at a time.
        used: What names use of it, those that wait longest first.
        missing_in: Replica groups that do not have it so: set it again.
    """

    kind: str
    name: str
    limits: Mapping[str, int]
    used: tuple[QuotaUse, ...] = ()
    missing_in: tuple[str, ...] = ()


def quotas_of(leaders: Mapping[str, admin_pb2.QuotaList], nodes: Iterable[admin_pb2.QuotaList]) -> list[ClusterQuota]:
    """The quotas that any replica group has, in order: ``leaders``, by replica group, have the rules, ``nodes`` what is used."""
    rules: dict[tuple[str, str], dict[str, Mapping[str, int]]] = {}
    used: dict[tuple[str, str], list[QuotaUse]] = {}
    for group, answer in sorted(leaders.items()):
        for rule in answer.rules:
            rules.setdefault((rule.kind, rule.name), {})[group] = dict(rule.limits)
    for answer in nodes:
        for use in answer.used:
            used.setdefault((use.kind, use.rule_name), []).append(
                QuotaUse(
                    name=use.name,
                    replica_group=answer.group,
                    node=answer.node,
                    used=dict(use.used),
                    shares=use.shares,
                    waits_s=use.waits_s,
                    throttled_s=use.throttled_s,
                    throttled_requests=use.throttled_requests,
                )
            )
    return [_quota(key, by_group, used.get(key, []), leaders) for key, by_group in sorted(rules.items())]


def _quota(
    key: tuple[str, str], by_group: Mapping[str, Mapping[str, int]], used: list[QuotaUse], groups: Mapping[str, object]
) -> ClusterQuota:
    limits = by_group[max(by_group)]
    missing = tuple(group for group in sorted(groups) if by_group.get(group) != limits)
    first = sorted(used, key=lambda use: (-use.waits_s, -use.throttled_s, use.name, use.node))
    return ClusterQuota(*key, limits, tuple(first), missing)
