"""Quotas as replicated state: which rule counts for a name, what is refused, and what a snapshot brings back."""

from __future__ import annotations

import pytest

from dledger_wire.errors import DledgerError
from store.commands.command import Command
from store.commands.quotas import MAX_LIMIT, DeleteQuota, Limit, PutQuota, Quota, Subject
from store.state import quotas
from store.state.quotas import QuotaState
from store.state.state_machine import CommandContext, CommandHandlers

AT = CommandContext(index=1, term=1, pos=0, at_ms=1)


def quota(subject: Subject, name: str, size: int = 1) -> Quota:
    return Quota(subject, name, {Limit.PRODUCE_BYTES: size})


def state_of(*commands: Command[bool]) -> QuotaState:
    state, handlers = QuotaState(), CommandHandlers()
    state.register(handlers)
    for command in commands:
        decoded = type(command).decode(command.encode())
        assert decoded == command
        handlers.apply(decoded, AT)
    return state


def test_the_rule_of_a_name_counts_before_the_one_for_each() -> None:
    own, each = quota(Subject.TOPIC, "orders"), quota(Subject.TOPIC, "*", 2)
    state = state_of(PutQuota(quota=each), PutQuota(quota=own))
    assert state.rule_for(Subject.TOPIC, "orders") == own
    assert state.rule_for(Subject.TOPIC, "logs") == each
    assert state.rule_for(Subject.USER, "orders") is None


def test_a_rule_takes_the_place_of_the_one_before() -> None:
    first, second = quota(Subject.USER, "alice"), Quota(Subject.USER, "alice", {Limit.PRODUCE_MESSAGES: 7})
    assert state_of(PutQuota(quota=first), PutQuota(quota=second)).rules() == [second]
    assert state_of(PutQuota(quota=first), DeleteQuota(subject="user", name="alice")).rules() == []


def test_a_snapshot_brings_everything_back_and_says_so() -> None:
    state = state_of(PutQuota(quota=quota(Subject.USER, "*")), PutQuota(quota=Quota(Subject.USER, "alice", {})))
    loaded, calls = QuotaState(), list[int]()
    loaded.changed = lambda: calls.append(1)
    loaded.load(state.dump())
    assert loaded.rules() == state.rules()
    assert calls == [1]


@pytest.mark.parametrize(
    "rule",
    [
        quota(Subject.USER, "a b"),
        quota(Subject.TOPIC, "a b"),
        quota(Subject.TOPIC, "orders*"),
        quota(Subject.PRODUCER_GROUP, ""),
        quota(Subject.CONSUMER_GROUP, "audit"),
        Quota(Subject.PRODUCER_GROUP, "spark", {Limit.FETCH_MESSAGES: 1}),
        Quota(Subject.TOPIC, "orders", {Limit.UNACKNOWLEDGED_BYTES: 1}),
        Quota(Subject.TOPIC, "orders", {Limit.CONNECTIONS: 1}),
        quota(Subject.TOPIC, "orders", 0),
        quota(Subject.TOPIC, "orders", MAX_LIMIT + 1),
    ],
)
def test_a_rule_that_means_nothing_is_refused_before_it_is_logged(rule: Quota) -> None:
    with pytest.raises(DledgerError):
        PutQuota(quota=rule).check()


def test_the_number_of_rules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_QUOTAS", 2)
    two = [PutQuota(quota=quota(Subject.TOPIC, name)) for name in ("a", "b")]
    with pytest.raises(DledgerError, match="expected no more"):
        state_of(*two, PutQuota(quota=quota(Subject.TOPIC, "c")))
    assert len(state_of(*two, PutQuota(quota=quota(Subject.TOPIC, "a", 9))).rules()) == 2
