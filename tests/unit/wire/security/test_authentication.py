"""Who comes in over TCP: passwords, the cluster's secret, certificates, and everybody else who must not."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable

import pytest

from dledger_wire.errors import AuthenticationFailedError, DledgerError, UnreachableError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security import principal
from dledger_wire.security.certificates import new_authority
from dledger_wire.security.credentials import ClusterCredentials, PasswordCredentials
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.scram import Decoys, Verifier
from dledger_wire.tcp.connection import AUTHENTICATION, FRAME, PREFACE, REQUEST
from dledger_wire.tcp.network import TcpNetwork
from tests.contract import secured
from tests.contract.secured import NODE, SECRET, Users, alice, tls

WHO = "/test.Security/Who"
STREAM = "/test.Security/Stream"
WAIT = "/test.Security/Wait"
FLOOD = "/test.Security/Flood"


async def who(_request: bytes, context: CallContext) -> bytes:
    return str(context.principal).encode()


async def wait_long(_request: bytes, _context: CallContext) -> bytes:
    await asyncio.sleep(60)
    return b"never"


async def flood(stream: ByteStream, _context: CallContext) -> None:
    while True:
        await stream.write(bytes(1 << 20))


async def who_streams(stream: ByteStream, context: CallContext) -> None:
    await stream.read()
    await stream.write(str(context.principal).encode())


def serving(security: NetworkSecurity, scenario: Callable[[str], Awaitable[None]]) -> None:
    """Run ``scenario`` with the address of a server."""

    async def run() -> None:
        server = TcpNetwork(security).serve("127.0.0.1:0")
        server.add_unary(WHO, who)
        server.add_unary(WAIT, wait_long)
        server.add_stream(STREAM, who_streams)
        server.add_stream(FLOOD, flood)
        await server.start()
        try:
            await asyncio.wait_for(scenario(f"127.0.0.1:{server.port}"), 60)
        finally:
            await server.stop(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


async def asked(address: str, security: NetworkSecurity) -> tuple[str, str]:
    """Who the server takes us for, by a call and by a stream."""
    channel = TcpNetwork(security).connect(address)
    try:
        called = await channel.call(WHO, b"", timeout_s=20)
        stream = channel.open(STREAM)
        await stream.write(b"?")
        streamed = await stream.read()
        assert streamed is not None
        return called.decode(), streamed.decode()
    finally:
        await channel.close()


async def refused(address: str, security: NetworkSecurity, words: str) -> None:
    """Neither calls nor streams are served."""
    channel = TcpNetwork(security).connect(address)
    try:
        with pytest.raises(AuthenticationFailedError, match=words):
            await channel.call(WHO, b"", timeout_s=20)
        with pytest.raises(AuthenticationFailedError, match=words):
            await channel.open(STREAM).read()
    finally:
        await channel.close()


def test_a_user_is_known_by_name_on_every_connection() -> None:
    async def scenario(address: str) -> None:
        assert await asked(address, NetworkSecurity(credentials=alice())) == ("user alice", "user alice")

    serving(NetworkSecurity(admission=Users()), scenario)


def test_a_node_without_tls_proves_that_it_knows_the_secret() -> None:
    async def scenario(address: str) -> None:
        said = "node n0 of replica group g0 of cluster shop"
        assert await asked(address, NetworkSecurity(credentials=ClusterCredentials(NODE, SECRET))) == (said, said)
        await refused(
            address, NetworkSecurity(credentials=ClusterCredentials(NODE, "another secret, long enough")), "wrong name or password"
        )

    serving(NetworkSecurity(admission=Users()), scenario)


def test_wrong_and_missing_credentials_are_refused_and_counted() -> None:
    users = Users()

    async def scenario(address: str) -> None:
        await refused(address, NetworkSecurity(credentials=alice("cheshire")), "alice: wrong name or password")
        await refused(address, NetworkSecurity(), "expected a user or a certificate")
        assert len(users.refusals) == 4
        assert "wonderland" not in str(users.refusals)
        assert await asked(address, NetworkSecurity(credentials=alice())) == ("user alice", "user alice")

    serving(NetworkSecurity(admission=users), scenario)


def test_a_client_with_a_password_refuses_a_cluster_without_users() -> None:
    async def scenario(address: str) -> None:
        await refused(address, NetworkSecurity(credentials=alice()), "is not enabled")

    serving(NetworkSecurity(), scenario)


def test_a_certificate_names_its_owner() -> None:
    secured.certificate(NODE, "n0")
    secured.certificate(secured.ALICE, "alice")

    async def scenario(address: str) -> None:
        assert await asked(address, NetworkSecurity(tls("alice"))) == ("user alice", "user alice")
        said = "node n0 of replica group g0 of cluster shop"
        assert await asked(address, NetworkSecurity(tls("n0"))) == (said, said)

    serving(NetworkSecurity(tls("n0"), admission=Users()), scenario)


class WithoutSecret(Users):
    """Of a cluster without a secret, or one that has another one."""

    def verifier_of(self, name: str) -> Verifier:
        return Decoys(b"key").verifier(name)


def with_secret(name: str = "n0", own: Principal | None = NODE) -> NetworkSecurity:
    return NetworkSecurity(tls(name), ClusterCredentials(NODE, SECRET), certified=own)


def test_a_node_with_a_secret_comes_in_by_certificate_where_the_secret_is_not_known_yet() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        assert await asked(address, with_secret()) == (str(NODE), str(NODE))
        await refused(address, with_secret(own=None), "wrong name or password")  # its certificate names nobody

    serving(NetworkSecurity(tls("n0"), admission=WithoutSecret()), scenario)


def test_a_node_without_the_secret_comes_in_by_certificate_where_others_prove_it() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        assert await asked(address, NetworkSecurity(tls("n0"))) == (str(NODE), str(NODE))
        assert await asked(address, with_secret()) == (str(NODE), str(NODE))

    serving(NetworkSecurity(tls("n0"), admission=Users()), scenario)


@pytest.mark.parametrize(
    ("answering", "words"),
    [(secured.ALICE, "unsuitable certificate purpose"), (principal.node("other", "g0", "n0"), "wrong name or password")],
)
def test_nobody_but_a_member_of_the_own_cluster_is_dialled_without_the_secret(answering: Principal, words: str) -> None:
    secured.certificate(NODE, "n0")
    secured.certificate(answering, name := f"as-{answering.cluster}-{answering.kind}")

    async def scenario(address: str) -> None:
        await refused(address, with_secret(), words)

    serving(NetworkSecurity(tls(name), admission=WithoutSecret()), scenario)


def test_a_certificate_that_proves_nothing_does_not_take_the_place_of_the_secret() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        await refused(address, with_secret(""), "expected a user or a certificate")

    serving(NetworkSecurity(tls("n0"), admission=WithoutSecret()), scenario)


def test_who_answers_in_place_of_the_expected_node_is_refused_with_and_without_the_secret() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        channel = TcpNetwork(with_secret()).connect_to(address, principal.node("shop", "g0", "n1"))
        with pytest.raises(AuthenticationFailedError, match="expected node n1"):
            await channel.call(WHO, b"", timeout_s=20)
        await channel.close()

    serving(NetworkSecurity(tls("n0"), admission=WithoutSecret()), scenario)


def test_a_certificate_of_another_authority_is_refused_by_both_sides() -> None:
    secured.certificate(NODE, "n0")
    other = new_authority("shop")
    secured.certificate(NODE, "impostor", signer=other)
    (secured.folder() / "other.crt").write_bytes(other.certificate)

    async def scenario(address: str) -> None:
        channel = TcpNetwork(NetworkSecurity(tls("impostor"))).connect(address)
        with pytest.raises(DledgerError):  # TLS 1.3 tells the client only after it believes to be in
            await channel.call(WHO, b"", timeout_s=20)
        await channel.close()
        await refused(address, NetworkSecurity(tls("impostor", ca="other")), "its certificate is not trusted")

    serving(NetworkSecurity(tls("n0"), admission=Users()), scenario)


def test_a_server_under_another_name_is_refused_by_the_client() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        port = address.rpartition(":")[2]
        await refused(f"127.0.0.2:{port}", NetworkSecurity(tls("n0")), "not trusted: .*mismatch")

    async def everywhere(_address: str) -> None:
        server = TcpNetwork(NetworkSecurity(tls("n0"))).serve("0.0.0.0:0")
        await server.start()
        try:
            await scenario(f"127.0.0.1:{server.port}")
        finally:
            await server.stop(0)

    serving(NetworkSecurity(tls("n0")), everywhere)


def test_plaintext_at_a_tls_port_is_told_so_and_closed() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        for security in (NetworkSecurity(), NetworkSecurity(None, PasswordCredentials("bob", password="x"))):
            channel = TcpNetwork(security).connect(address)
            with pytest.raises(AuthenticationFailedError, match="speaks TLS; expected the authorities"):
                await channel.call(WHO, b"", timeout_s=20)
            with pytest.raises(AuthenticationFailedError, match="speaks TLS; expected the authorities"):
                await channel.open(WHO).read()
            await channel.close()

    serving(NetworkSecurity(tls("n0")), scenario)


def test_tls_at_a_plaintext_port_fails_in_one_line() -> None:
    secured.certificate(NODE, "n0")

    async def scenario(address: str) -> None:
        channel = TcpNetwork(NetworkSecurity(tls("n0"))).connect(address)
        with pytest.raises(UnreachableError, match=f"{address}: closed in the handshake of TLS"):
            await channel.call(WHO, b"", timeout_s=20)
        await channel.close()

    serving(NetworkSecurity(), scenario)


async def raw(address: str, opening: dict[str, object], *frames: tuple[int, bytes]) -> bytes:
    """Everything that a server answers to these bytes until it closes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    packed = json.dumps(opening).encode()
    writer.write(PREFACE + struct.pack(">I", len(packed)) + packed)
    for kind, payload in frames:
        writer.write(FRAME.pack(kind, len(payload)) + payload)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "auth",
    [
        {},
        [],
        "SCRAM",
        1,
        {"mechanism": "PLAIN", "message": "alice"},
        {"mechanism": "SCRAM-SHA-256"},
        {"mechanism": "SCRAM-SHA-256", "message": 1},
    ],
)
def test_an_unknown_authentication_is_refused(auth: object) -> None:
    async def scenario(address: str) -> None:
        assert b"UNAUTHENTICATED" in await raw(address, {"calls": True, "auth": auth})

    serving(NetworkSecurity(admission=Users()), scenario)


