"""A user's quota of connections to one node: one more is refused with BUSY, and one that ends makes room."""

from __future__ import annotations

import asyncio

import pytest

from broker.security.admission import ClusterAdmission
from dledger_wire.errors import BusyError
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security import principal
from dledger_wire.security.credentials import PasswordCredentials
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.scram import password_verifier
from dledger_wire.tcp.network import TcpNetwork
from store.commands.security import User
from store.state.security import SecurityState
from tests.unit.client.sim_rig import Rig, node_of
from tests.waiting import LIMIT_S

PASSWORD = "correct horse"
STREAM = "/test/Stream"


def admission() -> ClusterAdmission:
    state = SecurityState()
    verifier = password_verifier("alice", PASSWORD)
    state._users["alice"] = User("alice", verifier)
    made = ClusterAdmission("shop", administrators={"root": verifier}, secret=None, users_required=True, users=lambda: state)
    made.most_connections = lambda _user: 2
    return made


async def answered(stream: ByteStream) -> bytes | None:
    await stream.write(b"x")
    return await stream.read()


def test_one_more_is_refused_and_one_that_ends_makes_room() -> None:
    users = admission()
    alice = principal.user("alice")
    first, _ = users.watch(alice, print), users.watch(alice, print)
    with pytest.raises(BusyError, match="user alice has 2 connections to this node, which is its quota"):
        users.watch(alice, print)
    first()
    users.watch(alice, print)
    for other in (principal.user("root"), principal.node("shop", "g0", "n0"), principal.ANONYMOUS):
        for _ in range(5):
            users.watch(other, print)


def test_a_client_is_sent_the_reason() -> None:
    async def echo(stream: ByteStream, _caller: CallContext) -> None:
        while (message := await stream.read()) is not None:
            await stream.write(message)

    async def scenario() -> None:
        server = TcpNetwork(NetworkSecurity(None, None, admission())).serve("127.0.0.1:0")
        server.add_stream(STREAM, echo)
        await server.start()
        channel = TcpNetwork(NetworkSecurity(None, PasswordCredentials("alice", password=PASSWORD))).connect(f"127.0.0.1:{server.port}")
        streams = [channel.open(STREAM) for _ in range(2)]
        for stream in streams:
            assert await answered(stream) == b"x"
        with pytest.raises(BusyError, match="which is its quota"):
            await answered(channel.open(STREAM))
        for stream in streams:
            assert await answered(stream) == b"x", "what is there stays"
        assert server.arrivals.counts["quota"] == 1
        await channel.close()
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_the_replicated_rule_counts_at_every_node() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.set_quota("user", "*", connections=3)
            await admin.set_quota("user", "alice", connections=5)
            await admin.set_quota("user", "bob", produce_bytes=1)
        await asyncio.sleep(1)  # in virtual time: every replica has applied it
        for node_id in rig.cluster.hosts:
            process = node_of(rig, node_id).security._process
            assert process.admission is not None
            assert [process.admission.most_connections(name) for name in ("alice", "carol", "bob")] == [5, 3, None]

    Rig(secured=True).run(scenario)
