"""Stock gRPC clients at a node's port: who they are, and who of them is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dledger_cli.local.ports import free_ports
from dledger_wire.errors import BusyError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tcp.mixed_network import MixedNetwork
from tests.contract import secured
from tests.contract.secured import NODE, Users, tls

WHO = "/test.Security/Who"
STREAM = "/test.Security/Stream"
HEALTH = "/grpc.health.v1.Health/Check"
Metadata = Sequence[tuple[str, str]]


async def who(_request: bytes, context: CallContext) -> bytes:
    return f"{context.principal} at {context.peer.rpartition(':')[0]} with {sorted(context.metadata)}".encode()


async def who_streams(stream: ByteStream, context: CallContext) -> None:
    await stream.write(str(context.principal).encode())
    await stream.read()


def serving(security: NetworkSecurity, scenario: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        server = MixedNetwork(security).serve(f"127.0.0.1:{port}")
        for method in (WHO, HEALTH):
            server.add_unary(method, who)
        server.add_stream(STREAM, who_streams)
        await server.start()
        try:
            await asyncio.wait_for(scenario(f"127.0.0.1:{port}"), 60)
        finally:
            await server.stop(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


def channel(address: str, *, name: str = "", plain: bool = False) -> grpc.aio.Channel:
    if plain:
        return grpc.aio.insecure_channel(address)
    pair = (
        (Path(f"{secured.folder() / name}.key").read_bytes(), Path(f"{secured.folder() / name}.crt").read_bytes()) if name else (None, None)
    )
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials((secured.folder() / "ca.crt").read_bytes(), *pair))


async def asked(address: str, method: str = WHO, *, metadata: Metadata = (), name: str = "", plain: bool = False) -> str:
    async with channel(address, name=name, plain=plain) as opened:
        answer: bytes = await opened.unary_unary(method)(b"", metadata=metadata, timeout=20)
        return answer.decode()


def basic(name: str, password: str) -> Metadata:
    return (("authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()),)


def secured_server() -> NetworkSecurity:
    secured.certificate(NODE, "n0")
    secured.certificate(secured.ALICE, "alice")
    return NetworkSecurity(tls("n0"), admission=Users())


def test_a_password_and_a_certificate_name_the_caller_and_the_password_goes_no_further() -> None:
    async def scenario(address: str) -> None:
        assert await asked(address, metadata=basic("alice", "wonderland")) == "user alice at 127.0.0.1 with ['user-agent']"
        assert (await asked(address, name="alice")).startswith("user alice at 127.0.0.1 ")
        async with channel(address) as opened:
            stream = opened.stream_stream(STREAM)(metadata=basic("alice", "wonderland"))
            assert await stream.read() == b"user alice"

    serving(secured_server(), scenario)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        basic("alice", "cheshire"),
        basic("bob", "wonderland"),
        basic("dledger://shop/node/g0/n0", "wonderland"),
        (("authorization", "Bearer abc"),),
        (("authorization", "Basic !!!"),),
        (("authorization", "Basic YWxpY2U="),),
    ],
)
def test_everybody_else_is_refused_in_calls_and_streams(metadata: Metadata) -> None:
    security = secured_server()

    async def scenario(address: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(address, metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with channel(address) as opened:
            stream = opened.stream_stream(STREAM)(metadata=metadata)
            assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        assert isinstance(security.admission, Users)
        assert len(security.admission.refusals) == 2
        assert security.admission.refusals[0].startswith("127.0.0.1:")

    serving(security, scenario)


def test_a_revoked_users_stream_ends() -> None:
    security = secured_server()

    async def scenario(address: str) -> None:
        async with channel(address) as opened:
            stream = opened.stream_stream(STREAM)(metadata=basic("alice", "wonderland"))
            assert await stream.read() == b"user alice"
            assert isinstance(security.admission, Users)
            security.admission.revoke("alice")
            assert await asyncio.wait_for(stream.code(), 2) is grpc.StatusCode.UNAUTHENTICATED
            assert await stream.details() == "user alice was deleted"
            assert security.admission.watched == []

    serving(security, scenario)


def test_a_stream_beyond_a_users_quota_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Callable[[], object]:
        raise BusyError("user alice has 2 connections to this node, which is its quota")

    monkeypatch.setattr(Users, "watch", full)

    async def scenario(address: str) -> None:
        async with channel(address) as opened:
            stream = opened.stream_stream(STREAM)(metadata=basic("alice", "wonderland"))
            assert await stream.code() is not grpc.StatusCode.OK
            assert await stream.details() == "user alice has 2 connections to this node, which is its quota"

    serving(secured_server(), scenario)


def test_health_is_told_to_everybody() -> None:
    async def scenario(address: str) -> None:
        assert (await asked(address, HEALTH)).startswith("a client without credentials")

    serving(secured_server(), scenario)


def test_plaintext_grpc_at_a_tls_port_is_refused() -> None:
    async def scenario(address: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(address, plain=True)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    serving(secured_server(), scenario)


def test_without_security_a_callers_address_is_known() -> None:
    async def scenario(address: str) -> None:
        assert (await asked(address, plain=True)).startswith("a client without credentials at 127.0.0.1 ")

    serving(NetworkSecurity(), scenario)


def test_of_a_caller_who_is_not_known_little_is_taken() -> None:
    """A request of some length waits until its caller is known, and ends with the connection when it is not."""
    security = secured_server()
    brief = NetworkSecurity(security.tls, admission=security.admission, limits=Limits(handshake_s=0.5))
    large = bytes(1 << 20)

    async def scenario(address: str) -> None:
        async with channel(address) as opened:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await opened.unary_unary(WHO)(large, timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with channel(address) as opened:
            assert b"without credentials" in await opened.unary_unary(HEALTH)(b"", timeout=20)
            assert b"user alice" in await opened.unary_unary(WHO)(b"", metadata=basic("alice", "wonderland"), timeout=20)
            assert b"user alice" in await opened.unary_unary(WHO)(large, metadata=basic("alice", "wonderland"), timeout=20)
            for _ in range(3):
                assert b"without credentials" in await opened.unary_unary(HEALTH)(bytes(40_000), timeout=20)
        async with channel(address) as opened:  # health alone: as much again for each call
            for _ in range(5):
                assert b"without credentials" in await opened.unary_unary(HEALTH)(bytes(40_000), timeout=20)

    serving(brief, scenario)
    assert brief.counts["slow"] == 1
