"""Our protocol over real sockets, beside what tests/contract asks of every network: calls that share a connection, and forks."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dledger_cli.local.ports import free_ports
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import DeadlineExceededError, MessageTooLargeError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext
from dledger_wire.security.credentials import PasswordCredentials
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tcp import network as tcp_network
from dledger_wire.tcp.mixed_network import MixedNetwork
from dledger_wire.tcp.network import TcpChannel, TcpNetwork
from dledger_wire.tcp.server import TcpServer
from tests.grpc_network import GrpcNetwork

ROOT = Path(__file__).resolve().parents[3]
CALL = "/test.Tcp/Call"


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


def serving(scenario: Callable[[TcpServer, TcpChannel], Awaitable[None]]) -> None:
    async def run() -> None:
        network = TcpNetwork()
        server = network.serve(f"127.0.0.1:{free_ports(1)[0]}")
        server.add_unary(CALL, echo)
        await server.start()
        channel = network.connect(f"127.0.0.1:{server.port}")
        try:
            await asyncio.wait_for(scenario(server, channel), 60)
        finally:
            await channel.close()
            await server.stop(0)

    asyncio.run(run())


def test_calls_of_a_channel_share_one_connection_and_are_answered_in_any_order() -> None:
    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        gates = {name: asyncio.Event() for name in (b"a", b"b", b"c")}
        answered: list[bytes] = []

        async def wait(request: bytes, _context: CallContext) -> bytes:
            await gates[request].wait()
            return request

        async def call(name: bytes) -> None:
            answered.append(await channel.call("/test.Tcp/Wait", name, timeout_s=30))

        server.add_unary("/test.Tcp/Wait", wait)
        calls = {name: asyncio.ensure_future(call(name)) for name in gates}
        for name in (b"c", b"a", b"b"):
            gates[name].set()
            await calls[name]
        assert answered == [b"c", b"a", b"b"]
        assert len(server._connections) == 1

    serving(scenario)


def test_a_small_answer_gets_in_between_the_parts_of_a_large_one() -> None:
    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        async def large(_request: bytes, _context: CallContext) -> bytes:
            return bytes(48 << 20)

        server.add_unary("/test.Tcp/Large", large)
        slow = asyncio.ensure_future(channel.call("/test.Tcp/Large", b"", timeout_s=50))
        quick = 0
        while not slow.done():
            assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
            quick += not slow.done()
        assert len(await slow) == 48 << 20
        assert quick >= 3
        assert len(server._connections) == 1

    serving(scenario)


def test_a_lost_connection_fails_the_calls_in_flight_and_the_next_call_makes_another() -> None:
    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        entered, left = asyncio.Event(), asyncio.Event()

        async def hang(_request: bytes, _context: CallContext) -> bytes:
            entered.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                left.set()
            return b""

        server.add_unary("/test.Tcp/Hang", hang)
        hanging = asyncio.ensure_future(channel.call("/test.Tcp/Hang", b"", timeout_s=50))
        await entered.wait()
        for connection in list(server._connections):
            connection.abort()
        with pytest.raises(UnreachableError):
            await hanging
        await left.wait()
        assert await channel.call(CALL, b"again", timeout_s=30) == b"again"

    serving(scenario)


@pytest.mark.parametrize(
    ("answer", "spoken"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP (its bytes are 48 54 54 50 2f 31 2e 31)"),
        (bytes.fromhex("00000006 00000001 0023"), "another protocol, such as Kafka's (its bytes are 00 00 00 06 00 00 00 01)"),
        (bytes.fromhex("15030100020246"), "TLS (its bytes are 15 03 01 00 02 02 46)"),
        (b"-ERR unknown command\r\n", "another protocol (its bytes are 2d 45 52 52 20 75 6e 6b)"),
    ],
)
@pytest.mark.parametrize("security", [NetworkSecurity(), NetworkSecurity(None, PasswordCredentials("app", password="x" * 16))])
def test_a_port_that_speaks_another_protocol_is_called_that(answer: bytes, spoken: str, security: NetworkSecurity) -> None:
    async def scenario() -> None:
        async def foreign(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            await reader.read()
            writer.close()

        async with await asyncio.start_server(foreign, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            channel = TcpNetwork(security).connect(address)
            with pytest.raises(UnreachableError) as failed:
                await channel.call(CALL, b"x", timeout_s=30)
            assert failed.value.message == (
                f"{address}: no dledger listens there: it speaks {spoken}; expected the port of a node or name server"
            )
            await channel.close()

    asyncio.run(scenario())


def test_a_caller_that_gives_up_cancels_its_handler_and_the_connection_stays() -> None:
    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        left = asyncio.Event()

        async def hang(_request: bytes, _context: CallContext) -> bytes:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                left.set()
            return b""

        server.add_unary("/test.Tcp/Hang", hang)
        with pytest.raises(DeadlineExceededError):
            await channel.call("/test.Tcp/Hang", b"", timeout_s=0.05)
        await left.wait()
        assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
        assert len(server._connections) == 1

    serving(scenario)


def test_a_connection_that_says_nothing_more_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was paused or cut off: connections to it live on for the kernel."""
    monkeypatch.setattr("dledger_wire.tcp.calls.SUSPECT_AFTER_S", 0.0)

    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
        (dead,) = server._connections
        dead.pause_reading()
        with pytest.raises(DeadlineExceededError):
            await channel.call(CALL, b"x", timeout_s=0.05)
        assert await channel.call(CALL, b"y", timeout_s=30) == b"y"

    serving(scenario)


