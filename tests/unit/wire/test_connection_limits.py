"""What a server gives to callers before it is known who they are, and to those who are slow: numbers, time, memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from dledger_cli.local.ports import free_ports
from dledger_wire.addresses import source_of
from dledger_wire.errors import BusyError, DledgerError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security.credentials import ClusterCredentials
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.tls import TlsContexts
from dledger_wire.tcp.arrivals import Arrivals
from dledger_wire.tcp.mixed_network import MixedNetwork
from dledger_wire.tcp.network import TcpNetwork
from dledger_wire.tcp.server import TcpServer
from tests.contract import secured
from tests.waiting import until

CALL, STREAM, ENDLESS, LINK = "/test.Limits/Call", "/test.Limits/Stream", "/test.Limits/Endless", methods.RAFT_LINK.path
HALF_HELLO = bytes.fromhex("16030100c8010000c40303")
HALF_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM"
Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, new_event_loop]


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


async def lengths(stream: ByteStream, _context: CallContext) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(str(len(message)).encode())


async def endless(stream: ByteStream, _context: CallContext) -> None:
    while True:
        await stream.write(bytes(64 << 10))


def opening(method: str = "") -> bytes:
    packed = json.dumps({"method": method} if method else {"calls": True}).encode()
    return b"DLTP" + struct.pack(">I", len(packed)) + packed


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BI", kind, len(payload)) + payload


class Rig:
    """A server with limits, and strangers at its socket."""

    def __init__(self, limits: Limits, security: NetworkSecurity | None = None, *, mixed: bool = False) -> None:
        given = security or NetworkSecurity()
        self.security = NetworkSecurity(given.tls, given.credentials, given.admission, limits)
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._mixed = mixed

    def run(self, scenario: Callable[[], Awaitable[None]], loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(self._run(scenario))

    async def _run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        network = MixedNetwork(self.security) if self._mixed else TcpNetwork(self.security)
        self.arrivals: Arrivals = network.arrivals
        server = network.serve(self.address)
        if isinstance(server, TcpServer):
            self.server = server
        server.add_unary(CALL, echo)
        server.add_stream(STREAM, lengths)
        server.add_stream(ENDLESS, endless)
        server.add_stream(LINK, lengths)
        await server.start()
        try:
            await asyncio.wait_for(scenario(), 60)
        finally:
            await server.stop(0)
        await until(lambda: len(self.arrivals) == 0)

    async def dial(self, begin: bytes, source: str = "127.0.0.1", tls: TlsContexts | None = None) -> tuple[Reader, Writer]:
        host, port = self.address.split(":")
        context = tls.client() if tls is not None else None
        if context is not None:
            context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0), ssl=context)
        writer.write(begin)
        return reader, writer

    async def well(self, **given: object) -> None:
        channel = TcpNetwork(NetworkSecurity(**given)).connect(self.address)  # type: ignore[arg-type]
        assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
        await channel.close()


async def closed(reader: Reader) -> bytes:
    """What comes until the other side closes."""
    got = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while more := await reader.read(1 << 16):
            got += more
    return got


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_what_counts_as_one_source(address: str, source: str) -> None:
    assert source_of(address) == source


def test_beyond_the_limit_of_a_source_others_and_replica_links_are_served(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Limits(per_source=3, reserve=8))

    async def scenario() -> None:
        channel = TcpNetwork().connect(rig.address)
        streams = [channel.open(STREAM) for _ in range(3)]
        for stream in streams:
            await stream.write(b"abc")
            assert await stream.read() == b"3"
        for _ in range(20):
            with pytest.raises(BusyError, match=r"3 connections from 127.0.0.1: no more are served"):
                await channel.open(STREAM).read()
        with pytest.raises(BusyError):
            await rig.well()
        link = channel.open(LINK)
        await link.write(b"abcd")
        assert await link.read() == b"4"
        reader, writer = await rig.dial(opening(STREAM) + frame(1, b"other"), "127.0.0.2")
        assert await reader.readexactly(6) == frame(1, b"5")
        writer.close()
        await streams[0].close()
        assert await streams[0].read() is None
        await until(lambda: rig.arrivals._of_source["127.0.0.1"] == 3)
        await link.close()
        await until(lambda: rig.arrivals._of_source["127.0.0.1"] == 2)
        await rig.well()
        await channel.close()
        await until(lambda: len(rig.arrivals) == 0)

    with caplog.at_level(logging.WARNING):
        rig.run(scenario)
    assert rig.arrivals.counts["connections"] == 21
    assert [record.message for record in caplog.records] == ["127.0.0.1: refused: 3 connections from 127.0.0.1"]


def test_in_a_full_process_members_are_served_and_users_are_busy() -> None:
    rig = Rig(Limits(connections=2, reserve=8), NetworkSecurity(admission=secured.Users()))
    member, alice = ClusterCredentials(secured.NODE, secured.SECRET), secured.alice()

    async def scenario() -> None:
        held = [await rig.dial(b"", f"127.0.1.{number}") for number in range(2)]
        await until(lambda: len(rig.arrivals) == 2)
        with pytest.raises(BusyError):
            await rig.well(credentials=alice)
        await rig.well(credentials=member)
        for _, writer in held:
            writer.close()
        await until(lambda: len(rig.arrivals) == 0)
        await rig.well(credentials=alice)

    rig.run(scenario)


def test_a_flood_from_one_source_gets_a_quarter_of_the_reserve_and_one_from_many_gives_way() -> None:
    rig = Rig(Limits(connections=10, per_source=10, reserve=8), NetworkSecurity(admission=secured.Users()))
    member = ClusterCredentials(secured.NODE, secured.SECRET)

    async def scenario() -> None:
        one = [await rig.dial(b"", "127.0.0.9") for _ in range(60)]
        await until(lambda: rig.arrivals.counts["connections"] == 48)
        assert len(rig.arrivals) == 12
        await rig.well(credentials=member)
        many = [await rig.dial(b"", f"127.0.2.{number}") for number in range(60)]
        await until(lambda: rig.arrivals.counts["connections"] == 48 + 54)
        assert len(rig.arrivals) == 18
        await rig.well(credentials=member)
        for _, writer in one + many:
            writer.close()

    rig.run(scenario)


def test_of_too_many_who_say_nothing_the_oldest_gives_way() -> None:
    rig = Rig(Limits(unknown=5, chance_s=0.0))

    async def scenario() -> None:
        silent = [await rig.dial(b"") for _ in range(50)]
        await until(lambda: rig.arrivals.counts["unknown"] == 45)
        assert rig.arrivals.unknown == 5
        await rig.well()
        for _, writer in silent:
            writer.close()

    rig.run(scenario)


def test_nobody_gives_way_before_a_chance_to_speak() -> None:
    rig = Rig(Limits(unknown=2, chance_s=3600.0, handshake_s=0.2))

    async def scenario() -> None:
        silent = [await rig.dial(b"") for _ in range(3)]
        await asyncio.gather(*(closed(reader) for reader, _ in silent))
        await rig.well()
        for _, writer in silent:
            writer.close()

    rig.run(scenario)
    assert rig.arrivals.counts["unknown"] == 0
    assert rig.arrivals.counts["slow"] == 3


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("begin", [b"", HALF_HELLO, HALF_HELLO[:1], b"\x16\x03\x01\xff\xff"])
def test_a_handshake_that_is_not_finished_is_closed(begin: bytes, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    secured.certificate(secured.NODE, "n0")
    rig = Rig(Limits(handshake_s=0.3), NetworkSecurity(secured.tls("n0"), admission=secured.Users()))

    async def scenario() -> None:
        slow = [await rig.dial(begin) for _ in range(3)]
        await asyncio.gather(*(closed(reader) for reader, _ in slow))
        assert rig.arrivals.counts["slow"] + rig.arrivals.counts["tls"] == 3
        for _, writer in slow:
            writer.close()

    rig.run(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("begin", [b"", HALF_HELLO, b"\x16\x03\x01\x00\x05" + b"\xff" * 5])
def test_what_a_handshake_took_is_given_back_at_once(begin: bytes, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """256 KiB each, and a node collects old objects so rarely that what waits for it counts as kept."""
    secured.certificate(secured.NODE, "n0")
    rig = Rig(Limits(), NetworkSecurity(secured.tls("n0")))

    def kept() -> int:
        return sum(type(each).__name__ in ("SSLProtocol", "Arrival") for each in gc.get_objects())

    async def scenario() -> None:
        before = kept()
        gc.disable()
        try:
            for _ in range(20):
                _, writer = await rig.dial(begin)
                await until(lambda: len(rig.arrivals) == 1 or rig.arrivals.counts["tls"] > 0)
                writer.close()
            await until(lambda: kept() <= before)
        finally:
            gc.enable()

    gc.collect()
    rig.run(scenario, loop)


@pytest.mark.parametrize("begin", [b"", opening()[:9], HALF_PREFACE, HALF_PREFACE + b"\r\n\r\n", opening()[:6]])
def test_behind_tls_and_at_grpc_the_time_is_the_same_one(begin: bytes) -> None:
    secured.certificate(secured.NODE, "n0")
    rig = Rig(Limits(handshake_s=0.5), NetworkSecurity(secured.tls("n0"), admission=secured.Users()), mixed=True)

    async def scenario() -> None:
        slow = [await rig.dial(begin, tls=secured.tls()) for _ in range(3)]
        await asyncio.gather(*(closed(reader) for reader, _ in slow))
        assert rig.arrivals.counts["slow"] == 3
        for _, writer in slow:
            writer.close()

    rig.run(scenario)


def test_a_byte_now_and_then_does_not_keep_a_message_alive() -> None:
    rig = Rig(Limits(stalled_s=0.2))
    begun = [
        opening(STREAM) + frame(1, b"whole") + frame(1, bytes(1000))[:20],
        opening(STREAM) + struct.pack(">BI", 1, 60 << 20) + bytes(200 << 10),
        opening() + frame(4, struct.pack(">IIB", 1, 1 << 20, len(CALL)) + CALL.encode() + bytes(1000)),
    ]

    async def drip(writer: Writer) -> None:
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"\0")
                await writer.drain()
                await asyncio.sleep(0.01)

    async def scenario() -> None:
        channel = TcpNetwork().connect(rig.address)
        idle = channel.open(STREAM)
        await idle.write(b"12")
        assert await idle.read() == b"2"
        slow = [await rig.dial(begin) for begin in begun]
        dripping = [asyncio.create_task(drip(writer)) for _, writer in slow[:2]]
        await asyncio.gather(*(closed(reader) for reader, _ in slow))
        for task in dripping:
            task.cancel()
        await idle.write(b"123")  # between messages a caller may take its time
        assert await idle.read() == b"3"
        await channel.close()
        for _, writer in slow:
            writer.close()

    rig.run(scenario)
    assert rig.arrivals.counts["stalled"] == 3


def test_a_caller_whom_the_server_lets_wait_is_not_slow() -> None:
    rig = Rig(Limits(stalled_s=0.05))
    go_on = asyncio.Event()

    async def later(stream: ByteStream, _context: CallContext) -> None:
        await go_on.wait()
        await lengths(stream, _context)

    async def scenario() -> None:
        rig.server.add_stream("/test.Limits/Later", later)
        reader, writer = await rig.dial(opening("/test.Limits/Later") + frame(1, bytes(1 << 20)) * 12)
        await until(lambda: any(each._reading_paused for each in rig.server._connections))
        await asyncio.sleep(0.3)  # several looks at the connections
        go_on.set()
        assert await reader.readexactly(12 * 12) == frame(1, b"1048576") * 12
        writer.close()

    rig.run(scenario)


def test_who_does_not_read_is_dropped() -> None:
    rig = Rig(Limits(unread_s=0.2))

    async def scenario() -> None:
        reader, writer = await rig.dial(opening(ENDLESS))
        await until(lambda: rig.arrivals.counts["unread"] == 1)
        await closed(reader)
        writer.close()

    rig.run(scenario)


def test_who_does_not_read_does_not_fill_the_memory() -> None:
    rig = Rig(Limits(unsent=24 << 20))

    async def scenario() -> None:
        unread = [await rig.dial(opening(ENDLESS)) for _ in range(20)]
        # How many have to go depends on what the kernel takes for each; the others are all held back then.
        await until(lambda: rig.arrivals.counts["unread"] > 0 and len(rig.server._held_back) == len(rig.server._connections))
        assert sum(each.unsent for each in rig.server._connections) <= (24 << 20) + 20 * (64 << 10)
        for _, writer in unread:
            writer.close()

    rig.run(scenario)


def test_answers_that_nobody_reads_stop_the_reading_of_requests() -> None:
    rig = Rig(Limits())
    unknown = frame(4, struct.pack(">IIB", 1, 0, 60) + b"/" * 60)

    async def scenario() -> None:
        _, writer = await rig.dial(opening())
        writer.transport.set_write_buffer_limits(high=1)

        async def flood() -> None:
            while True:
                writer.write(unknown * 1000)
                await writer.drain()

        flooding = asyncio.create_task(flood())
        await until(lambda: any(each._reading_paused for each in rig.server._connections))
        await asyncio.sleep(0.2)
        assert max(each.unsent for each in rig.server._connections) < 2 << 20
        flooding.cancel()
        writer.close()
        await rig.well()

    rig.run(scenario)


def test_a_client_of_an_older_tls_is_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    secured.certificate(secured.NODE, "n0")
    rig = Rig(Limits(), NetworkSecurity(secured.tls("n0")))

    async def scenario() -> None:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(secured.folder() / "ca.crt")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        host, port = rig.address.split(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=old)
        await until(lambda: rig.arrivals.counts["tls"] == 1)
        await rig.well(tls=secured.tls())

    with caplog.at_level(logging.WARNING):
        rig.run(scenario)
    (record,) = caplog.records
    assert record.message.endswith("refused: no TLS connection: unsupported protocol; expected TLSv1.3 or newer")
    assert record.exc_info is None


@pytest.mark.parametrize("loop", LOOPS)
def test_on_the_way_to_tls_a_port_takes_both_and_afterwards_one(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    secured.certificate(secured.NODE, "n0")

    async def both() -> None:
        server = TcpServer(rig.address, NetworkSecurity(secured.tls("n0"), plaintext=True), TcpNetwork()._memory)
        server.add_unary(CALL, echo)
        await server.start()
        try:
            await rig.well()
            await rig.well(tls=secured.tls())
            await rig.well(tls=secured.tls(), dials_tls=False)
        finally:
            await server.stop(0)

    async def scenario() -> None:
        await rig.well(tls=secured.tls())
        with pytest.raises(DledgerError):
            await rig.well()

    rig = Rig(Limits(), NetworkSecurity(secured.tls("n0")))
    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(both())
    (record,) = [each for each in caplog.records if "a connection without TLS" in each.message]
    assert record.__dict__["event"] == "plaintext_accepted", "it was taken: nobody is to look for a limit"
    rig.run(scenario, loop)
