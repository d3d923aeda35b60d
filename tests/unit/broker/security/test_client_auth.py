"""Who comes in with what, for each way of asking clients for certificates, at the port of a node's network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.config.security import verifier_text
from broker.security.setup import process_security
from dledger_wire.errors import DledgerError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc.transport import CallContext
from dledger_wire.security import principal
from dledger_wire.security.credentials import ClusterCredentials, PasswordCredentials
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.scram import password_verifier
from dledger_wire.security.tls import TlsContexts, TlsSettings
from dledger_wire.tcp.network import TcpNetwork
from tests.unit.broker.security.test_process_security import N0, N1, TLS, cluster, made

WHO = "/test.ClientAuth/Who"
SECRET, TYPED = "drawn at random, more or less", "what admin types"
ADMIN = principal.user("admin", "shop")
USERS = {"administrators": {"admin": verifier_text(password_verifier("admin", TYPED))}}


async def who(_request: bytes, context: CallContext) -> bytes:
    return str(context.principal).encode()


def answers(folder: Path, security: dict[str, Any], *callers: NetworkSecurity) -> list[str]:
    """Whom a node with this block takes each caller for; "refused" when it does not take it."""

    async def run() -> list[str]:
        server = TcpNetwork(process_security(cluster(folder, security), N0).network).serve("127.0.0.1:0")
        server.add_unary(WHO, who)
        await server.start()
        found = []
        for caller in callers:
            channel = TcpNetwork(caller).connect(f"127.0.0.1:{server.port}")
            try:
                found.append((await channel.call(WHO, b"", timeout_s=30)).decode())
            except DledgerError:
                found.append("refused")
            await channel.close()
        await server.stop(0)
        return found

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    made(tmp_path, N0, N1, ADMIN)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


@pytest.fixture
def tls(files: Path) -> Callable[..., TlsContexts]:
    def contexts(name: str = "") -> TlsContexts:
        own = (str(files / f"{name}.crt"), str(files / f"{name}.key")) if name else ("", "")
        return TlsContexts(TlsSettings(str(files / "ca.crt"), *own))

    return contexts


NODE = "node n1 of replica group g0 of cluster shop"


@pytest.mark.parametrize(
    ("asked", "certificate", "nodes_certificate", "password", "nodes_secret"),
    [
        ("none", "refused", "refused", "user admin", NODE),
        ("optional", "user admin", NODE, "user admin", NODE),
        ("required", "user admin", NODE, "refused", "refused"),
    ],
)
def test_each_way_of_asking_for_certificates(
    files: Path,
    tls: Callable[..., TlsContexts],
    asked: str,
    certificate: str,
    nodes_certificate: str,
    password: str,
    nodes_secret: str,
) -> None:
    block = {"tls": TLS | {"client_auth": asked}, "users": USERS, "cluster_secret_file": "secret"}
    found = answers(
        files,
        block,
        NetworkSecurity(tls("admin")),
        NetworkSecurity(tls("n1")),
        NetworkSecurity(tls(), PasswordCredentials("admin", password=TYPED)),
        NetworkSecurity(tls(), ClusterCredentials(N1, SECRET)),
        NetworkSecurity(tls()),
        NetworkSecurity(tls(), PasswordCredentials("admin", password="guessed")),
        NetworkSecurity(tls(), ClusterCredentials(N1, "guessed by a stranger")),
        NetworkSecurity(),
    )
    assert found == [certificate, nodes_certificate, password, nodes_secret, *["refused"] * 4]


def test_without_tls_nodes_prove_the_secret(files: Path, tls: Callable[..., TlsContexts]) -> None:
    found = answers(
        files,
        {"cluster_secret_file": "secret"},
        NetworkSecurity(None, ClusterCredentials(N1, SECRET)),
        NetworkSecurity(None, ClusterCredentials(N1, "guessed by a stranger")),
        NetworkSecurity(None, ClusterCredentials(principal.node("other", "g0", "n1"), SECRET)),
        NetworkSecurity(),
        NetworkSecurity(tls("n1")),
    )
    assert found == [NODE, "refused", "refused", "a client without credentials", "refused"]
