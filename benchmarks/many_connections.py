"""Many producers with a connection of their own, one message under way on each: requests a second of a replica group, and their cost.

    python -m benchmarks.many_connections [--connections 1,50,500] [--seconds 10] [--rounds 1] [--before FOLDER]

The producers are bare ones: a session, a stream and a batch of one message that is stamped anew each time, in ``--processes`` processes,
so that they take little from the nodes on the same cores.  Leader and follower: CPU a request; what the leader's allows one core to serve
is its reciprocal.  ``--before``: the folder of an older checkout, whose nodes take turns with those of this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks.processes import spent
from benchmarks.served_cluster import served_cluster
from dledger_client.message import Message
from dledger_client.producer.record_encoder import encode_messages
from dledger_client.runtime.environment import environment_for
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import Sequence64, stamp_sequence
from dledger_wire.checksum import Buffer
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream, Channel

ROOT = Path(__file__).resolve().parent.parent
TOPIC, QUEUES, BODY = "bench", 16, bytes(1024)


class BareProducer:
    """One stream with one request under way."""

    def __init__(self, number: int, took: list[float]) -> None:
        self._queue_id, self._took = number % QUEUES, took
        self._sequence, self._began_s = 0, 0.0
        self.stop = False

    async def open(self, channel: Channel, parts: list[Buffer]) -> None:
        answer = await methods.INIT_PRODUCER.call(channel, broker_pb2.InitProducerRequest(producer_name="bench"), timeout_s=60)
        self._id, self._epoch, self._parts = answer.producer_id, answer.epoch, parts
        self._stream: ByteStream = methods.PRODUCE.open(channel)

    async def run(self) -> None:
        await self._stream.write(self._request())
        await self._stream.receive(self._answered)
        await self._stream.close()

    def _request(self) -> bytes:
        stamp_sequence(self._parts, Sequence64(self._id, self._epoch, self._sequence))
        self._sequence += 1
        self._began_s = time.perf_counter()
        return envelope.encode(broker_pb2.ProduceRequest(request_id=self._sequence), self._parts)

    def _answered(self, data: bytes) -> bool:
        answer = broker_pb2.ProduceResponse.FromString(data)
        if answer.waiting_for:
            return True
        if len(answer.results) != 1 or answer.results[0].HasField("error"):
            raise SystemExit(f"refused: {answer}")
        self._took.append(time.perf_counter() - self._began_s)
        if not self.stop and not self._stream.write_now(self._request()):
            raise SystemExit("a request would have to wait")
        return not self.stop


async def produce(address: str, count: int, seconds: float) -> None:
    """Open ``count`` producers, say so, run for ``seconds`` once told to, and print how long each request took."""
    took: list[float] = []
    environment = environment_for(address)
    channel = environment.network.connect(address)
    ids = environment.unique_ids()
    producers = [BareProducer(number, took) for number in range(count)]
    for number, producer in enumerate(producers):
        message = Message(TOPIC, BODY)
        parts = encode_messages(TOPIC, number % QUEUES, [message], ids.take(1), born_ms=1, born_host=bytes(8))
        await producer.open(channel, parts)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    running = asyncio.gather(*(producer.run() for producer in producers))
    await asyncio.sleep(seconds)
    done = len(took)
    for producer in producers:
        producer.stop = True
    await running
    print(json.dumps([done, sorted(took)[:: max(1, len(took) // 2000)]]), flush=True)


def measured(code: Path, connections: int, processes: int, seconds: float) -> dict[str, object]:
    with served_cluster(code, TOPIC, QUEUES) as cluster:
        pids = {"leader": cluster.leader, "follower": cluster.follower}
        shares = [len(range(number, connections, processes)) for number in range(min(processes, connections))]
        children = [_child(cluster.address, share, seconds) for share in shares]
        before = {name: spent(pid) for name, pid in pids.items()}
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        found = [json.loads(child.communicate()[0]) for child in children]
        after = {name: spent(pid) for name, pid in pids.items()}
    return {"code": code.name, "connections": connections} | figures(
        found, seconds, {name: after[name][0] - before[name][0] for name in pids}
    )


def _child(address: str, share: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.many_connections", "--at", address, "--connections", str(share), "--seconds", str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    if child.stdout is None or child.stdout.readline() != "ready\n":
        raise SystemExit("a process of producers ended early")
    return child


def figures(found: Sequence[tuple[int, list[float]]], seconds: float, cpu_s: dict[str, float]) -> dict[str, object]:
    count, took = sum(done for done, _ in found), sorted(value for _, values in found for value in values)
    micros = {f"{name}_us": round(1e6 * used / count, 1) for name, used in cpu_s.items()}
    latency = {"p50_ms": round(1000 * took[len(took) // 2], 1), "p99_ms": round(1000 * took[len(took) * 99 // 100], 1)}
    return {"requests_s": round(count / seconds), **micros, **latency}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", default="1,50,500")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--before", type=lambda folder: Path(folder).resolve())
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.at:
        uvloop.run(produce(options.at, int(options.connections), options.seconds))
        return
    for _ in range(options.rounds):
        for connections in map(int, options.connections.split(",")):
            for code in (options.before, ROOT) if options.before else (ROOT,):
                print(json.dumps(measured(code, connections, options.processes, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
