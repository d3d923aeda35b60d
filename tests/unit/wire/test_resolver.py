"""Names whose addresses change, names that are not known yet, and a resolver that is slow or fails."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest

from dledger_client.runtime import environment
from dledger_wire.errors import UnreachableError
from dledger_wire.rpc.transport import CallContext
from dledger_wire.tcp import dead_peers, resolver
from dledger_wire.tcp.network import TcpChannel, TcpNetwork
from dledger_wire.tcp.resolver import Addresses, Resolver, system_addresses
from tests.waiting import LIMIT_S, until, wait_until

CALL = "/test.Names/Who"


class Names:
    """What a name server says; while ``silent`` is set it says nothing."""

    def __init__(self, **said: Addresses) -> None:
        self.said: dict[str, Addresses] = said
        self.failing: int | None = None
        self.answering = threading.Event()
        self.answering.set()
        self.asked = 0

    def __call__(self, host: str) -> Addresses:
        self.asked += 1
        assert self.answering.wait(LIMIT_S)
        if self.failing is not None:
            raise socket.gaierror(self.failing, "temporary failure in name resolution")
        if host not in self.said:
            raise socket.gaierror(socket.EAI_NONAME, "name or service not known")
        return self.said[host]


def test_a_name_is_looked_up_anew_each_time_and_an_address_never() -> None:
    names = Names(a=("10.0.0.1",))
    found = Resolver(names)

    async def run() -> None:
        assert await found.addresses("10.9.9.9") == ("10.9.9.9",)
        assert await found.addresses("::1") == ("::1",)
        assert names.asked == 0
        assert await found.addresses("a") == ("10.0.0.1",)
        names.said["a"] = ("10.0.0.2", "10.0.0.3")
        assert await found.addresses("a") == ("10.0.0.2", "10.0.0.3")

    asyncio.run(run())


def test_a_name_that_is_not_known_is_known_as_soon_as_it_is() -> None:
    names = Names()
    found = Resolver(names)

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(socket.gaierror, match="not known"):
                await found.addresses("a")
        names.said["a"] = ("10.0.0.1",)
        assert await found.addresses("a") == ("10.0.0.1",)

    asyncio.run(run())


def test_what_was_said_last_counts_only_while_the_resolver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "LOOKUP_S", 0.01)
    names = Names(a=("10.0.0.1",))
    found = Resolver(names)

    async def run() -> None:
        assert await found.addresses("a") == ("10.0.0.1",)
        names.failing = socket.EAI_AGAIN
        assert await found.addresses("a") == ("10.0.0.1",)
        with pytest.raises(socket.gaierror, match="temporary"):
            await found.addresses("b")
        names.failing = None
        names.answering.clear()
        assert await found.addresses("a") == ("10.0.0.1",)  # the resolver is silent
        assert await found.addresses("a") == ("10.0.0.1",)  # and is still asked the first time
        assert names.asked == 4
        names.said = {}
        names.answering.set()
        wait_until(lambda: not found._running, "the lookup ended")
        with pytest.raises(socket.gaierror, match="not known"):
            await found.addresses("a")

    asyncio.run(run())


def test_whoever_gives_up_takes_the_answer_from_nobody_else() -> None:
    names = Names(a=("10.0.0.1",))
    names.answering.clear()
    found = Resolver(names)

    async def run() -> None:
        impatient, patient = (asyncio.create_task(found.addresses("a")) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        names.answering.set()
        assert await patient == ("10.0.0.1",)
        assert names.asked == 1

    asyncio.run(run())


def test_a_loop_that_closes_while_the_resolver_is_silent_leaves_no_error(caplog: pytest.LogCaptureFixture) -> None:
    names = Names(a=("10.0.0.1",))
    names.answering.clear()
    found = Resolver(names)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await found.addresses("a")

    asyncio.run(give_up())
    names.answering.set()
    wait_until(lambda: not found._running, "the lookup ended")
    assert asyncio.run(found.addresses("a")) == ("10.0.0.1",)
    assert caplog.text == ""


def test_a_thread_that_must_go_on_is_told_nothing_or_what_was_said_last() -> None:
    names = Names(a=("10.0.0.1",))
    found = Resolver(names)
    assert found.address_at_once("10.9.9.9") == "10.9.9.9"
    assert found.address_at_once("b") is None
    wait_until(lambda: found.address_at_once("a") == "10.0.0.1", "found")
    names.answering.clear()
    assert found.address_at_once("a") == "10.0.0.1"
    assert found.address_at_once("c") is None
    names.answering.set()


def test_a_client_is_made_although_the_resolver_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    names.answering.clear()
    monkeypatch.setattr(environment, "RESOLVER", Resolver(names))
    with socket.socket(socket.AF_INET) as checked:
        checked.bind((environment.own_address("silent.example:10911"), 0))  # an address of this machine
    assert environment.own_address("127.0.0.1:10911") == "127.0.0.1"
    names.answering.set()


def test_the_resolver_of_the_system_is_asked() -> None:
    assert {"127.0.0.1", "::1"} & set(system_addresses("localhost"))
    asyncio.run(Resolver().addresses("localhost"))
    with pytest.raises(socket.gaierror):
        asyncio.run(Resolver().addresses("a" * 64 + ".invalid"))  # a label that IDNA does not take


async def _answering(name: bytes, ip: str, port: int) -> Callable[[], Awaitable[None]]:
    """A server that says its name; how to end it."""
    server = TcpNetwork().serve(f"{ip}:{port}")

    async def who(_request: bytes, _context: CallContext) -> bytes:
        return name

    server.add_unary(CALL, who)
    await server.start()
    return lambda: server.stop(0)


def _channel(names: Names) -> TcpChannel:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    channel = TcpNetwork().connect(f"node.example:{port}")
    channel.resolver = Resolver(names)
    return channel


def test_a_channel_follows_its_name() -> None:
    async def run() -> None:
        names = Names()
        channel = _channel(names)
        port = int(channel._address.rpartition(":")[2])
        with pytest.raises(UnreachableError, match="name or service not known"):
            await channel.call(CALL, b"", timeout_s=LIMIT_S)
        end_first = await _answering(b"first", "127.0.0.1", port)
        end_second = await _answering(b"second", "127.0.0.2", port)
        names.said["node.example"] = ("127.0.0.3", "127.0.0.1")  # nobody listens at the first
        assert await channel.call(CALL, b"", timeout_s=LIMIT_S) == b"first"
        names.said["node.example"] = ("127.0.0.2",)
        assert await channel.call(CALL, b"", timeout_s=LIMIT_S) == b"first"  # the connection is still there
        await end_first()
        await until(lambda: not channel._connections, LIMIT_S)
        assert await channel.call(CALL, b"", timeout_s=LIMIT_S) == b"second"
        await channel.close()
        await end_second()

    asyncio.run(run())


def test_what_we_dial_is_given_up_by_the_kernel_when_the_other_side_is_silent() -> None:
    async def run() -> None:
        names = Names(**{"node.example": ("127.0.0.1",)})
        channel = _channel(names)
        end = await _answering(b"it", "127.0.0.1", int(channel._address.rpartition(":")[2]))
        await channel.call(CALL, b"", timeout_s=LIMIT_S)
        (dialled,) = channel._connections
        assert dialled.transport is not None
        held = dialled.transport.get_extra_info("socket")
        assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == dead_peers.SILENT_S * 1000
        assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < dead_peers.SILENT_S
        await channel.close()
        await end()

    asyncio.run(run())
