"""Checks of what consumers and stores do: consumer groups that lag or are stuck, dead letters, transactions that were put aside.

Owns their limits and the words of their findings; ``dledger status --check`` and the console's "Needs attention" show the same ones.  What
a replica group does not say is a finding as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dledger_client.admin.calls import Listed
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.group_progress import GroupProgress
from dledger_client.admin.open_transactions import GroupTransactions
from dledger_client.admin.status_text import span
from dledger_wire.errors import DledgerError, InvalidArgumentError


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


GROUP_LAG, GROUP_STUCK, DEAD_LETTERS, TRANSACTIONS = "group-lag", "group-stuck", "dead-letters", "transactions"
# A time as the alert DledgerConsumerLagSeconds has it; of what an operator has to look at, one is too many.
CONSUMER_DEFAULTS = {GROUP_LAG: "5m", GROUP_STUCK: "5m", DEAD_LETTERS: "0", TRANSACTIONS: "0"}
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LIMIT = re.compile(r"([0-9]{1,12})([smhd]?)")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConsumersStatus:
    """What the cluster says of its consumers, and of messages that wait for an operator.

    Attributes:
        groups: The consumer groups; ``unanswered`` and ``read_at`` as ``describe_groups`` has them.
        dead_letters: By consumer group and replica group.
        transactions: By replica group.
        problems: By check: why nothing is known for it.
    """

    groups: Listed[GroupProgress] = field(default_factory=Listed)
    dead_letters: Listed[DeadLetters] = field(default_factory=Listed)
    transactions: Listed[GroupTransactions] = field(default_factory=Listed)
    problems: Mapping[str, DledgerError] = field(default_factory=dict)


def consumer_limit(check: Check) -> tuple[str, int]:
    """(``ms`` or ``messages``, number) of the limit of a check.  InvalidArgumentError when it is none."""
    found = _LIMIT.fullmatch(check.value)
    in_time, counted = check.name in (GROUP_LAG, GROUP_STUCK), check.name != GROUP_STUCK
    if found is None or not (in_time if found[2] else counted):
        expected = " or ".join(["a number of messages"] * counted + ["a time such as 5m"] * in_time)
        raise InvalidArgumentError(f"check {check}: expected {expected}")
    return ("ms", int(found[1]) * UNITS_MS[found[2]]) if found[2] else ("messages", int(found[1]))


def find_consumers(seen: ConsumersStatus, checks: Sequence[Check]) -> list[Finding]:
    """What those of ``checks`` find that look at consumers; first what is not known, by replica group."""
    asked = [check for check in checks if check.name in CONSUMER_DEFAULTS]
    found = list(_unknown(seen, [check.name for check in asked]))
    for check in asked:
        found += _CHECKS[check.name](seen, check)
    return found


def _unknown(seen: ConsumersStatus, checks: Sequence[str]) -> Iterator[Finding]:
    why: dict[tuple[str, str], list[str]] = {}  # (replica group, why) -> checks
    for check in checks:
        if check in seen.problems:
            why.setdefault(("", seen.problems[check].message), []).append(check)
            continue
        listed: Listed[GroupProgress] | Listed[DeadLetters] | Listed[GroupTransactions]
        listed = seen.dead_letters if check == DEAD_LETTERS else seen.transactions if check == TRANSACTIONS else seen.groups
        for group, error in listed.unanswered.items():
            # Without a leader followers have the rest: only members, and producers that can be asked, are not known.
            if group not in listed.read_at or check == GROUP_STUCK:
                why.setdefault((group, error.message), []).append(check)
    for (group, error_text), names in sorted(why.items()):
        yield Finding("unanswered", group, "", f"{error_text}; not checked: {', '.join(names)}")


def _lagging(seen: ConsumersStatus, check: Check) -> Iterator[Finding]:
    unit, limit = consumer_limit(check)
    for group in seen.groups:
        waiting = group.longest_waiting_ms
        is_over = (waiting or 0) > limit if unit == "ms" else (group.lag or 0) > limit
        if is_over and not group.is_broadcast:
            oldest = "" if waiting is None else f", the oldest waits for {span(waiting)}"
            yield Finding(check.name, "", "", f"{group.lag} messages behind{oldest} (limit {check.value})", group.name)


def _stuck(seen: ConsumersStatus, check: Check) -> Iterator[Finding]:
    _, limit_ms = consumer_limit(check)
    for group in seen.groups:
        for first in group.standing(limit_ms)[:1]:
            place = f"{first.queue.topic} {first.queue.replica_group}/{first.queue.queue_id} at offset {first.offset}"
            text = f"{group.state(limit_ms).text} (limit {check.value}); {first.member.client_id} stands in {place}"
            yield Finding(check.name, "", "", text, group.name)


def _letters(seen: ConsumersStatus, check: Check) -> Iterator[Finding]:
    waiting: Counter[str] = Counter()
    for letters in seen.dead_letters:
        waiting[letters.consumer_group] += letters.waiting
    for name, count in waiting.items():
        if count > consumer_limit(check)[1]:
            text = f"{count} dead letters wait (limit {check.value}): dledger dlq list {name}"
            yield Finding(check.name, "", "", text, name)


def _put_aside(seen: ConsumersStatus, check: Check) -> Iterator[Finding]:
    for group in seen.transactions:
        if group.parked > consumer_limit(check)[1]:
            text = f"{group.parked} transactions were put aside, no producer knew their outcome (limit {check.value})"
            yield Finding(check.name, group.replica_group, "", text)


_CHECKS: dict[str, Callable[[ConsumersStatus, Check], Iterator[Finding]]] = {
    GROUP_LAG: _lagging,
    GROUP_STUCK: _stuck,
    DEAD_LETTERS: _letters,
    TRANSACTIONS: _put_aside,
}
