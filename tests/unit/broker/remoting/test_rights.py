"""What a user may ask at the port for RocketMQ's clients, and how one comes in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from broker.remoting.callers import Callers
from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.leader import CALLER
from broker.remoting.rights import check
from broker.remoting.signature import signature_of
from broker.security.access import AccessControl
from broker.security.admission import ClusterAdmission
from dledger_wire.errors import AuthenticationFailedError, DledgerError, NotReadyError, PermissionDeniedError
from dledger_wire.security.principal import user
from store.commands.security import Action, CopySecurity, Effect, Resource, Rule, User, UserSecret
from store.state.security import SecurityState
from tests.unit.broker.remoting.rig import stranger

ALICE, SECRET = user("alice"), "drawn"
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "anything"}],
    "consumerDataSet": [{"groupName": "readers", "subscriptionDataSet": [{"topic": "orders"}, {"topic": "%RETRY%readers"}]}],
}


def state(version: int = 1, secret: str = SECRET) -> SecurityState:
    """Alice reads the topic orders with the group readers."""
    found = SecurityState()
    rules = [
        Rule("alice", Effect.ALLOW, kind, name, Action.READ) for kind, name in ((Resource.TOPIC, "orders"), (Resource.GROUP, "readers"))
    ]
    users = (User("alice"), User("bare"))
    found.take(CopySecurity(version=version, users=users, rules=tuple(rules), secrets=(UserSecret("alice", secret),)))
    return found


REPLY = dict.fromkeys("acdefghi", "0") | {"b": "shop_REPLY_TOPIC"}
ALLOWED: list[Command] = [
    Command(Request.HEART_BEAT, body=json.dumps(HEARTBEAT).encode()),
    Command(Request.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "readers"}),
    Command(Request.PULL_MESSAGE, {"topic": "%RETRY%readers", "consumerGroup": "readers"}),
    Command(Request.UPDATE_CONSUMER_OFFSET, {"topic": "orders", "consumerGroup": "readers"}),
    Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}),
    Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}),
    Command(Request.LOCK_BATCH_MQ, body=b'{"consumerGroup": "readers"}'),
    Command(Request.GET_BROKER_CLUSTER_INFO),
]
REFUSED: list[Command] = [
    Command(Request.HEART_BEAT, body=json.dumps(HEARTBEAT).replace("orders", "salaries").encode()),
    Command(Request.HEART_BEAT, body=json.dumps(HEARTBEAT).replace("readers", "others").encode()),
    Command(Request.PULL_MESSAGE, {"topic": "salaries", "consumerGroup": "readers"}),
    Command(Request.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "others"}),
    Command(Request.UPDATE_CONSUMER_OFFSET, {"topic": "orders", "consumerGroup": "others"}),
    Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "salaries"}),
    Command(Request.LOCK_BATCH_MQ, body=b'{"consumerGroup": "others"}'),
    Command(Request.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "readers"}),
    Command(Request.GET_ALL_TOPIC_LIST),
    *(Command(code, REPLY) for code in (Request.SEND_REPLY_MESSAGE_V2, Request.PUSH_REPLY_MESSAGE_TO_CLIENT)),
    Command(Request.UPDATE_BROKER_CONFIG),
    Command(Request.WIPE_WRITE_PERM_OF_BROKER),
    Command(31_999),
]


@pytest.mark.parametrize("request_", ALLOWED, ids=lambda each: str(each.code))
def test_what_a_rule_allows_is_allowed(request_: Command) -> None:
    check(AccessControl(state), ALICE, request_)


@pytest.mark.parametrize("request_", REFUSED, ids=lambda each: str(each.code))
def test_what_no_rule_allows_is_refused(request_: Command) -> None:
    with pytest.raises(PermissionDeniedError):
        check(AccessControl(state), ALICE, request_)


class Rig:
    def __init__(self) -> None:
        self.state: SecurityState | None = state()
        self.admission = ClusterAdmission("shop", administrators={}, secret="s" * 40, users_required=True, users=lambda: self.state)
        self.access = AccessControl(lambda: self.state or SecurityState())
        self.callers = Callers(self.admission, self.access, lambda: self.state)

    async def comes_in(self, name: str, secret: str, body: bytes = b"", given: Mapping[str, str] | None = None) -> str:
        """As whom."""
        fields = {"AccessKey": name, "topic": "orders"}
        fields |= {"Signature": signature_of(secret, fields, body)} | dict(given or {})
        await self.callers.admit(Command(Request.GET_ROUTEINFO_BY_TOPIC, fields, body), stranger())
        return CALLER.get().principal.name


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_signed_request_is_its_users(size: int) -> None:
    assert asyncio.run(Rig().comes_in("alice", SECRET, b"x" * size)) == "alice"


@pytest.mark.parametrize(
    ("name", "secret", "given"),
    [
        ("alice", "another", {}),
        ("alice", SECRET, {"added": "later"}),
        ("alice", SECRET, {"Signature": ""}),
        ("bare", "", {}),  # a user without a secret does not sign with the empty one
        ("mallory", SECRET, {}),
        ("dledger://shop/node/g0/n0", "s" * 40, {}),  # no member of the cluster signs
        ("", "", {}),
    ],
)
def test_others_are_refused(name: str, secret: str, given: dict[str, str]) -> None:
    with pytest.raises(AuthenticationFailedError):
        asyncio.run(Rig().comes_in(name, secret, given=given))


def test_nobody_is_refused_for_what_a_node_does_not_know_yet() -> None:
    rig = Rig()
    rig.state = None
    with pytest.raises(NotReadyError):
        asyncio.run(rig.comes_in("alice", SECRET))
    rig.state, rig.admission.is_current = state(), lambda: False
    with pytest.raises(NotReadyError):
        asyncio.run(rig.comes_in("created-lately", SECRET))


def test_a_secret_that_was_replaced_counts_no_more() -> None:
    rig = Rig()
    rig.state = state(version=2, secret="the next")
    assert asyncio.run(rig.comes_in("alice", "the next")) == "alice"
    with pytest.raises(DledgerError):
        asyncio.run(rig.comes_in("alice", SECRET))
