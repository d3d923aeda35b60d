"""Name servers whose names lead elsewhere after a while, or nowhere yet."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest
from pysyncobj.tcp_connection import CONNECTION_STATE

from broker.config.name_servers import NameServerConfig
from broker.nameserver import bounded_transport
from broker.nameserver.pysyncobj_quorum import PySyncObjQuorum
from dledger_wire.errors import AddressInUseError
from dledger_wire.tcp.resolver import Addresses, Resolver
from tests.unit.nameserver.test_quorum_strangers import free_port
from tests.waiting import LIMIT_S, until

PASSWORD = "a password of name servers"


class Names(dict[str, Addresses]):
    def look_up(self, host: str) -> Addresses:
        if host not in self:
            raise socket.gaierror(socket.EAI_NONAME, "name or service not known")
        return self[host]


def _configs(ports: list[int]) -> list[NameServerConfig]:
    """The second one dials: PySyncObj's members are dialled by those whose address sorts after theirs."""
    listens = ["127.0.0.1", "127.0.0.1"]
    return [
        NameServerConfig(
            id=f"ns{at}", address=f"ns{at}.example:9876", quorum_address=f"ns{at}.example:{port}", quorum_listen=f"{listen}:{port}"
        )
        for at, (port, listen) in enumerate(zip(ports, listens, strict=True))
    ]


def _quorum(configs: list[NameServerConfig], own: NameServerConfig) -> PySyncObjQuorum:
    return PySyncObjQuorum(own, [each for each in configs if each is not own], PASSWORD)


async def _has_majority(*quorums: PySyncObjQuorum) -> None:
    await until(lambda: all(quorum.state().has_majority for quorum in quorums), LIMIT_S)


def test_a_name_server_is_found_once_its_name_is_known_and_where_it_moved_to(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    monkeypatch.setattr(bounded_transport, "RESOLVER", Resolver(names.look_up))
    configs = _configs([free_port(), free_port()])
    port = configs[0].quorum.rpartition(":")[2]

    async def run() -> None:
        first, second = (_quorum(configs, own) for own in configs)
        running = [first, second]
        try:
            for quorum in running:
                await quorum.start(lambda _data: None)
            names["ns0.example"] = ("127.0.0.1",)
            await _has_majority(first, second)
            await first.stop()
            await until(lambda: not second.state().has_majority, LIMIT_S)
            moved = configs[0].changed(quorum_listen=f"127.0.0.2:{port}")
            running[0] = PySyncObjQuorum(moved, [configs[1]], PASSWORD)
            await running[0].start(lambda _data: None)
            names["ns0.example"] = ("127.0.0.2",)
            await _has_majority(*running)
        finally:
            for quorum in running:
                await quorum.stop()

    asyncio.run(run())


def test_a_name_server_that_moved_is_told_apart_from_a_stranger_until_the_others_know(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names({f"ns{at}.example": ("127.0.0.1",) for at in range(2)})
    monkeypatch.setattr(bounded_transport, "RESOLVER", Resolver(names.look_up))
    before = _configs([free_port(), free_port()])
    after = [before[0], _configs([free_port(), free_port()])[1]]

    async def run() -> None:
        first, second = _quorum(before, before[0]), _quorum(after, after[1])
        try:
            for quorum in (first, second):
                await quorum.start(lambda _data: None)
            await until(lambda: bool(caplog.messages), LIMIT_S)
        finally:
            await second.stop()
            await first.stop()

    asyncio.run(run())
    assert set(caplog.messages) == {
        f"the quorum of name servers: one comes as {after[1].quorum}, which the cluster file did not name when this one was started"
    }


def test_an_attempt_at_an_address_where_nobody_answers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue of connections is full answers nothing, as an address that belongs to nobody any more."""
    monkeypatch.setattr(bounded_transport, "CONNECT_S", 0.2)
    names = Names()
    monkeypatch.setattr(bounded_transport, "RESOLVER", Resolver(names.look_up))
    configs = _configs([free_port(), free_port()])
    port = int(configs[0].quorum.rpartition(":")[2])

    async def run() -> None:
        first, second = (_quorum(configs, own) for own in configs)
        with closing(socket.socket()) as silent, closing(socket.socket()) as filling:
            silent.bind(("127.0.0.3", port))
            silent.listen(0)
            filling.connect(("127.0.0.3", port))
            names["ns0.example"] = ("127.0.0.3",)
            try:
                await second.start(lambda _data: None)
                await until(lambda: _is_dialling(second), LIMIT_S)
                await first.start(lambda _data: None)
                names["ns0.example"] = ("127.0.0.1",)
                await _has_majority(first, second)
            finally:
                await second.stop()
                await first.stop()

    asyncio.run(run())


def _is_dialling(quorum: PySyncObjQuorum) -> bool:
    assert quorum._log is not None
    transport = quorum._log._SyncObj__transport
    return any(conn.state == CONNECTION_STATE.CONNECTING for conn in list(transport._connections.values()))


def test_a_name_server_that_cannot_listen_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = _configs([free_port(), free_port()])

    async def listen(at: str) -> None:
        own = configs[0].changed(quorum_listen=at)
        await PySyncObjQuorum(own, configs[1:], PASSWORD).start(lambda _data: None)

    with pytest.raises(AddressInUseError, match=r"^nowhere\.invalid:9876: cannot listen for the other name servers: "):
        asyncio.run(listen("nowhere.invalid:9876"))
    with pytest.raises(
        AddressInUseError, match=r"^192\.0\.2\.1:9876: cannot listen for the other name servers: it is in use, or no address"
    ):
        asyncio.run(listen("192.0.2.1:9876"))
