"""Users and rules: who may do what, and how they are changed, copied and kept."""

from __future__ import annotations

import itertools

import pytest

from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.security.scram import secret_verifier
from store.commands.security import (
    Action,
    ChangeRules,
    CopySecurity,
    DeleteUser,
    Effect,
    PutUser,
    Resource,
    Rule,
    SetUserSecret,
    User,
    UserSecret,
)
from store.state.security import SecurityState
from store.state.state_machine import CommandContext, CommandHandlers

ALLOW, DENY = Effect.ALLOW, Effect.DENY
TOPIC, CLUSTER = Resource.TOPIC, Resource.CLUSTER


def rule(user: str, effect: Effect, action: Action, pattern: str, resource: Resource = TOPIC) -> Rule:
    return Rule(user, effect, resource, pattern, action)


class State:
    """A state and its commands, each by way of its bytes in the log."""

    def __init__(self) -> None:
        self.state = SecurityState()
        self._handlers = CommandHandlers()
        self.state.register(self._handlers)
        self._indexes = itertools.count(1)
        for name in ("alice", "bob"):
            self.do(PutUser(user=User(name, secret_verifier(name * 8))))

    def do(self, command: PutUser | DeleteUser | ChangeRules | CopySecurity | SetUserSecret) -> int:
        decoded = type(command).decode(command.encode())
        assert decoded == command
        decoded.check()
        index = next(self._indexes)
        result = self._handlers.apply(decoded, CommandContext(index=index, term=1, at_ms=index, pos=0))
        assert isinstance(result, int)
        return result

    def rules(self, *rules: Rule) -> SecurityState:
        self.do(ChangeRules(added=rules))
        return self.state


def test_what_no_rule_allows_is_denied() -> None:
    assert not State().state.allowed("alice", Action.READ, TOPIC, "orders")


@pytest.mark.parametrize(
    ("pattern", "fits"), [("orders", True), ("order*", True), ("*", True), ("orders*", True), ("order", False), ("x*", False)]
)
def test_a_pattern_is_a_name_or_its_beginning(pattern: str, fits: bool) -> None:
    state = State().rules(rule("alice", ALLOW, Action.WRITE, pattern))
    assert state.allowed("alice", Action.WRITE, TOPIC, "orders") is fits


def test_a_rule_is_for_its_user_its_action_and_its_type() -> None:
    state = State().rules(rule("alice", ALLOW, Action.WRITE, "orders"))
    assert not state.allowed("bob", Action.WRITE, TOPIC, "orders")
    assert not state.allowed("alice", Action.READ, TOPIC, "orders")
    assert not state.allowed("alice", Action.WRITE, Resource.GROUP, "orders")


def test_any_right_shows_that_a_resource_is_there() -> None:
    state = State().rules(rule("alice", ALLOW, Action.READ, "orders"))
    assert state.allowed("alice", Action.DESCRIBE, TOPIC, "orders")
    assert not state.allowed("alice", Action.DESCRIBE, TOPIC, "payments")


def test_deny_wins_whatever_the_order_and_for_whomever_it_is() -> None:
    for rules in itertools.permutations([rule("alice", ALLOW, Action.READ, "*"), rule("*", DENY, Action.READ, "payments*")]):
        state = State().rules(*rules)
        assert state.allowed("alice", Action.READ, TOPIC, "orders")
        assert not state.allowed("alice", Action.READ, TOPIC, "payments-eu")


def test_who_may_not_know_of_a_resource_may_do_nothing_with_it() -> None:
    state = State().rules(rule("alice", ALLOW, Action.WRITE, "*"), rule("alice", DENY, Action.DESCRIBE, "secret"))
    assert not state.allowed("alice", Action.WRITE, TOPIC, "secret")


def test_an_administrator_of_the_cluster_may_do_everything_that_is_not_denied() -> None:
    state = State().rules(rule("alice", ALLOW, Action.ADMINISTER, "*", CLUSTER), rule("*", DENY, Action.READ, "salaries"))
    assert state.allowed("alice", Action.ADMINISTER, TOPIC, "orders")
    assert state.allowed("alice", Action.READ, Resource.GROUP, "audit")
    assert not state.allowed("alice", Action.READ, TOPIC, "salaries")


def test_who_administers_a_topic_may_use_it() -> None:
    state = State().rules(rule("alice", ALLOW, Action.ADMINISTER, "orders"))
    assert all(state.allowed("alice", action, TOPIC, "orders") for action in Action)
    assert not state.allowed("alice", Action.ADMINISTER, CLUSTER, "*")


def test_rules_for_everybody_are_for_every_user() -> None:
    state = State().rules(rule("*", ALLOW, Action.READ, "news"))
    assert state.allowed("alice", Action.READ, TOPIC, "news")
    assert state.allowed("bob", Action.READ, TOPIC, "news")


