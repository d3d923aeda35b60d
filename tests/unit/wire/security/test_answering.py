"""Who answers at the address of a replica: nobody but the node that is expected there, whatever else its certificate is good for."""

from __future__ import annotations

import asyncio

import pytest

from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.rpc.transport import CallContext, connect_to
from dledger_wire.security import principal
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.tcp.mixed_network import MixedNetwork
from dledger_wire.tcp.network import TcpNetwork
from tests.contract import secured

METHOD = "/test.Security/Log"
N1 = principal.node(secured.CLUSTER, "g0", "n1")


async def outcome(answering: Principal, expected: Principal) -> str:
    """What the dialler gets from a server with the certificate of ``answering``, and whether a request of it was served."""
    served: list[bytes] = []

    async def serve(request: bytes, _context: CallContext) -> bytes:
        served.append(request)
        return b"served"

    name = f"{answering.kind}-{answering.group or 'none'}-{answering.name}-{answering.cluster}"
    secured.certificate(answering, name)
    secured.certificate(secured.NODE, "n0")
    server = TcpNetwork(NetworkSecurity(secured.tls(name))).serve("127.0.0.1:0")
    server.add_unary(METHOD, serve)
    await server.start()
    channel = connect_to(MixedNetwork(NetworkSecurity(secured.tls("n0"))), f"127.0.0.1:{server.port}", expected)
    try:
        return (await channel.call(METHOD, b"an entry of the log", timeout_s=10)).decode()
    except AuthenticationFailedError as error:
        assert served == []
        return error.message
    finally:
        await channel.close()
        await server.stop(0)


def test_the_expected_node_is_spoken_to() -> None:
    assert asyncio.run(outcome(N1, N1)) == "served"


def test_a_spare_node_that_became_a_member_is_spoken_to() -> None:
    assert asyncio.run(outcome(principal.node(secured.CLUSTER, "-", "n1"), N1)) == "served"


@pytest.mark.parametrize(
    "other",
    [
        principal.node(secured.CLUSTER, "g0", "n2"),
        principal.node(secured.CLUSTER, "g1", "n1"),
        principal.node("another", "g0", "n1"),
        principal.node(secured.CLUSTER, "-", "n2"),
        principal.name_server(secured.CLUSTER, "n1"),
    ],
    ids=lambda other: str(other),
)
def test_another_one_s_certificate_is_refused_by_name(other: Principal) -> None:
    said = asyncio.run(outcome(other, N1))
    assert f"expected {N1}, found the certificate of {other}" in said


def test_the_certificate_of_a_user_serves_nobody() -> None:
    assert "certificate" in asyncio.run(outcome(principal.user("mallory", secured.CLUSTER), N1))
