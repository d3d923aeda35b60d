"""Every method of every service has a row that says who may call it."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from broker.security.access import AccessControl
from broker.security.permissions import CHECKS, asks_itself, check_of
from dledger_wire import _pb
from dledger_wire._pb.security_pb2 import SecurityUser
from dledger_wire.errors import DledgerError, PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import METHODS
from dledger_wire.security import principal
from store.commands.security import Action, CopySecurity, Effect, Resource, Rule, User
from store.state.security import SecurityState

MALLORY = principal.user("mallory")
# What a user may ask about itself, or without naming anything: the answer then leaves out what it may not see.
UNNAMED = {
    methods.QUEUE_OFFSETS.path,
    methods.GROUP_OFFSETS.path,
    methods.DESCRIBE_MEMBERS.path,
    methods.DEAD_LETTERS.path,
    methods.DESCRIBE_TRANSACTIONS.path,
}


def paths_of_services() -> list[str]:
    """Every RPC of the services in proto/dledger/v1."""
    found = []
    for module in pkgutil.iter_modules(_pb.__path__):
        descriptor = import_module(f"{_pb.__name__}.{module.name}").DESCRIPTOR
        for service in descriptor.services_by_name.values():
            found += [f"/{service.full_name}/{method.name}" for method in service.methods]
    return found


def access() -> AccessControl:
    state = SecurityState()
    return AccessControl(lambda: state)


def test_every_method_has_a_row() -> None:
    declared = set(paths_of_services())
    assert len(declared) > 30
    assert declared <= set(METHODS)
    assert set(METHODS) == set(CHECKS)


@pytest.mark.parametrize("path", sorted(set(CHECKS) - UNNAMED))
def test_a_user_without_rights_is_refused_before_the_service_or_by_it(path: str) -> None:
    check = CHECKS[path]
    if check is asks_itself:
        return  # tests/unit/broker/security/test_services.py
    with pytest.raises(PermissionDeniedError):
        check(access(), MALLORY, METHODS[path].request())


@pytest.mark.parametrize("path", sorted(CHECKS))
def test_who_has_no_credentials_is_refused_everywhere(path: str) -> None:
    request = METHODS[path].request()
    for field in request.DESCRIPTOR.fields:
        if field.name in ("groups", "topics") and field.type == field.TYPE_STRING:
            getattr(request, field.name).append("x")
    if CHECKS[path] is not asks_itself and path not in UNNAMED:
        with pytest.raises(PermissionDeniedError):
            CHECKS[path](access(), principal.ANONYMOUS, request)


def test_a_method_that_nobody_declared_is_for_members_of_the_cluster_only() -> None:
    check = check_of(methods.PACKAGE + "Broker/AddedLater")
    check(access(), principal.node("c", "g", "n"), None)
    with pytest.raises(PermissionDeniedError):
        check(access(), MALLORY, None)


@pytest.mark.parametrize("method", [methods.RAFT_LINK, methods.COPY_PLAN, methods.FETCH_ENTRY, methods.WATCH_SECURITY, methods.REGISTER])
def test_an_administrator_is_no_member_of_the_cluster(method: methods.UnaryMethod) -> None:  # type: ignore[type-arg]
    state = SecurityState()
    root = AccessControl(lambda: state, ["root"])
    with pytest.raises(DledgerError):
        CHECKS[method.path](root, principal.user("root"), method.request())


@pytest.mark.parametrize("method", [methods.PUT_USER, methods.DELETE_USER, methods.SET_USER_SECRET, methods.CHANGE_RULES])
@pytest.mark.parametrize("member", [principal.node("c", "g", "n"), principal.name_server("c", "n"), principal.node("c", "-", "s")], ids=str)
def test_who_stole_a_node_s_certificate_makes_no_users(method: methods.UnaryMethod, member: principal.Principal) -> None:  # type: ignore[type-arg]
    with pytest.raises(PermissionDeniedError, match="may not administer users"):
        CHECKS[method.path](access(), member, method.request())


@pytest.mark.parametrize("method", [methods.CREATE_TOPIC, methods.UPDATE_TOPIC, methods.DELETE_TOPIC, methods.AUTO_CREATE_TOPIC])
@pytest.mark.parametrize("topic", ["%RETRY%victims", "%DLQ%victims", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_rights_on_all_topics_are_none_on_those_of_groups_and_the_system(method: methods.UnaryMethod, topic: str) -> None:  # type: ignore[type-arg]
    state = SecurityState()
    rules = [Rule("mallory", Effect.ALLOW, Resource.TOPIC, "*", action) for action in Action]
    state.take(CopySecurity(version=1, users=(User("mallory"),), rules=tuple(rules)))
    control = AccessControl(lambda: state)
    CHECKS[method.path](control, MALLORY, method.request(name="orders"))
    with pytest.raises(PermissionDeniedError):
        CHECKS[method.path](control, MALLORY, method.request(name=topic))


def test_nobody_changes_its_own_rights_or_another_one_s_password() -> None:
    control = AccessControl(lambda: mallory_state())
    own = methods.PUT_USER.request(user=SecurityUser(name="mallory"))
    CHECKS[methods.PUT_USER.path](control, MALLORY, own)
    for method, request in (
        (methods.PUT_USER, methods.PUT_USER.request(user=SecurityUser(name="alice"))),
        (methods.PUT_USER, methods.PUT_USER.request(user=SecurityUser(name="mallory"), create=True)),
        (methods.CHANGE_RULES, methods.CHANGE_RULES.request()),
        (methods.DELETE_USER, methods.DELETE_USER.request(name="mallory")),
        (methods.SET_USER_SECRET, methods.SET_USER_SECRET.request(name="mallory")),
        (methods.LIST_RULES, methods.LIST_RULES.request(user="alice")),
        (methods.LIST_RULES, methods.LIST_RULES.request()),
        (methods.CHECK_ACCESS, methods.CHECK_ACCESS.request(user="alice")),
    ):
        with pytest.raises(PermissionDeniedError):
            CHECKS[method.path](control, MALLORY, request)


def mallory_state() -> SecurityState:
    state = SecurityState()
    state.take(CopySecurity(version=1, users=(User("mallory"), User("alice")), rules=()))
    return state


@pytest.mark.parametrize("member", [principal.node("c", "g", "n"), principal.name_server("c", "n"), principal.node("c", "-", "s")], ids=str)
def test_a_certificate_of_the_cluster_makes_no_administrator(member: principal.Principal) -> None:
    control = access()
    for resource in Resource:
        may = {action for action in Action if control.may(member, action, resource, "*")}
        assert may == {Action.DESCRIBE}
    with pytest.raises(PermissionDeniedError):
        CHECKS[methods.CHANGE_MEMBER.path](control, member, methods.CHANGE_MEMBER.request())
    with pytest.raises(PermissionDeniedError):
        control.require_somewhere(member, Action.WRITE, Resource.TOPIC)


def test_decisions_on_names_that_are_none_are_not_kept() -> None:
    control = access()
    for number in range(100):
        assert not control.may(MALLORY, Action.READ, Resource.TOPIC, f"{number}" * 1000)
    assert not control._remembered