def test_a_call_before_the_exchange_is_over_closes_the_connection() -> None:
    begun = {"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdef"}
    request = struct.pack(">IIB", 1, 0, len(WHO)) + WHO.encode()

    async def scenario(address: str) -> None:
        answered = await raw(address, {"calls": True, "auth": begun}, (REQUEST, request))
        assert b"alice" not in answered.replace(b"n=alice", b"")

    serving(NetworkSecurity(admission=Users()), scenario)


def test_a_large_frame_of_an_unknown_caller_closes_the_connection() -> None:
    begun = {"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdef"}

    async def scenario(address: str) -> None:
        answered = await raw(address, {"calls": True, "auth": begun}, (AUTHENTICATION, bytes(70_000)))
        assert b"v=" not in answered

    serving(NetworkSecurity(admission=Users()), scenario)


def test_an_exchange_that_stops_half_way_is_closed() -> None:
    begun = {"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdef"}

    async def scenario(address: str) -> None:
        answered = await asyncio.wait_for(raw(address, {"calls": True, "auth": begun}), 20)
        assert answered.count(b"r=abcdef") == 1

    serving(NetworkSecurity(admission=Users(), limits=Limits(handshake_s=0.2)), scenario)


def test_anonymous_callers_come_in_where_they_may() -> None:
    async def scenario(address: str) -> None:
        assert (await asked(address, NetworkSecurity()))[0] == "a client without credentials"

    serving(NetworkSecurity(admission=Users(anonymous=True)), scenario)
    assert principal.ANONYMOUS.kind is principal.Kind.ANONYMOUS


