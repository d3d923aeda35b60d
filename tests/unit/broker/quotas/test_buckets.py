"""Buckets and the names that have them, by a clock that the tests move."""

from __future__ import annotations

import pytest

from broker.quotas import quotas as quotas_module
from broker.quotas.bucket import MAX_DEBT_S, Bucket
from broker.quotas.quotas import Limited, Quotas, shares_of
from store.commands.quotas import FETCH, PRODUCE, DeleteQuota, Limit, PutQuota, Quota, Subject
from store.state.quotas import QuotaState
from store.state.replica_group import ReplicaGroupState
from store.state.state_machine import CommandContext, CommandHandlers
from store.state.topics import Topic, Topics

AT = CommandContext(index=1, term=1, pos=0, at_ms=1)


def test_a_second_of_the_rate_may_be_used_at_once_and_what_is_owed_is_paid_by_time() -> None:
    bucket = Bucket(100.0, 0.0)
    bucket.take(100, 0.0)
    assert bucket.debt_s(0.0) == 0
    bucket.take(150, 0.0)
    assert bucket.debt_s(0.0) == pytest.approx(1.5)
    assert bucket.debt_s(1.0) == pytest.approx(0.5)
    assert bucket.debt_s(10.0) == 0
    bucket.take(101, 10.0)  # time that was not used is worth a second at most
    assert bucket.debt_s(10.0) == pytest.approx(0.01)


def test_a_tiny_limit_stops_nobody_for_longer_than_a_minute() -> None:
    bucket = Bucket(1.0, 0.0)
    for _ in range(10):
        bucket.take(1 << 20, 0.0)
    assert bucket.debt_s(0.0) == MAX_DEBT_S


def test_what_is_used_is_an_average_that_fades() -> None:
    bucket = Bucket(1e6, 0.0)
    for tenth in range(600):
        bucket.take(100, tenth / 10)
    assert bucket.used_a_second(60.0) == pytest.approx(1000, rel=0.02)
    assert bucket.used_a_second(90.0) < 5


class Node:
    """Quotas over a state that commands change."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.state, self._handlers = QuotaState(), CommandHandlers()
        self.state.register(self._handlers)
        self.quotas = Quotas(self.state, lambda: self.now_s)

    def put(self, subject: Subject, name: str, **limits: int) -> None:
        rule = Quota(subject, name, {Limit(limit): value for limit, value in limits.items()})
        self._handlers.apply(PutQuota(quota=rule), AT)

    def delete(self, subject: Subject, name: str) -> None:
        self._handlers.apply(DeleteQuota(subject=subject.value, name=name), AT)

    def debt_s(self, limited: Limited) -> float:
        return self.quotas.debt_s(limited, PRODUCE)

    def take(self, name: str, size: int = 0, messages: int = 0) -> Limited:
        found = self.quotas.take(Subject.TOPIC, name, PRODUCE, size, messages)
        assert found is not None
        return found


def test_without_a_rule_that_counts_nothing_is_kept() -> None:
    node = Node()
    assert not node.quotas.limits_produce
    node.put(Subject.TOPIC, "orders", produce_bytes=1)
    assert node.quotas.limits_produce
    assert node.quotas.take(Subject.TOPIC, "logs", PRODUCE, 5, 1) is None
    assert node.quotas.used_lately() == []
    node.delete(Subject.TOPIC, "orders")
    assert not node.quotas.limits_produce


def test_the_limit_that_is_exceeded_most_decides() -> None:
    node = Node()
    node.put(Subject.TOPIC, "t", produce_bytes=1000, produce_messages=10)
    assert node.debt_s(node.take("t", 2000, 10)) == pytest.approx(1.0)
    assert node.debt_s(node.take("t", 0, 30)) == pytest.approx(3.0)


def test_what_is_read_is_not_owed_by_who_sends() -> None:
    node = Node()
    node.put(Subject.TOPIC, "t", produce_messages=10, fetch_messages=10)
    assert (node.quotas.limits_produce, node.quotas.limits_fetch) == (True, True)
    limited = node.quotas.take(Subject.TOPIC, "t", FETCH, 0, 30)
    assert limited is not None
    assert node.quotas.debt_s(limited, FETCH) == pytest.approx(2.0)
    assert node.debt_s(limited) == 0
    assert limited.debt_s(0.0) == pytest.approx(2.0)


def test_each_name_of_a_rule_for_each_has_buckets_of_its_own() -> None:
    node = Node()
    node.put(Subject.TOPIC, "*", produce_messages=10)
    assert node.debt_s(node.take("a", messages=20)) == pytest.approx(1.0)
    assert node.debt_s(node.take("b", messages=10)) == 0
    node.put(Subject.TOPIC, "b")
    assert node.quotas.take(Subject.TOPIC, "b", PRODUCE, 0, 100) is None, "a rule without limits exempts the name"


def test_a_rule_that_changes_or_goes_counts_at_once_for_who_waits() -> None:
    node = Node()
    node.put(Subject.TOPIC, "t", produce_messages=10)
    waiting = node.take("t", messages=110)
    assert node.debt_s(waiting) == pytest.approx(10.0)
    node.put(Subject.TOPIC, "t", produce_messages=100)
    assert node.debt_s(waiting) == pytest.approx(1.0)
    node.delete(Subject.TOPIC, "t")
    assert node.debt_s(waiting) == 0


def test_leaders_share_a_limit_and_a_new_share_is_seen() -> None:
    node, groups = Node(), ["g0", "g1"]
    topics = Topics(lambda *_: "", lambda *_: 0, ReplicaGroupState())
    topics._topics["t"] = Topic("t", 1, 1, 6, 0, ("g0",))
    node.quotas.shares = shares_of(topics, groups)
    node.put(Subject.TOPIC, "*", produce_messages=10)
    assert (node.take("t").shares, node.take("unknown").shares) == (1, 2)
    assert node.debt_s(node.take("unknown", messages=10)) == pytest.approx(1.0)
    groups.append("g2")
    node.now_s = quotas_module.RESOLVE_S
    assert (node.take("t").shares, node.take("unknown").shares) == (1, 3)


def test_names_that_are_not_used_are_forgotten_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "MAX_NAMES", 3)
    node = Node()
    node.put(Subject.TOPIC, "*", produce_messages=10)
    for name in ("a", "b", "c", "a", "d"):
        node.take(name)
    assert [each.name for each in node.quotas.used_lately()] == ["d", "a", "c"]
    node.now_s = quotas_module.FORGET_S
    assert node.quotas.used_lately() == []
    node.take("e")
    assert [name for _, name in node.quotas._names] == ["e"]
