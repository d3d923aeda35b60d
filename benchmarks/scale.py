"""Name servers of a large cluster: real processes, with fake nodes that register and fake clients that wait for routes.

    python -m benchmarks.scale [--groups 300] [--nodes 3] [--topics 10000] [--clients 30000] [--servers 3]
    python -m benchmarks.scale --slopes      what one more group, topic, queue and connection costs, by the difference of two runs each

Prints one JSON line a run: time from the registration of a new leader until a client has heard of it, bytes a second that all name servers
receive and send, CPU and anonymous memory of each, at rest and while leaders change.  What is fake runs on the same machine, so that on two
cores the name servers and their load share them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import anonymous_mb
from dledger_cli.local.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
CLIENTS_A_PROCESS = 10_000
TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """One cluster."""

    groups: int
    nodes: int
    topics: int
    queues: int
    groups_of_topic: int
    clients: int
    topics_of_client: int
    servers: int
    rest_s: float
    failovers: int


class Load:
    """A process of ``scale_load``."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, "-m", "benchmarks.scale_load", kind]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the load ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.send(do, **arguments)
        return self.receive()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Servers:
    """The name servers under test."""

    def __init__(self, count: int, folder: Path) -> None:
        ports = free_ports(2 * count)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:count]]
        rows = [
            f"  - {{id: ns{number}, address: '{address}', quorum_address: '127.0.0.1:{ports[count + number]}'}}"
            for number, address in enumerate(self.addresses)
        ]
        config = folder / "cluster.yaml"
        groups = "groups:\n  - name: g0\n    nodes:\n      - {id: n0, address: '127.0.0.1:1'}\n"
        config.write_text("cluster: scale\nname_servers:\n" + "\n".join(rows) + "\n" + groups)
        self.processes = []
        for number in range(count):
            command = [str(ROOT / ".venv/bin/dledger"), "nameserver", "--config", str(config), "--id", f"ns{number}"]
            log = (folder / f"ns{number}.log").open("wb")
            data = ["--data", str(folder / f"ns{number}")]
            self.processes.append(subprocess.Popen([*command, *data], stdout=log, stderr=subprocess.STDOUT))

    def wait_until_up(self, nodes: Load) -> None:
        nodes.call("wait_for", addresses=self.addresses)

    def cpu_s(self) -> list[float]:
        found = []
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            found.append((int(fields[11]) + int(fields[12])) * TICKS_S)
        return found

    def memory_mb(self) -> list[float]:
        return [anonymous_mb(process.pid) for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def measure(run: Run) -> dict[str, Any]:
    loads: list[Load] = []
    with tempfile.TemporaryDirectory(prefix="dledger-scale-") as folder:
        servers = Servers(run.servers, Path(folder))
        try:
            nodes = Load("nodes")
            loads.append(nodes)
            return _measure(run, servers, nodes, loads)
        finally:
            for load in loads:
                load.end()
            servers.end()


def _measure(run: Run, servers: Servers, nodes: Load, loads: list[Load]) -> dict[str, Any]:
    servers.wait_until_up(nodes)
    result: dict[str, Any] = {"groups": run.groups, "nodes": run.groups * run.nodes, "topics": run.topics, "clients": run.clients}
    result["memory_empty_mb"] = servers.memory_mb()
    registered = nodes.call(
        "setup",
        addresses=servers.addresses,
        groups=run.groups,
        nodes=run.nodes,
        topics=run.topics,
        queues=run.queues,
        groups_of_topic=run.groups_of_topic,
    )
    result["all_registered_s"] = round(registered["took_s"], 2)
    result["memory_registered_mb"] = servers.memory_mb()
    clients = []
    for first in range(0, run.clients, CLIENTS_A_PROCESS):
        client = Load("clients")
        clients.append(client)
        loads.append(client)
        count = min(CLIENTS_A_PROCESS, run.clients - first)
        options = {"topics": run.topics, "topics_of_client": run.topics_of_client}
        started = client.call("start", addresses=servers.addresses, first=first, count=count, **options)
        result["clients_started_per_s"] = round(started["ready"] / started["took_s"])
    time.sleep(2)
    result["at_rest"] = _rates(servers, [nodes, *clients], run.rest_s)
    result["memory_mb"] = servers.memory_mb()
    if clients:
        result["failover"] = _failovers(run, servers, nodes, clients)
    return result


def _rates(servers: Servers, loads: list[Load], seconds: float) -> dict[str, Any]:
    """What the name servers do in that time: of all of them together bytes, of each CPU in per cent of a core."""
    before, cpu, began = [load.call("figures") for load in loads], servers.cpu_s(), time.monotonic()
    time.sleep(seconds)
    after, took_s = [load.call("figures") for load in loads], time.monotonic() - began
    used = [round(100 * (new - old) / took_s, 1) for old, new in zip(cpu, servers.cpu_s(), strict=True)]
    return {
        "received_bytes_per_s": round(sum(new["sent"] - old["sent"] for old, new in zip(before, after, strict=True)) / took_s),
        "sent_bytes_per_s": round(sum(new["received"] - old["received"] for old, new in zip(before, after, strict=True)) / took_s),
        "cpu_percent": used,
        "failed": sum(new["failed"] - old["failed"] for old, new in zip(before, after, strict=True)),
    }


def _failovers(run: Run, servers: Servers, nodes: Load, clients: list[Load]) -> dict[str, Any]:
    """Leaders of single groups change, one after the other; then of a third of all groups at once."""
    single: list[float] = []
    cpu, before = servers.cpu_s(), [load.call("figures") for load in clients]
    for number in range(run.failovers):
        single += _changed(servers, nodes, clients, [f"g{number * 7 % run.groups}"])
    cpu_ms = 1000 * sum(new - old for old, new in zip(cpu, servers.cpu_s(), strict=True)) / run.failovers
    sent = sum(new["received"] - old["received"] for old, new in zip(before, [load.call("figures") for load in clients], strict=True))
    many = _changed(servers, nodes, clients, [f"g{number}" for number in range(0, run.groups, 3)])
    return {
        "one_group": _spread(single) | {"clients_each": round(len(single) / run.failovers)},
        "bytes_a_failover": round(sent / run.failovers),
        "servers_cpu_ms_a_failover": round(cpu_ms, 1),
        "third_of_groups": _spread(many) | {"answers": len(many)},
    }


def _changed(servers: Servers, nodes: Load, clients: list[Load], groups: list[str]) -> list[float]:
    """How long each client took to hear of new leaders, in milliseconds."""
    changed = nodes.call("failover", groups=groups, addresses=servers.addresses)
    found: list[float] = []
    count = -1
    while count != len(found):  # until nothing new comes
        count = len(found)
        time.sleep(0.5)
        answers = [load.call("learnt", groups=changed["term"]) for load in clients]
        found = [1000 * (at - changed["at"][name]) for answer in answers for name, times in answer.items() for at in times]
    return found


def _spread(times_ms: list[float]) -> dict[str, Any]:
    times_ms = sorted(times_ms)
    if not times_ms:
        return {}
    places = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: round(times_ms[min(len(times_ms) - 1, int(place * len(times_ms)))], 2) for name, place in places.items()}


def slopes(base: Run) -> None:
    """What one more of each costs a name server: the difference of a small and a large run."""
    from dataclasses import replace

    small = replace(base, groups=30, topics=1000, clients=1000, servers=1, rest_s=6, failovers=6)
    variants = {
        "base": small,
        "groups": replace(small, groups=300),
        "topics": replace(small, topics=10_000),
        "queues": replace(small, queues=small.queues * 16),
        "groups a topic": replace(small, groups_of_topic=16),
        "connections": replace(small, clients=6000),
        "topics a client": replace(small, topics_of_client=16),
    }
    for name, run in variants.items():
        print(json.dumps({"slope": name, **measure(run)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=3, help="of each group")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=8, help="of each topic")
    parser.add_argument("--groups-of-topic", type=int, default=4)
    parser.add_argument("--clients", type=int, default=30_000)
    parser.add_argument("--topics-of-client", type=int, default=2)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--rest-s", type=float, default=20)
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--slopes", action="store_true")
    arguments = vars(parser.parse_args())
    is_slopes = arguments.pop("slopes")
    run = Run(**arguments)
    if is_slopes:
        slopes(run)
    else:
        print(json.dumps(measure(run)), flush=True)


if __name__ == "__main__":
    main()