def test_a_user_who_was_deleted_and_created_again_has_no_rights() -> None:
    rig = State()
    rig.rules(rule("alice", ALLOW, Action.READ, "*"))
    rig.do(DeleteUser(name="alice"))
    rig.do(PutUser(user=User("alice")))
    assert not rig.state.allowed("alice", Action.READ, TOPIC, "orders")


def test_every_change_counts_and_is_told() -> None:
    rig, told = State(), []
    rig.state.on_change(lambda: told.append(rig.state.version))
    before = rig.state.version
    rig.do(PutUser(user=User("carol")))
    rig.do(ChangeRules(added=(rule("carol", ALLOW, Action.READ, "*"),)))
    rig.do(ChangeRules(removed=(rule("carol", ALLOW, Action.READ, "*"),)))
    assert rig.do(DeleteUser(name="carol")) == before + 4
    assert told == [before + 1, before + 2, before + 3, before + 4]
    assert rig.state.rules() == []


@pytest.mark.parametrize(
    "command",
    [
        PutUser(user=User("alice")),
        PutUser(user=User("carol"), create=False),
        DeleteUser(name="carol"),
        ChangeRules(added=(rule("carol", ALLOW, Action.READ, "*"),)),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(command: PutUser | DeleteUser | ChangeRules) -> None:
    rig = State()
    before = rig.state.dump()
    with pytest.raises(DledgerError):
        rig.do(command)
    assert rig.state.dump() == before


@pytest.mark.parametrize(
    "command",
    [
        PutUser(user=User("a b")),
        PutUser(user=User("*")),
        ChangeRules(),
        ChangeRules(added=(rule("*", ALLOW, Action.READ, ""),)),
        ChangeRules(added=(rule("*", ALLOW, Action.READ, "a*b"),)),
        ChangeRules(added=(rule("*", ALLOW, Action.READ, "a\x1b[2J"),)),
        ChangeRules(added=(rule("*", ALLOW, Action.READ, "x" * 300),)),
        ChangeRules(added=(rule("a/b", ALLOW, Action.READ, "*"),)),
        ChangeRules(added=(rule("*", ALLOW, Action.READ, "shop", CLUSTER),)),
        ChangeRules(added=tuple(rule("*", ALLOW, Action.READ, str(number)) for number in range(1001))),
    ],
)
def test_what_means_nothing_is_refused_before_it_is_logged(command: PutUser | ChangeRules) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        command.check()


def test_a_copy_replaces_everything_and_an_older_one_nothing() -> None:
    first, other = State(), State()
    state = first.rules(rule("alice", ALLOW, Action.READ, "*"))
    first.do(PutUser(user=User("carol")))
    copy = CopySecurity(version=state.version, users=tuple(state.users()), rules=tuple(state.rules()))
    other.do(DeleteUser(name="bob"))
    other.do(copy)
    assert other.state.dump() == state.dump()
    later = CopySecurity(version=state.version + 1, users=(), rules=())
    other.do(later)
    other.do(copy)
    assert other.state.users() == []


def test_a_snapshot_brings_everything_back() -> None:
    state = State().rules(rule("alice", DENY, Action.READ, "x*"), rule("*", ALLOW, Action.READ, "*"))
    loaded = SecurityState()
    loaded.load(state.dump())
    assert loaded.dump() == state.dump()
    assert loaded.user("alice") == state.user("alice")
    assert not loaded.allowed("alice", Action.READ, TOPIC, "x1")


def test_a_secret_outlives_another_password_and_goes_with_its_user() -> None:
    rig = State()
    rig.do(SetUserSecret(name="alice", secret="first"))
    rig.do(SetUserSecret(name="alice", secret="second"))
    rig.do(SetUserSecret(name="bob", secret="bobs"))
    rig.do(PutUser(user=User("alice", secret_verifier("another one")), create=False))
    assert rig.state.secrets() == [UserSecret("alice", "second"), UserSecret("bob", "bobs")]
    rig.do(SetUserSecret(name="bob"))
    copied, loaded = State(), SecurityState()
    copied.do(CopySecurity(version=99, users=rig.state.as_copy().users, rules=(), secrets=rig.state.as_copy().secrets))
    loaded.load(rig.state.dump())
    for state in (rig.state, copied.state, loaded):
        assert (state.secret("alice"), state.secret("bob")) == ("second", "")
    rig.do(DeleteUser(name="alice"))
    rig.do(PutUser(user=User("alice")))
    assert not rig.state.secret("alice")
    with pytest.raises(InvalidArgumentError, match="no user 'carol'"):
        rig.do(SetUserSecret(name="carol", secret="x"))
