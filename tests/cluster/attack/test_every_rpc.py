"""Every RPC of every service, over both protocols, by callers who must not get anything from it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import METHODS, StreamMethod
from dledger_wire.security import principal
from dledger_wire.security.certificates import new_authority
from tests.cluster.attack import by_hand
from tests.cluster.attack.by_hand import NO_RECEIVER, Identity
from tests.cluster.attack.requests import declared, request_for
from tests.cluster.attack.secured_cluster import CLUSTER, GROUP, MALLORY, PRODUCER, TOPIC, TRENT, Secured

REFUSALS = {"UNAUTHENTICATED", "PERMISSION_DENIED"}
# Any user may ask these; what it may not see is left out of the answer.
LEAVES_OUT = {methods.METADATA.path, methods.LIST_TOPICS.path, methods.LIST_GROUPS.path, methods.ROUTES.path}
REPLICAS = (methods.PACKAGE + "Raft/", methods.PACKAGE + "Copy/")
# What members of the cluster may ask each other, whichever group they are of: nothing of it changes anything or tells of messages.
MEMBERS_MAY = {
    each.path
    for each in (
        methods.NODE_STATUS,
        methods.DESCRIBE_REPLICA_GROUP,
        methods.LIST_QUOTAS,
        methods.TOPIC_TRAFFIC,
        methods.LEADER_HISTORY,
        methods.NODE_DETAILS,
        methods.WAITING_DELAYS,
        methods.DIRECTORY,
        methods.QUEUE_OFFSETS,
        methods.GROUP_OFFSETS,
        methods.DESCRIBE_MEMBERS,
        methods.DEAD_LETTERS,
        methods.DESCRIBE_TRANSACTIONS,
        methods.LIST_USERS,
        methods.LIST_RULES,
        methods.CHECK_ACCESS,
        methods.WATCH_SECURITY,
    )
} | LEAVES_OUT
# What a node of another replica group has no business with either.
NOT_FOR_OTHER_NODES = {
    methods.REGISTER.path,
    methods.TAKE_SPARE.path,
    methods.PUT_USER.path,
    methods.DELETE_USER.path,
    methods.SET_USER_SECRET.path,
    methods.CHANGE_RULES.path,
}


def strangers(secured: Secured) -> dict[str, Identity]:
    """Callers whom no rule could help."""
    return {
        "without credentials": NO_RECEIVER,
        "with a wrong password": Identity(user="alice", password="not this one"),
        "as a user there is not": Identity(user="nobody", password="not this one"),
        "with a node's name and a made-up secret": Identity(user="dledger://private/node/g0/n1", password="secret"),
        "with a node's certificate of another authority": secured.certificate(
            principal.node(CLUSTER, "g0", "n1"), "foreign", new_authority(CLUSTER)
        ),
        "with a node's certificate of another cluster": secured.certificate(principal.node("another", "g0", "n1"), "another-cluster"),
        "with a deleted user's certificate": secured.certificate(principal.user("deleted", CLUSTER), "deleted"),
    }


def by_frames(secured: Secured, address: str, identity: Identity, path: str) -> list[by_hand.Said]:
    method = METHODS[path]
    if isinstance(method, StreamMethod):
        return by_hand.stream(address, secured.ca, identity, path, request_for(path))
    return [by_hand.call(address, secured.ca, identity, path, request_for(path))]


@contextmanager
def grpc_channel(secured: Secured, address: str, identity: Identity) -> Iterator[grpc.Channel]:
    key = chain = None
    if identity.certificate is not None:
        key, chain = (identity.certificate.with_suffix(end).read_bytes() for end in (".key", ".crt"))
    credentials = grpc.ssl_channel_credentials(secured.ca.read_bytes(), key, chain)
    with grpc.secure_channel(address, credentials) as channel:
        yield channel


def by_grpc(channel: grpc.Channel, identity: Identity, path: str) -> tuple[str, bytes]:
    """The status, and what was answered."""
    basic = base64.b64encode(f"{identity.user}:{identity.password}".encode()).decode()
    metadata = [("authorization", f"Basic {basic}")] if identity.user else []
    request = request_for(path)
    try:
        if isinstance(METHODS[path], StreamMethod):
            answers = list(channel.stream_stream(path)(iter([request]), metadata=metadata, timeout=60))
            return "OK", b"".join(answers)
        return "OK", channel.unary_unary(path)(request, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        return str(error.code().name), b""


class Leader:
    """Where the leader is, as last seen."""

    def __init__(self, secured: Secured) -> None:
        self._secured, self.address = secured, secured.address

    def is_asked(self, wrong: Callable[[str], str]) -> str:
        """What is wrong with an answer of the leader.  Asked anew when another one was elected meanwhile: who leads is all that the one
        before says, to anybody who comes in."""
        while found := wrong(self.address):
            before, self.address = self.address, self._secured.address
            if before == self.address:
                return found
        return ""


def state(secured: Secured) -> dict[str, Any]:
    """Everything that an attack must leave as it is."""
    ask = secured.asked
    nodes = secured.cluster.statuses()
    return {
        "topics": ask(methods.LIST_TOPICS),
        "groups": ask(methods.LIST_GROUPS).groups,
        "offsets": ask(methods.GROUP_OFFSETS, methods.GROUP_OFFSETS.request(groups=[GROUP])).groups,
        "users": ask(methods.LIST_USERS).users,
        "quotas": ask(methods.LIST_QUOTAS).rules,
        "rules": ask(methods.LIST_RULES).rules,
        "members": sorted(nodes),
        "peers": [(secured.cluster.data / node / "peers.json").read_text() for node in sorted(nodes)],
    }


def test_the_table_has_every_rpc_that_is_declared() -> None:
    assert declared() == sorted(METHODS)


def test_a_stranger_is_refused_everywhere_and_changes_nothing(secured: Secured) -> None:
    address, before, let_in = secured.address, state(secured), []
    for who, identity in strangers(secured).items():
        for path in declared():
            said = by_frames(secured, address, identity, path)
            codes = {each.code for each in said}
            if not codes <= REFUSALS | {"CLOSED"}:
                let_in.append(f"{path} {who}: {codes} {said}")
    assert let_in == []
    assert state(secured) == before


def test_a_stranger_is_refused_everywhere_by_grpc_too(secured: Secured) -> None:
    address, before, let_in = secured.address, state(secured), []
    for who, identity in strangers(secured).items():
        with grpc_channel(secured, address, identity) as channel:
            # A certificate of another authority ends the handshake of each connection.
            paths = declared() if "another authority" not in who else declared()[:3]
            # Several at a time: a source of many wrong passwords waits for each answer.
            with ThreadPoolExecutor(8) as threads:
                answers = list(threads.map(lambda path, channel=channel, identity=identity: by_grpc(channel, identity, path), paths))
            expected = {"UNAVAILABLE"} if "another authority" in who else {"UNAUTHENTICATED", "PERMISSION_DENIED"}
            let_in += [
                f"{path} {who}: {status} {answer!r}"
                for path, (status, answer) in zip(paths, answers, strict=True)
                if status not in expected
            ]
    assert let_in == []
    assert state(secured) == before


@pytest.mark.parametrize("identity", [MALLORY, TRENT], ids=["without rights", "with rights on something else"])
def test_a_user_gets_nothing_of_others_from_any_rpc(secured: Secured, identity: Identity) -> None:
    leader, before = Leader(secured), state(secured)

    def by_both(path: str, address: str) -> str:
        said = by_frames(secured, address, identity, path)
        if not all(is_refused(path, each.code, each.payload) for each in said):
            return f"{path}: {[(each.code, each.payload) for each in said]}"
        status, answer = by_grpc(channels[address], identity, path)
        return "" if is_refused(path, "" if status == "OK" else status, answer) else f"{path} by gRPC: {status} {answer!r}"

    with ExitStack() as stack:
        addresses = [node.address for _, node in secured.cluster.config.all_nodes()]
        channels = {address: stack.enter_context(grpc_channel(secured, address, identity)) for address in addresses}
        let_in = [leader.is_asked(partial(by_both, path)) for path in declared()]
    assert [each for each in let_in if each] == []
    assert state(secured) == before


def is_refused(path: str, code: str, answer: bytes) -> bool:
    if code:
        return code in REFUSALS
    if path == methods.ROUTES.path:  # names what was asked for, as one that there is not
        return b"victims" in answer and not any(topic.found for topic in routes_in(answer))
    if path in LEAVES_OUT:
        return not any(name.encode() in answer for name in (TOPIC, GROUP, PRODUCER))
    return b"PERMISSION_DENIED" in answer  # streams of several requests refuse each of them


def routes_in(answer: bytes) -> Any:
    """Of an answer by frames (behind its number and length) or by gRPC."""
    data = answer[8:] if answer[:4] == (1).to_bytes(4, "big") else answer
    return methods.ROUTES.response.FromString(data).topics


def test_a_node_of_another_replica_group_is_no_replica_of_this_one(secured: Secured) -> None:
    leader, before, let_in = Leader(secured), state(secured), []
    others = {
        "another group": principal.node(CLUSTER, "g1", "n1"),
        "a spare node": principal.node(CLUSTER, "-", "s1"),
        "a removed member": principal.node(CLUSTER, "g0", "n7"),
        "a name server": principal.name_server(CLUSTER, "n1"),
    }

    def wrong(who: str, identity: Identity, path: str, address: str) -> str:
        said = by_frames(secured, address, identity, path)
        if path.startswith(REPLICAS) or path in NOT_FOR_OTHER_NODES:
            # A spare node is taken in by a node of the group or by one that was a spare node; this one is no spare node.
            takes = path == methods.TAKE_SPARE.path and who in ("a spare node", "a removed member")
            refused = {each.code for each in said} == {"INVALID_ARGUMENT" if takes else "PERMISSION_DENIED"}
        else:
            refused = all(is_refused(path, each.code, each.payload) for each in said)
        return "" if refused else f"{path} {who}: {said}"

    for who, owner in others.items():
        identity = secured.certificate(owner, who.replace(" ", "-"))
        asked = [path for path in declared() if path in NOT_FOR_OTHER_NODES or path not in MEMBERS_MAY]
        let_in += [leader.is_asked(partial(wrong, who, identity, path)) for path in asked]
    assert [each for each in let_in if each] == []
    assert state(secured) == before
    for owner in others.values():
        assert str(owner) in secured.log_text()


def test_plaintext_is_told_of_tls_and_closed(secured: Secured) -> None:
    for address in secured.cluster.config.addresses_of("n0"):
        for path in declared():
            assert [each.code for each in by_hand.stream(address, None, NO_RECEIVER, path, request_for(path))] == ["UNAUTHENTICATED"]
            assert by_hand.call(address, None, Identity(user="alice", password="x"), path, b"").code == "UNAUTHENTICATED"
        with grpc.insecure_channel(address) as channel:
            assert by_grpc(channel, NO_RECEIVER, methods.METADATA.path)[0] == "UNAVAILABLE"
