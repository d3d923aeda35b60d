"""A stranger at the port of the name servers' quorum: nothing that it sends is unpickled, kept or answered."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.name_servers import PASSWORD_VARIABLE, NameServerConfig
from broker.nameserver import bounded_transport
from broker.nameserver.pysyncobj_quorum import PySyncObjQuorum, quorum_of
from dledger_wire.errors import ConfigError
from tests.waiting import LIMIT_S, until

PASSWORD = "a password of name servers"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Evil:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (str(self._path), "w"))


class Pair:
    """Two name servers."""

    def __init__(self) -> None:
        ports = [free_port(), free_port()]
        self.configs = [
            NameServerConfig(id=f"ns{at}", address=f"127.0.0.1:{9000 + at}", quorum_address=f"127.0.0.1:{port}")
            for at, port in enumerate(ports)
        ]
        self.port = ports[0]
        self.quorums = [PySyncObjQuorum(own, [each for each in self.configs if each is not own], PASSWORD) for own in self.configs]
        self.delivered: list[bytes] = []

    async def start(self) -> None:
        for quorum in self.quorums:
            await quorum.start(self.delivered.append)
        await until(lambda: all(quorum.state().has_majority for quorum in self.quorums), LIMIT_S)

    async def spread(self, news: bytes) -> None:
        """Repeat it, as registrations are, until both have it: PySyncObj may lose a message while it elects a leader."""
        before = len(self.delivered)
        async with asyncio.timeout(LIMIT_S):
            while self.delivered[before:].count(news) < 2:
                self.quorums[1].spread(news)
                await asyncio.sleep(0.2)

    async def stop(self) -> None:
        for quorum in self.quorums:
            await quorum.stop()


def with_pair(check: Callable[[Pair], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        pair = Pair()
        try:
            await pair.start()
            await check(pair)
        finally:
            await pair.stop()

    asyncio.run(run())


def packed(message: object, password: str = "") -> bytes:
    data = zlib.compress(pickle.dumps(message), 3)
    if password:
        from pysyncobj.encryptor import getEncryptor  # after broker.nameserver

        data = getEncryptor(password).encrypt(data)
    return struct.pack("i", len(data)) + data


async def tell(port: int, data: bytes) -> bytes:
    """Send this; what comes back until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_a_pickle_of_a_stranger_is_not_unpickled(tmp_path: Path) -> None:
    left = tmp_path / "left"

    async def check(pair: Pair) -> None:
        assert await tell(pair.port, packed(Evil(left))) == b""
        assert await tell(pair.port, packed(Evil(left), "another password")) == b""
        assert not left.exists()
        await tell(pair.port, packed(Evil(left), PASSWORD)[:-1] + b"\0")
        assert not left.exists()
        # Nor does the password of another name server let it run code here.
        await tell(pair.port, packed(b"r" * 32, PASSWORD) + packed(Evil(left), PASSWORD))
        assert not left.exists()
        assert all(quorum.state().has_majority for quorum in pair.quorums)

    with_pair(check)
    assert not left.exists()  # nor later, when what was under way is done


@pytest.mark.parametrize("password", [None, PASSWORD])
def test_no_configuration_lets_a_pickle_run_code(password: str | None, tmp_path: Path) -> None:
    """Without a password, which loopback alone allows, a local user's pickle is read as plain data."""

    async def check() -> None:
        ports = [free_port(), free_port()]
        own, other = (
            NameServerConfig(id=f"ns{at}", address=f"127.0.0.1:{at + 1}", quorum_address=f"127.0.0.1:{ports[at]}") for at in (0, 1)
        )
        quorum = PySyncObjQuorum(own, [other], password)
        await quorum.start(lambda _data: None)
        try:
            left = tmp_path / "left"
            assert await tell(ports[0], packed(Evil(left), password or "")) == b""  # closed without an answer
            assert not left.exists()
        finally:
            await quorum.stop()

    asyncio.run(check())


def test_what_was_said_before_says_nothing_again() -> None:
    """A stranger that has recorded a connection of two name servers plays both sides of it again."""

    async def check(pair: Pair) -> None:
        hello = packed(b"r" * 32, PASSWORD)
        spread = packed((b"r" * 32, pair.configs[1].quorum), PASSWORD)  # to another key than this connection will have
        answer = await tell(pair.port, hello + spread + spread)
        assert answer  # its own key, encrypted; after that the connection is closed
        assert pair.delivered == []
        await pair.spread(b"news")
        assert set(pair.delivered) == {b"news"}

    with_pair(check)


def test_what_a_stranger_sends_is_not_collected() -> None:
    async def check(pair: Pair) -> None:
        claimed = struct.pack("i", 1 << 30) + b"x" * (bounded_transport.UNKNOWN_BYTES * 4)
        assert await tell(pair.port, claimed) == b""
        assert all(quorum.state().has_majority for quorum in pair.quorums)

    with_pair(check)


def test_strangers_that_say_nothing_do_not_keep_name_servers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_transport, "UNKNOWN_S", 1.0)

    async def check(pair: Pair) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", pair.port) for _ in range(bounded_transport.MAX_UNKNOWN + 20)]
        async with asyncio.timeout(15):
            assert await silent[0][0].read() == b""  # one too many, or too long
            assert await silent[-1][0].read() == b""
        for _reader, writer in silent:
            writer.close()
        await pair.spread(b"still there")

    with_pair(check)


CLUSTER = """
cluster: shop
{security}
name_servers:
  - {{id: ns0, address: 127.0.0.1:19876}}
  - {{id: ns1, address: 127.0.0.1:19877}}
groups:
  - name: g0
    nodes: [{{id: n0, address: 127.0.0.1:20001}}]
"""


def test_a_secured_cluster_has_a_password_among_its_name_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    tls = "security: {tls: {ca: ca.crt, cert: x.crt, key: x.key}}"
    with pytest.raises(ConfigError, match=r"name servers need a secret among each other: set security\.cluster_secret_file"):
        quorum_of(ClusterConfig.parse(CLUSTER.format(security=tls), "c.yaml").name_server("ns0"))
    secret = tmp_path / "secret"
    secret.write_text("s" * 40 + "\n", encoding="utf-8")
    secret.chmod(0o644)
    settings = ClusterConfig.parse(CLUSTER.format(security=f"security: {{cluster_secret_file: {secret}}}"), "c.yaml").name_server("ns0")
    with pytest.raises(ConfigError, match="can be read by others"):
        quorum_of(settings)
    secret.chmod(0o600)
    password = settings.password()
    assert password is not None
    assert "ssss" not in password  # the secret itself is not given to PySyncObj
    assert isinstance(quorum_of(settings), PySyncObjQuorum)
