"""Raw replicated append: three RaftNode processes on loopback with real files, payloads proposed inside the leader's process.

    python -m benchmarks.replicate [--seconds 4] [--data DIR] [--async-flush] [--profile]

Prints one JSON line a case: MB/s (payload bytes committed and applied at the leader), or p50/p99 of single proposals one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CASES = [
    {"name": "256 KiB", "size": 256 << 10, "in_flight": 16},
    {"name": "1 MiB", "size": 1 << 20, "in_flight": 8},
    {"name": "1 KiB x 64", "size": 1 << 10, "in_flight": 64},
    {"name": "1 KiB alone", "size": 1 << 10, "in_flight": 1},
]


class Blob:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)

    def seal(self, _pos: int, _index: int, _term: int) -> Sequence[bytes]:
        return (self.data,)


class Counter:
    applies_now = True

    def __init__(self) -> None:
        self.applied_index = 0

    async def apply(self, entries: Sequence[Any]) -> None:
        self.apply_now(entries)

    def apply_now(self, entries: Sequence[Any]) -> None:
        self.applied_index = entries[-1].index

    def role_changed(self, _event: Any) -> None:
        return None

    async def capture_state(self) -> Any:
        raise NotImplementedError

    async def suspend(self) -> None:
        raise NotImplementedError


async def node_process(options: argparse.Namespace) -> None:
    from dledger.core.types import Membership, NodeId, Role
    from dledger.node import NodeIdentity, RaftNode, RaftSettings
    from dledger.runtime.real_env import real_environment
    from dledger_wire.tcp.mixed_network import MixedNetwork as GrpcNetwork

    peers = {NodeId(f"n{n}"): f"127.0.0.1:{port}" for n, port in enumerate(options.ports)}
    network = GrpcNetwork()
    env = real_environment(f"{options.data}/{options.id}", network)
    identity = NodeIdentity("bench", "g", NodeId(options.id), secrets.token_hex(4), peers[NodeId(options.id)])
    settings = RaftSettings(peers=peers, membership=Membership(tuple(peers)), sync_flush=not options.async_flush)
    node = await RaftNode.open(identity, settings, env, Counter())
    server = network.serve(identity.address)
    node.register(server)
    await server.start()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        case = json.loads(line)
        if case["name"] == "role":
            answer: dict[str, Any] = {"leader": node.role is Role.LEADER and node.is_confirmed_leader, "cpu_s": time.process_time()}
        else:
            answer = await measure(node, case)
        print(json.dumps(answer), flush=True)
    await server.stop(0)
    await node.stop(hand_over=False)


async def measure(node: Any, case: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    end = loop.time() + case["seconds"]
    data = secrets.token_bytes(case["size"])
    times: list[float] = []
    cpu = time.process_time()

    async def one_in_flight() -> None:
        while loop.time() < end:
            started = time.perf_counter()
            await node.propose(Blob(data))
            times.append(time.perf_counter() - started)

    profile = None
    if case.get("profile"):
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
    first, started = node.log.last.index, time.perf_counter()
    await asyncio.gather(*[one_in_flight() for _ in range(case["in_flight"])])
    elapsed = time.perf_counter() - started
    if profile is not None:
        profile.disable()
        profile.dump_stats(f"/tmp/replicate-{case['size']}-{case['in_flight']}.prof")
    times.sort()
    return {
        "case": case["name"],
        "in_flight": case["in_flight"],
        "proposals_per_s": round(len(times) / elapsed),
        "entries_per_s": round((node.log.last.index - first) / elapsed),
        "MB_per_s": round(len(times) * case["size"] / elapsed / 1e6, 1),
        "p50_ms": round(times[len(times) // 2] * 1e3, 3),
        "p99_ms": round(times[len(times) * 99 // 100] * 1e3, 3),
        "leader_cpu": round((time.process_time() - cpu) / elapsed, 2),
        "entries": node.log.last.index - first,
        "MB": len(times) * case["size"] / 1e6,
    }


async def ask(process: asyncio.subprocess.Process, case: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(case).encode() + b"\n")
    answer: dict[str, Any] = json.loads(await process.stdout.readline())
    return answer


async def cpu_seconds(processes: list[asyncio.subprocess.Process]) -> float:
    """CPU used so far by all nodes: on a shared machine a steadier figure than any rate."""
    return sum([float((await ask(process, {"name": "role"}))["cpu_s"]) for process in processes])


async def run(options: argparse.Namespace) -> None:
    from dledger_cli.local.ports import free_ports

    data = options.data or tempfile.mkdtemp(prefix="replicate-", dir=str(ROOT.parent))
    ports = [str(port) for port in free_ports(3)]
    memory = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_TOP_PAD_": str(64 << 20)}
    flags = ["--async-flush"] if options.async_flush else []
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.replicate", "--id", f"n{n}", "--data", data, "--ports", *ports, *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **memory},
        )
        for n in range(3)
    ]
    try:
        leader = None
        while leader is None:
            await asyncio.sleep(0.2)
            for process in processes:
                if (await ask(process, {"name": "role"}))["leader"]:
                    leader = process
        await asyncio.sleep(options.settle)
        for case in CASES:
            if not options.only or case["name"] in options.only:
                before = await cpu_seconds(processes)
                answer = await ask(leader, {**case, "seconds": options.seconds, "profile": options.profile})
                used = await cpu_seconds(processes) - before
                answer["cpu_ms_per_entry"] = round(used * 1e3 / answer.pop("entries"), 2)
                answer["cpu_ms_per_MB"] = round(used * 1e3 / answer.pop("MB"), 2)
                print(json.dumps(answer), flush=True)
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            await asyncio.wait_for(process.wait(), 20)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
        if not options.data:
            shutil.rmtree(data, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--settle", type=float, default=3, help="seconds before the first case: segments are filled ahead")
    parser.add_argument("--data", default="")
    parser.add_argument("--async-flush", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--id", default="")
    parser.add_argument("--ports", nargs="*", default=[])
    options = parser.parse_args()
    if options.id:
        import uvloop

        uvloop.run(node_process(options))
    else:
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
