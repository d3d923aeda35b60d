"""Commands that change quotas: how much a user, a group or a topic may send and read a second.

Every replica group has all quotas in its log, as settings of consumer groups: its leader enforces its share of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group, check_topic
from dledger_wire.security.principal import USER_NAME, is_user_name
from store.commands.command import Command, Row

EVERY = "*"  # in place of a name: each one that has no rule of its own
MAX_QUOTAS = 1_000
MAX_LIMIT = 1 << 50


class Subject(StrEnum):
    """What a quota is for."""

    USER = "user"
    PRODUCER_GROUP = "producer-group"
    CONSUMER_GROUP = "consumer-group"
    TOPIC = "topic"


class Limit(StrEnum):
    """What is limited: the rates are a second."""

    PRODUCE_BYTES = "produce_bytes"
    PRODUCE_MESSAGES = "produce_messages"
    FETCH_BYTES = "fetch_bytes"
    FETCH_MESSAGES = "fetch_messages"
    UNACKNOWLEDGED_BYTES = "unacknowledged_bytes"  # of a user: sent and not answered yet
    CONNECTIONS = "connections"  # of a user, to one node


PRODUCE = Limit.PRODUCE_BYTES, Limit.PRODUCE_MESSAGES
FETCH = Limit.FETCH_BYTES, Limit.FETCH_MESSAGES
RATES = PRODUCE + FETCH
_LIMITS = {
    Subject.USER: tuple(Limit),
    Subject.PRODUCER_GROUP: PRODUCE,
    Subject.CONSUMER_GROUP: FETCH,
    Subject.TOPIC: RATES,
}


@dataclass(frozen=True, slots=True)
class Quota(Row):
    """A rule.  What has no limit in it is not limited by it; one without limits exempts its name from the rule for each one."""

    subject: Subject
    name: str
    limits: Mapping[Limit, int]

    def encode(self) -> list[Any]:
        """As a row of JSON."""
        return [self.subject.value, self.name, {limit.value: self.limits[limit] for limit in sorted(self.limits)}]

    @classmethod
    def decode(cls, row: tuple[Any, ...]) -> Quota:
        """The rule of a row.  ValueError when it is none."""
        subject, name, limits = row
        return cls(Subject(subject), str(name), {Limit(limit): int(value) for limit, value in dict(limits).items()})

    def check(self) -> None:
        """InvalidArgumentError for a rule that means nothing."""
        check_subject(self.subject, self.name)
        for limit, value in self.limits.items():
            if limit not in _LIMITS[self.subject]:
                raise InvalidArgumentError(f"{limit} of a {self.subject}: expected {' or '.join(_LIMITS[self.subject])}")
            if not 0 < value <= MAX_LIMIT:
                raise InvalidArgumentError(f"{limit} {value}: expected 1 to {MAX_LIMIT}")


def check_subject(subject: Subject, name: str) -> None:
    """InvalidArgumentError for a name that nothing of that kind can have."""
    if name == EVERY:
        return
    if subject is Subject.USER and not is_user_name(name):
        raise InvalidArgumentError(f"user {name!r}: expected {USER_NAME}, or {EVERY} for each user")
    if subject is Subject.TOPIC:
        check_topic(name)
    elif subject is not Subject.USER:
        check_group(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutQuota(Command[bool]):
    """Makes a rule, in place of the one for the same subject and name; returns whether there was one."""

    KIND: ClassVar[str] = "put_quota"
    quota: Quota

    def check(self) -> None:
        self.quota.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteQuota(Command[bool]):
    """Deletes a rule; returns whether there was one."""

    KIND: ClassVar[str] = "delete_quota"
    subject: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyQuotas(Command[bool]):
    """All rules of another replica group, for one that never had any; returns whether it took them."""

    KIND: ClassVar[str] = "copy_quotas"
    quotas: tuple[Quota, ...]

    def check(self) -> None:
        if len(self.quotas) > MAX_QUOTAS:
            raise InvalidArgumentError(f"{len(self.quotas)} quotas; expected at most {MAX_QUOTAS}")
        for quota in self.quotas:
            quota.check()