def test_a_revoked_users_calls_and_streams_end_and_its_connections_are_closed() -> None:
    users = Users()

    async def scenario(address: str) -> None:
        channel = TcpNetwork(NetworkSecurity(credentials=alice())).connect(address)
        try:
            assert await channel.call(WHO, b"", timeout_s=20) == b"user alice"
            stream = channel.open(STREAM)
            reading = asyncio.ensure_future(stream.read())
            waiting = asyncio.ensure_future(channel.call(WAIT, b"", timeout_s=20))
            while len(users.watched) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            del users.passwords["alice"]
            users.verifiers.clear()
            users.revoke("alice")
            for pending in (reading, waiting):
                with pytest.raises(AuthenticationFailedError, match="user alice was deleted"):
                    await asyncio.wait_for(pending, 2)
            with pytest.raises(AuthenticationFailedError, match="wrong name or password"):
                await channel.call(WHO, b"", timeout_s=20)
            while users.watched:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:
            await channel.close()

    serving(NetworkSecurity(admission=users), scenario)


def test_a_revoked_user_that_reads_nothing_loses_its_connection_all_the_same() -> None:
    users = Users()

    async def scenario(address: str) -> None:
        channel = TcpNetwork(NetworkSecurity(credentials=alice())).connect(address)
        try:
            stream = channel.open(FLOOD)
            assert await stream.read() is not None  # and nothing more, so that the server cannot send what it has
            users.revoke("alice")
            async with asyncio.timeout(20):
                while users.watched:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await channel.close()

    serving(NetworkSecurity(admission=users), scenario)


def test_a_password_that_was_changed_between_the_two_steps_of_an_exchange_is_refused() -> None:
    users = Users()
    credentials = alice()

    async def scenario(address: str) -> None:
        exchange = await credentials.exchange()
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        opening = json.dumps({"calls": True, "auth": {"mechanism": "SCRAM-SHA-256", "message": exchange.first()}}).encode()
        writer.write(PREFACE + struct.pack(">I", len(opening)) + opening)
        kind, length = FRAME.unpack(await reader.readexactly(FRAME.size))
        assert kind == AUTHENTICATION
        final = exchange.answer((await reader.readexactly(length)).decode()).encode()
        users.verifiers.clear()  # the same password with another salt: a proof by the verifier of before counts no more
        writer.write(FRAME.pack(AUTHENTICATION, len(final)) + final)
        assert b"the password was changed meanwhile" in await reader.read()
        assert users.watched == []
        writer.close()

    serving(NetworkSecurity(admission=users), scenario)
