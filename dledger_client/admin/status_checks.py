"""Checks of a cluster's state for scripts and monitoring: what is wrong, a line each, by names and limits that the caller chooses.

Owns the names of the checks, their limits, and the words of their findings.  What is not known, because a node does not answer or no
leader is known, is a finding as well: a check that says nothing has looked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
from dledger_client.admin.consumer_checks import CONSUMER_DEFAULTS, ConsumersStatus, consumer_limit, find_consumers
from dledger_client.admin.consumer_checks import Check as Check
from dledger_client.admin.consumer_checks import Finding as Finding
from dledger_client.admin.status_text import replicas_of
from dledger_wire.errors import InvalidArgumentError

DAY_MS = 86_400_000
ALL = "all"
DEFAULTS = {
    "no-leader": "",
    "no-writes": "",
    "under-replicated": "",
    "lag": "10000",
    "disk": "85",
    "cert": "14d",
    "damage": "",
    "clock": "",
    "slow-disk": "1000ms",
    "alarm": "",
    **CONSUMER_DEFAULTS,
}
NAMES = (*DEFAULTS, "quorum-critical")
_OF_EACH_NODE = ("lag", "disk", "cert", "damage", "clock", "slow-disk", "alarm")
_SILENT = ("under-replicated", *_OF_EACH_NODE)  # one of them finds a member that does not answer, in one line


def parse_checks(text: str) -> list[Check]:
    """The checks of a text such as ``no-leader,lag=10000,disk=85,cert=14d,quorum-critical=n1``; ``all`` stands for all but the last.

    InvalidArgumentError for a name or a limit that is none.
    """
    found: dict[tuple[str, str], Check] = {}
    for part in (part.strip() for part in text.split(",")):
        name, _, value = part.partition("=")
        if name != ALL and name not in NAMES:
            raise InvalidArgumentError(f"no check {name!r}; expected {', '.join(NAMES)} or {ALL}")
        if name == ALL and value:
            raise InvalidArgumentError(f"check {ALL} takes no value, got {value!r}; name the check that it is for")
        for each in DEFAULTS if name == ALL else (name,):
            check = Check(each, value or DEFAULTS.get(each, ""))
            _limit(check)
            # With a limit of its own the check replaces the one of ``all``.
            found[(each, check.value if each == "quorum-critical" else "")] = check
    return list(found.values())


def _limit(check: Check) -> float:
    """The number of a limit.  InvalidArgumentError when it is none, or when the check takes no value."""
    if check.name == "quorum-critical":
        return 0.0
    if check.name in CONSUMER_DEFAULTS:
        return float(consumer_limit(check)[1])
    if not DEFAULTS[check.name]:
        if check.value:
            raise InvalidArgumentError(f"check {check.name} takes no value, got {check.value!r}")
        return 0.0
    unit = {"cert": "d", "disk": "%", "slow-disk": "ms"}.get(check.name, "")
    number = check.value.removesuffix(unit)
    if not number.isdecimal() or (check.name == "disk" and int(number) > 100):
        raise InvalidArgumentError(f"check {check}: expected {_expected(check.name)}")
    return float(number)


def _expected(name: str) -> str:
    return {
        "lag": "a number of entries",
        "disk": "a percentage from 0 to 100",
        "cert": "a number of days such as 14d",
        "slow-disk": "a number of milliseconds such as 1000ms",
    }[name]


def needs_consumers(checks: Sequence[Check]) -> bool:
    """Whether some of them look at consumers."""
    return any(check.name in CONSUMER_DEFAULTS for check in checks)


def find(
    groups: Sequence[ReplicaGroupStatus],
    checks: Sequence[Check],
    now_ms: int,
    members: Mapping[str, Collection[str]] | None = None,
    consumers: ConsumersStatus | None = None,
) -> list[Finding]:
    """What ``checks`` find, in their order, those of consumers last.

    ``now_ms``: milliseconds since 1970.  ``members``: replica group -> ids that should be members.  ``consumers``: what there is of them;
    without it their checks are left out.  InvalidArgumentError for a node to be asked about that no replica group has.
    """
    found: list[Finding] = []
    asked = [check.name for check in checks if check.name in _SILENT]
    if asked:
        found += [finding for group in groups for finding in _silent(group, asked)]
    for check in checks:
        if check.name in CONSUMER_DEFAULTS:
            continue
        if check.name == "quorum-critical" and check.value and not any(node.id == check.value for group in groups for node in group.nodes):
            known = ", ".join(node.id for group in groups for node in group.nodes)
            raise InvalidArgumentError(f"check {check}: no such node; expected one of {known}")
        for group in groups:
            wanted = (members or {}).get(group.name, ())
            found += [
                Finding(check.name, group.name, node, text) for node, text in _CHECKS[check.name](_Case(group, check, now_ms, wanted))
            ]
    return found if consumers is None else found + find_consumers(consumers, checks)


@dataclass(frozen=True, slots=True)
class _Case:
    """A check of one replica group."""

    group: ReplicaGroupStatus
    check: Check
    now_ms: int
    wanted: Collection[str]

    @property
    def limit(self) -> float:
        return _limit(self.check)

    @property
    def answering(self) -> list[NodeStatus]:
        return [node for node in self.group.nodes if node.reachable]


_Found = Iterator[tuple[str, str]]  # (node or empty, text)


def _silent(group: ReplicaGroupStatus, asked: Sequence[str]) -> Iterator[Finding]:
    """Members that say nothing of themselves, each once, whatever was asked."""
    name = asked[0] if len(asked) == 1 else "under-replicated" if "under-replicated" in asked else "unreachable"
    unknown = [check for check in asked if check in _OF_EACH_NODE]
    for node in group.nodes:
        if not node.reachable and (group.is_member(node.id) or not group.voters):
            text = f"a member that does not answer: {node.error}"
            yield Finding(name, group.name, node.id, f"{text}; not known of it: {', '.join(unknown)}" if unknown else text)


def _no_leader(case: _Case) -> _Found:
    group, away = case.group, case.group.unreachable_leader
    if group.leader is None and away is not None:
        if group.silent_leader is None:
            yield away.id, f"the other nodes follow it (term {group.term}), and it is unreachable: {away.error}"
    elif not group.leader_id:
        yield "", f"no leader (term {group.term}); {len(case.answering)} of {len(group.nodes)} nodes answer"


def _no_writes(case: _Case) -> _Found:
    group = case.group
    if group.takes_messages:
        return
    away = group.unreachable_leader
    if group.silent_leader is not None:
        yield group.leader_id, f"the leader gave {group.silent_leader.error}, so whether it takes messages is not known"
    elif away is not None:
        yield away.id, f"the leader is unreachable: {away.error}, so whether it takes messages is not known"
    elif group.leader is None:
        yield "", "no leader, so no message can be stored"
    elif group.spare < 0:
        yield "", f"{len(group.acknowledging)} of {len(group.voters)} voters acknowledge, {group.quorum} are needed to store a message"
    else:
        yield group.leader.id, f"the leader takes no messages: {group.leader.state}"


def _under_replicated(case: _Case) -> _Found:
    group = case.group
    replicas = replicas_of(group)
    for node in replicas["lagging"]:
        yield (
            node,
            "a member that is not in sync with the leader" if group.leader else "a member, and there is no leader to be in sync with",
        )
    for node in case.wanted:
        if not group.is_member(node):
            yield node, "in the cluster file, but not a member"


def _lag(case: _Case) -> _Found:
    group, limit = case.group, case.limit
    if group.leader is None:
        yield "", "the lag is not known without a leader"
        return
    for node in group.nodes:
        lag = group.lag(node)
        if not group.is_member(node.id) or node.id == group.leader.id:
            continue
        if lag is not None and lag > limit:
            yield node.id, f"{lag} entries behind the leader {group.leader.id} (limit {limit:g})"


def _disk(case: _Case) -> _Found:
    for node in case.answering:
        if node.disk_used_percent >= case.limit:
            yield node.id, f"its disk is used to {node.disk_used_percent:.0f} % (limit {case.limit:g})"


def _certificates(case: _Case) -> _Found:
    for node in case.answering:
        left_ms = node.certificate_expires_at_ms - case.now_ms
        if not node.certificate_expires_at_ms or left_ms >= case.limit * DAY_MS:
            continue
        yield node.id, "its certificate has expired" if left_ms <= 0 else f"its certificate expires in {left_ms / DAY_MS:.1f} days"


def _damage(case: _Case) -> _Found:
    return _states(case, "damaged", "stopped")


def _clock(case: _Case) -> _Found:
    return _states(case, "clock", "the clocks")


def _alarm(case: _Case) -> _Found:
    return _states(case, "memory alarm", "read-only")


def _states(case: _Case, *beginnings: str) -> _Found:
    for node in case.answering:
        for text in (node.state, *node.warnings):
            if text.startswith(beginnings):
                yield node.id, text


def _slow_disk(case: _Case) -> _Found:
    leader = case.group.leader
    for node in case.answering:
        if node.sync_ms >= case.limit:
            yield node.id, f"a write took {node.sync_ms / 1000:.1f} s to be on its disk (limit {case.limit / 1000:g} s)"
    if leader is not None and leader.uncommitted_ms >= case.limit:
        waited_s, slow = leader.uncommitted_ms / 1000, [node.id for node in case.answering if node.sync_ms >= case.limit]
        why = f"slow disks: {', '.join(slow)}" if slow else "no disk is slow: look at the network between the nodes"
        yield leader.id, f"an entry has waited {waited_s:.1f} s to be committed (limit {case.limit / 1000:g} s); {why}"


def _quorum_critical(case: _Case) -> _Found:
    group = case.group
    for node in group.nodes:
        if (case.check.value or node.id) == node.id and (text := _lost_without(group, node.id)):
            yield node.id, text


def _lost_without(group: ReplicaGroupStatus, node_id: str) -> str:
    """Why a node must keep running; empty when the others take messages without it."""
    if node_id not in group.voters:
        return ""
    if not group.takes_messages:
        return "must not stop: no message can be stored even now"
    missing = group.stopped_without([node_id])
    return f"must not stop: {missing}" if missing else ""


_CHECKS: dict[str, Callable[[_Case], _Found]] = {
    "no-leader": _no_leader,
    "no-writes": _no_writes,
    "under-replicated": _under_replicated,
    "lag": _lag,
    "disk": _disk,
    "cert": _certificates,
    "damage": _damage,
    "clock": _clock,
    "slow-disk": _slow_disk,
    "alarm": _alarm,
    "quorum-critical": _quorum_critical,
}
