"""The quotas of one node: which names are limited now, what they used, and how long they have to wait.

Owns the buckets.  A name gets them when a rule counts for it, and loses them when it was not used for a minute; the number of names is
bounded, and the one that was not used for longest goes first.  A node that becomes leader begins with full buckets.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from broker.quotas.bucket import Bucket
from broker.quotas.unacknowledged import Unacknowledged
from store.commands.quotas import FETCH, PRODUCE, RATES, Limit, Quota, Subject
from store.state.quotas import QuotaState
from store.state.topics import Topics

MAX_NAMES = 10_000
FORGET_S = 60.0
FORGET_AT_ONCE = 10
MAX_SHOWN = 1_000
RESOLVE_S = 5.0  # how often is looked whether a name's share is another one

Traffic = tuple[Limit, Limit]  # of bytes and of messages in one direction


@dataclass(slots=True, eq=False)
class Limited:
    """A name that a rule counts for.  ``shares``: how many leaders enforce a part of the rule."""

    subject: Subject
    name: str
    rule: Quota
    shares: int
    used_s: float
    resolved_s: float
    version: int
    is_limited: bool = False
    most_unacknowledged: float = math.inf
    buckets: dict[Limit, Bucket] = field(default_factory=dict)
    throttled_s: float = 0.0
    throttled_requests: int = 0

    waiting: int = 0  # streams that wait for it now

    def debt_s(self, now_s: float, traffic: Iterable[Limit] = tuple(Limit)) -> float:
        """How long who sends or reads under the name has to wait now."""
        return max((bucket.debt_s(now_s) for limit, bucket in self.buckets.items() if limit in traffic), default=0.0)


class Quotas:
    """``shares`` gives for a subject and name how many leaders have a part of its traffic."""

    def __init__(self, state: QuotaState, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.shares: Callable[[Subject, str], int] = lambda _subject, _name: 1
        # Whether there is a rule that a producer, or a reader, might meet: without one nothing is counted.
        self.limits_produce = self.limits_fetch = self.limits_unacknowledged = False
        self.unacknowledged: dict[str, Unacknowledged] = {}  # by user that has a Produce stream
        self.throttled_s = dict.fromkeys(map(str, Subject), 0.0)  # since the start, by subject of the rule
        self.throttled_requests = dict.fromkeys(map(str, Subject), 0)
        self._state = state
        self._names: OrderedDict[tuple[Subject, str], Limited] = OrderedDict()  # the longest unused first
        self._version = 0
        state.changed = self._changed
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        limits = {limit for rule in self._state.rules() for limit in rule.limits}
        self.limits_produce, self.limits_fetch = not limits.isdisjoint(PRODUCE), not limits.isdisjoint(FETCH)
        self.limits_unacknowledged = Limit.UNACKNOWLEDGED_BYTES in limits

    def take(self, subject: Subject, name: str, traffic: Traffic, size_bytes: int, messages: int) -> Limited | None:
        """Count what went under a name; None when no rule counts for it."""
        now_s = self.now_s()
        limited = self._limited(subject, name, now_s)
        if limited is not None:
            for limit, amount in zip(traffic, (size_bytes, messages), strict=True):
                if (bucket := limited.buckets.get(limit)) is not None:
                    bucket.take(amount, now_s)
        return limited

    def debt_s(self, limited: Limited, traffic: Traffic) -> float:
        """How long a name has to wait, by the rule that counts for it now."""
        now_s = self.now_s()
        self._resolve(limited, now_s)
        return limited.debt_s(now_s, traffic)

    def throttled(self, limited: Limited, seconds: float) -> None:
        """A request waited, or made its stream wait, by this rule."""
        limited.throttled_s += seconds
        limited.throttled_requests += 1
        self.throttled_s[limited.subject] += seconds
        self.throttled_requests[limited.subject] += 1

    def used_lately(self) -> list[Limited]:
        """Names that were used within the last minute, the newest first; of very many not all."""
        now_s = self.now_s()
        return [each for each in islice(reversed(self._names.values()), MAX_SHOWN) if now_s - each.used_s < FORGET_S]

    def _limited(self, subject: Subject, name: str, now_s: float) -> Limited | None:
        key = subject, name
        limited = self._names.get(key)
        if limited is None:
            rule = self._state.rule_for(subject, name)
            if rule is None:
                return None
            limited = self._names[key] = Limited(subject, name, rule, 1, now_s, now_s, -1)
        self._resolve(limited, now_s)
        limited.used_s = now_s
        self._names.move_to_end(key)
        self._forget(now_s)
        return limited if limited.is_limited else None

    def _resolve(self, limited: Limited, now_s: float) -> None:
        """Give a name the buckets of the rule that counts now.  What it owes by a limit that is still there it goes on to owe."""
        if limited.version == self._version and now_s - limited.resolved_s < RESOLVE_S:
            return
        limited.version, limited.resolved_s = self._version, now_s
        rule = self._state.rule_for(limited.subject, limited.name)
        limited.is_limited, limited.most_unacknowledged = rule is not None and bool(rule.limits), math.inf
        if rule is None:
            limited.buckets.clear()
            return
        limited.rule, limited.shares = rule, max(1, self.shares(limited.subject, limited.name))
        old, limited.buckets = limited.buckets, {}
        for limit, value in rule.limits.items():
            share = value / limited.shares
            if limit in RATES:
                bucket = limited.buckets[limit] = old.get(limit) or Bucket(share, now_s)
                bucket.rate = share
            elif limit is Limit.UNACKNOWLEDGED_BYTES:
                limited.most_unacknowledged = share

    def _forget(self, now_s: float) -> None:
        for oldest in list(islice(self._names.values(), FORGET_AT_ONCE)):
            if len(self._names) <= MAX_NAMES and now_s - oldest.used_s < FORGET_S:
                return
            self._names.popitem(last=False)


def shares_of(topics: Topics, groups: Iterable[str]) -> Callable[[Subject, str], int]:
    """How many replica groups, and so leaders, share a quota: those that hold a topic, else all of the cluster (``groups``)."""

    def shares(subject: Subject, name: str) -> int:
        known = set(groups)
        topic = topics.get(name) if subject is Subject.TOPIC else None
        return len(known.intersection(topic.groups) if topic is not None and topic.groups else known)

    return shares
