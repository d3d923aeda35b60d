"""TLS files of a process: what is refused, and how they are replaced while connections go on."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dledger_wire.errors import AuthenticationFailedError, ConfigError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc.transport import CallContext
from dledger_wire.security.certificates import KeyPair, issue, new_authority
from dledger_wire.security.credentials import PasswordCredentials
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.tls import TlsContexts, TlsSettings
from dledger_wire.tcp.network import TcpNetwork
from tests.contract.secured import NODE, authority

CALL = "/test.Tls/Call"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 10  # each look is later than the time between two looks
        return self.now_s


def files(folder: Path, *, days: int = 10) -> TlsSettings:
    """A new authority and a certificate of it; files that are there are replaced."""
    return certified(folder, new_authority("shop"), days=days)


def certified(folder: Path, made: KeyPair, *, days: int = 10) -> TlsSettings:
    folder.mkdir(exist_ok=True)
    pair = issue(made, NODE, ["127.0.0.1"], days=days)
    for name, data in (("ca.crt", made.certificate), ("n0.crt", pair.certificate), ("n0.key", pair.key)):
        path = folder / (name + ".new")
        path.write_bytes(data)
        path.chmod(0o600)
        path.replace(folder / name)
    return settings(folder)


def settings(folder: Path) -> TlsSettings:
    return TlsSettings(str(folder / "ca.crt"), str(folder / "n0.crt"), str(folder / "n0.key"))


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


def test_certificates_are_replaced_while_connections_go_on(tmp_path: Path) -> None:
    """The authority, too: who comes with a certificate of the old one is refused from then on."""
    server_tls = TlsContexts(files(tmp_path / "server"), Clock())
    shutil.copytree(tmp_path / "server", tmp_path / "old")
    old = NetworkSecurity(TlsContexts(settings(tmp_path / "old")))

    async def run() -> None:
        server = TcpNetwork(NetworkSecurity(server_tls)).serve("127.0.0.1:0")
        server.add_unary(CALL, echo)
        await server.start()
        address = f"127.0.0.1:{server.port}"
        before = TcpNetwork(old).connect(address)
        assert await before.call(CALL, b"1", timeout_s=20) == b"1"
        files(tmp_path / "server")
        after = TcpNetwork(NetworkSecurity(TlsContexts(settings(tmp_path / "server")))).connect(address)
        assert await after.call(CALL, b"2", timeout_s=20) == b"2"
        assert await before.call(CALL, b"3", timeout_s=20) == b"3"
        stranger = TcpNetwork(old).connect(address)
        with pytest.raises(AuthenticationFailedError, match="not trusted"):
            await stranger.call(CALL, b"4", timeout_s=20)
        for channel in (before, after, stranger):
            await channel.close()
        await server.stop(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


def refused_client(folder: Path, reason: str) -> tuple[TlsSettings, TlsSettings]:
    """A server, and a client whose certificate it refuses for that reason."""
    made = new_authority("shop")
    server = certified(folder / "server", made)
    if reason == "certificate expired":
        return server, certified(folder / "client", made, days=0)
    client = files(folder / "client")
    if reason == "certificate required":
        return replace(server, client_auth="required"), TlsSettings(server.ca)
    return server, replace(client, ca=server.ca)


@pytest.mark.parametrize("loop", [new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("password", ["", "secret"])
@pytest.mark.parametrize("reason", ["certificate expired", "unknown ca", "certificate required"])
def test_a_client_whose_certificate_is_refused_is_told_why(
    reason: str, password: str, loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In TLS 1.3 its handshake is over by then, so that the connection is lost only."""
    of_server, of_client = refused_client(tmp_path, reason)
    credentials = PasswordCredentials("billing", password=password) if password else None

    async def run() -> None:
        server = TcpNetwork(NetworkSecurity(TlsContexts(of_server))).serve("127.0.0.1:0")
        server.add_unary(CALL, echo)
        await server.start()
        channel = TcpNetwork(NetworkSecurity(TlsContexts(of_client), credentials)).connect(f"127.0.0.1:{server.port}")
        with pytest.raises(AuthenticationFailedError, match=f"does not accept the certificate of this side: .*{reason}"):
            await channel.call(CALL, b"", timeout_s=20)
        with pytest.raises(AuthenticationFailedError, match=f"does not accept the certificate of this side: .*{reason}"):
            await channel.open(CALL).read()
        await channel.close()
        await server.stop(0)

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    assert "refused: " in caplog.text


def test_files_that_do_not_fit_together_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contexts = TlsContexts(files(tmp_path / "a"), Clock())
    first = contexts.server()
    files(tmp_path / "b")
    shutil.copy(tmp_path / "b" / "n0.key", tmp_path / "a" / "n0.key")
    assert contexts.server() is first
    assert contexts.server() is first
    assert "key values mismatch" in contexts.trouble
    assert caplog.text.count("cannot be used") == 1
    shutil.copy(tmp_path / "b" / "n0.crt", tmp_path / "a" / "n0.crt")
    assert contexts.server() is not first
    assert contexts.trouble == ""


def test_what_is_no_certificate_or_key_is_refused_by_name(tmp_path: Path) -> None:
    good = files(tmp_path)
    with pytest.raises(ConfigError, match="none: expected certificates of authorities: no such file"):
        TlsContexts(TlsSettings("none")).client()
    (tmp_path / "junk").write_bytes(b"junk")
    (tmp_path / "junk").chmod(0o600)
    with pytest.raises(ConfigError, match="junk: expected certificates of authorities"):
        TlsContexts(TlsSettings(str(tmp_path / "junk"))).client()
    with pytest.raises(ConfigError, match="junk: expected a certificate and its key"):
        TlsContexts(TlsSettings(good.ca, good.cert, str(tmp_path / "junk"))).client()
    with pytest.raises(ConfigError, match="a server needs cert and key"):
        TlsContexts(TlsSettings(good.ca)).server()
    Path(good.key).chmod(0o644)
    with pytest.raises(ConfigError, match="a private key can be read by others"):
        TlsContexts(good).client()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    expired = NetworkSecurity(TlsContexts(files(tmp_path, days=0)))

    async def run() -> None:
        server = TcpNetwork(expired).serve("127.0.0.1:0")
        await server.start()
        channel = TcpNetwork(NetworkSecurity(TlsContexts(TlsSettings(expired.tls.settings.ca)))).connect(f"127.0.0.1:{server.port}")  # type: ignore[union-attr]
        with pytest.raises(AuthenticationFailedError, match="expired"):
            await channel.call(CALL, b"", timeout_s=20)
        await channel.close()
        await server.stop(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


def test_expiry_is_told(tmp_path: Path) -> None:
    contexts = TlsContexts(files(tmp_path, days=10), Clock())
    assert contexts.expires_at_ms == 0
    contexts.server()
    left = datetime.fromtimestamp(contexts.expires_at_ms / 1000, UTC) - datetime.now(UTC)
    assert timedelta(days=9, hours=23) < left <= timedelta(days=10)
    files(tmp_path, days=20)
    contexts.server()
    assert datetime.fromtimestamp(contexts.expires_at_ms / 1000, UTC) - datetime.now(UTC) > timedelta(days=19)
    assert authority().certificate