def test_a_connection_without_calls_is_closed_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_network, "CALLS_IDLE_S", 0.05)

    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
        (connection,) = server._connections
        await connection.closed
        assert await channel.call(CALL, b"y", timeout_s=30) == b"y"

    serving(scenario)


def test_closing_ends_a_dial_that_nobody_answers_and_the_calls_that_wait_for_it() -> None:
    """A node that is paused: its kernel takes the connection, and nothing authenticates."""

    async def run() -> None:
        security = NetworkSecurity(credentials=PasswordCredentials("alice", password="wonderland"))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            channel = TcpNetwork(security).connect(f"127.0.0.1:{silent.getsockname()[1]}")
            call = asyncio.create_task(channel.call(CALL, b"x", timeout_s=60))
            await asyncio.sleep(0)
            assert any(task.get_name() == "dial for calls" for task in asyncio.all_tasks())
            await channel.close()
            assert not any(task.get_name() == "dial for calls" for task in asyncio.all_tasks())
            with pytest.raises(UnreachableError, match="channel closed"):
                await call

    asyncio.run(run())


def test_a_request_above_the_limit_of_its_method_is_refused_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: TcpServer, channel: TcpChannel) -> None:
        server.add_unary(methods.METADATA.path, echo)
        with pytest.raises(MessageTooLargeError):
            await channel.call(methods.METADATA.path, bytes(2 << 20), timeout_s=30)
        monkeypatch.setattr(tcp_network, "request_limit", lambda method: 1 << 30)
        with pytest.raises(MessageTooLargeError):
            await channel.call(methods.METADATA.path, bytes(2 << 20), timeout_s=30)
        assert await channel.call(methods.METADATA.path, bytes(1 << 20), timeout_s=30) == bytes(1 << 20)

    serving(scenario)


def test_a_client_process_has_no_grpc() -> None:
    program = (
        "import sys, dledger_client, dledger_client.aio\n"
        "import dledger_cli.app\n"
        "producer = dledger_client.Producer('127.0.0.1:1')\n"
        "producer.close()\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('grpc', 'grpcio')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_connection_ends_when_its_process_closes_it_although_a_forked_child_lives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = LoopThread.shared()
        channel = thread.call(lambda: TcpNetwork().connect(f"127.0.0.1:{listener.getsockname()[1]}"))
        stream = thread.call(lambda: channel.open("/test.Tcp/Stream"))
        accepted, _ = listener.accept()
        thread.run(stream.write(b"x"), 30)
        hold, release = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(release)
            os.read(hold, 1)
            os._exit(0)
        thread.run(channel.close(), 30)
        accepted.settimeout(30)
        try:
            while accepted.recv(4096):
                pass
        except ConnectionResetError:
            pass
        os.close(release)
        assert os.waitpid(child, 0)[1] == 0
        os.close(hold)
        accepted.close()


def test_the_socket_to_grpc_lies_in_the_given_folder_and_a_left_one_is_replaced(tmp_path: Path) -> None:
    async def run(folder: Path) -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        left = folder / f"grpc-{address.rpartition(':')[2]}.sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead"))
        (tmp_path / "dead").rename(left)
        server = MixedNetwork(socket_folder=str(folder)).serve(address)
        server.add_unary(CALL, echo)
        await server.start()
        assert left.is_socket()
        channel = GrpcNetwork().connect(address)
        assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
        await channel.close()
        await server.stop(0)
        assert not left.exists()

    asyncio.run(run(tmp_path))
    far = tmp_path / ("long" * 30)  # deeper than the path of a socket may be
    far.mkdir()
    asyncio.run(run(far))
