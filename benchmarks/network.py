"""gRPC and plain TCP carrying the same streams: MB/s by message size, round trips of small messages.  Two processes on loopback.

python -m benchmarks.network [--seconds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time

import uvloop

from dledger_cli.local.ports import free_ports
from dledger_wire.rpc.transport import ByteStream, CallContext, Network
from dledger_wire.tcp.network import TcpNetwork
from tests.grpc_network import GrpcNetwork

NETWORKS: dict[str, type[Network]] = {"grpc": GrpcNetwork, "tcp": TcpNetwork}


async def sink(stream: ByteStream, _context: CallContext) -> None:
    """Answer every 64th message, so that the sender keeps a bounded number in flight."""
    count = 0
    while await stream.read() is not None:
        count += 1
        if count % 64 == 0:
            await stream.write(b"+")


async def answer(request: bytes, _context: CallContext) -> bytes:
    return request


async def echo(stream: ByteStream, _context: CallContext) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(message)


def serve(name: str, address: str, ready: multiprocessing.synchronize.Event) -> None:
    async def run() -> None:
        server = NETWORKS[name]().serve(address)
        server.add_unary("/bench/Call", answer)
        server.add_stream("/bench/Sink", sink)
        server.add_stream("/bench/Echo", echo)
        await server.start()
        ready.set()
        await asyncio.get_running_loop().create_future()

    uvloop.run(run())


async def measure(name: str, address: str, seconds: float) -> None:
    channel = NETWORKS[name]().connect(address)
    for size in (1 << 10, 64 << 10, 256 << 10, 1 << 20):
        stream = channel.open("/bench/Sink")
        message, sent, answered = bytes(size), 0, 0
        started = time.perf_counter()
        cpu = time.process_time()
        while time.perf_counter() - started < seconds:
            await stream.write(message)
            sent += 1
            if sent % 64 == 0 and sent // 64 > answered + 1:
                await stream.read()
                answered += 1
        while answered < sent // 64:
            await stream.read()
            answered += 1
        took = time.perf_counter() - started
        cpu = time.process_time() - cpu
        rates = f"{sent * size / took / 1e6:8.0f} MB/s  {sent / took:9.0f} messages/s  {cpu / sent * 1e6:6.1f} us CPU each"
        print(f"{name:5} {size >> 10:5} KiB  {rates}")
        await stream.close()
    stream, times = channel.open("/bench/Echo"), []
    for _ in range(2000):
        at = time.perf_counter()
        await stream.write(b"x" * 100)
        await stream.read()
        times.append(time.perf_counter() - at)
    times.sort()
    print(f"{name:5} round trip of 100 B: p50 {times[1000] * 1e6:.0f} us, p99 {times[1980] * 1e6:.0f} us")
    times.clear()
    for _ in range(2000):
        at = time.perf_counter()
        await channel.call("/bench/Call", b"x" * 100, timeout_s=10)
        times.append(time.perf_counter() - at)
    times.sort()
    print(f"{name:5} call of 100 B: p50 {times[1000] * 1e6:.0f} us, p99 {times[1980] * 1e6:.0f} us")
    await channel.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2)
    seconds = parser.parse_args().seconds
    context = multiprocessing.get_context("spawn")
    for name in NETWORKS:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        ready = context.Event()
        server = context.Process(target=serve, args=(name, address, ready), daemon=True)
        server.start()
        ready.wait(10)
        uvloop.run(measure(name, address, seconds))
        server.terminate()


if __name__ == "__main__":
    main()
