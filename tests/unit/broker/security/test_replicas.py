"""What replicas call: each under its own name, as long as it is a member."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from broker.security.access import AccessControl
from broker.security.gate import AccessGate
from broker.security.replicas import ReplicaCheck
from dledger_wire._pb import copy_pb2
from dledger_wire.errors import PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, StreamHandler, UnaryHandler
from dledger_wire.security import principal
from dledger_wire.security.principal import Principal
from store.state.security import SecurityState
from tests.byte_streams import TaskwiseStream

N0, N1 = principal.node("c", "g0", "n0"), principal.node("c", "g0", "n1")
UNARY = [methods.FETCH_ENTRY.path, methods.COPY_PLAN.path, methods.COPY_STATE.path]
STREAMS = [methods.RAFT_LINK.path, methods.COPY_LOG.path]
NO_REPLICA = {
    "an administrator": principal.user("root"),
    "a client without credentials": principal.ANONYMOUS,
    "a name server": principal.name_server("c", "n1"),
    "a node of another replica group": principal.node("c", "g1", "n1"),
    "a removed member": principal.node("c", "g0", "n7"),
    "a spare node": principal.node("c", "-", "s1"),
}


@dataclass
class Caller:
    """Implements ``CallContext``."""

    principal: Principal
    peer: str = "127.0.0.1:1"
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Handlers:
    """A server that keeps what is registered."""

    unary: dict[str, UnaryHandler] = field(default_factory=dict)
    streams: dict[str, StreamHandler] = field(default_factory=dict)

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self.unary[method] = handler

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self.streams[method] = handler

    async def start(self) -> None: ...
    async def stop(self, grace_s: float) -> None: ...


class Messages(TaskwiseStream):
    """A stream whose caller sends the same message for ever."""

    async def read(self) -> bytes | None:
        return b"x"

    async def write(self, message: bytes) -> None: ...
    async def close(self) -> None: ...


class Node:
    """The gate of a node n0 of group g0 with the members n0 and n1, and the calls that came through it."""

    def __init__(self) -> None:
        self.members = {"n0", "n1"}
        self.elsewhere: set[str] = set()
        self.denied: list[str] = []
        self.served: list[str] = []
        self.check = ReplicaCheck("g0", lambda name: name in self.members, self._elsewhere)
        state, self.handlers = SecurityState(), Handlers()
        access = AccessControl(lambda: state, ["root"])
        access.denied = lambda who, *_: self.denied.append(str(who))
        gate = AccessGate(self.handlers, access, self.check)
        for path in UNARY:
            gate.add_unary(path, self._answer)
        for path in STREAMS:
            gate.add_stream(path, self._stream)

    async def _elsewhere(self, name: str) -> bool:
        return name in self.elsewhere

    async def _answer(self, _request: bytes, caller: CallContext) -> bytes:
        self.served.append(caller.principal.name)
        return b""

    async def _stream(self, stream: ByteStream, caller: CallContext) -> None:
        self.served.append(caller.principal.name)
        while len(self.served) < 5 and await stream.read() is not None:
            self.served.append(caller.principal.name)
            if len(self.served) == 3:
                self.members.discard(caller.principal.name)

    def call(self, path: str, who: Principal, **metadata: str) -> None:
        caller = Caller(who, metadata={key.replace("_", "-"): value for key, value in metadata.items()})
        if path in STREAMS:
            asyncio.run(self.handlers.streams[path](Messages(), caller))  # type: ignore[arg-type]
        else:
            request = copy_pb2.CopyPlanRequest(cluster="c", group="g0", node_id=who.name).SerializeToString()
            asyncio.run(self.handlers.unary[path](request if path == methods.COPY_PLAN.path else b"", caller))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", UNARY + STREAMS)
@pytest.mark.parametrize("who", NO_REPLICA)
def test_who_is_no_replica_of_the_group_is_refused_by_name_and_told_of(path: str, who: str) -> None:
    node = Node()
    with pytest.raises(PermissionDeniedError, match=str(NO_REPLICA[who])):
        node.call(path, NO_REPLICA[who])
    assert node.served == []
    assert node.denied == [str(NO_REPLICA[who])]


@pytest.mark.parametrize("path", UNARY)
def test_a_member_is_served(path: str) -> None:
    node = Node()
    node.call(path, N1)
    assert node.served == ["n1"]


@pytest.mark.parametrize("who", [N1, principal.node("c", "-", "n1")], ids=str)
def test_a_copy_under_another_name_is_refused(who: Principal) -> None:
    node = Node()
    stolen = copy_pb2.CopyPlanRequest(cluster="c", group="g0", node_id="n0").SerializeToString()
    with pytest.raises(PermissionDeniedError, match="may not speak as node 'n0'"):
        asyncio.run(node.handlers.unary[methods.COPY_PLAN.path](stolen, Caller(who)))  # type: ignore[arg-type]
    assert node.served == []


@pytest.mark.parametrize("path", STREAMS)
def test_a_link_under_another_name_is_refused(path: str) -> None:
    node = Node()
    with pytest.raises(PermissionDeniedError, match="node n1 of replica group g0 of cluster c may not speak as node 'n0'"):
        node.call(path, N1, dledger_node="n0")
    assert (node.served, node.check.refused) == ([], 1)


def test_a_link_ends_with_the_first_message_after_its_node_was_removed() -> None:
    node = Node()
    with pytest.raises(PermissionDeniedError, match="is no member of replica group g0 any more"):
        node.call(methods.RAFT_LINK.path, N1)
    assert node.served == ["n1"] * 3


def test_a_node_that_only_other_members_know_may_link_and_bring_the_newer_configuration() -> None:
    node = Node()
    node.elsewhere = {"n7"}
    node.call(methods.RAFT_LINK.path, principal.node("c", "g0", "n7"))
    assert node.served == ["n7"] * 5
