"""NATS with JetStream: three servers in a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.peers.fetched import nats_server
from benchmarks.peers.servers import Processes
from dledger_cli.local.ports import free_ports

NODES = ("n1", "n2", "n3")


def version() -> str:
    said = subprocess.run([str(nats_server()), "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().rpartition("v")[2]


def settings(node: str, ports: dict[str, tuple[int, int]], data: Path) -> str:
    client, cluster = ports[node]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for other, (_, port) in ports.items() if other != node)
    return (
        f'server_name: {node}\nlisten: "127.0.0.1:{client}"\n'
        f'jetstream {{ store_dir: "{data}", max_memory_store: 1G, max_file_store: 16G }}\n'
        f'cluster {{ name: peers, listen: "127.0.0.1:{cluster}", routes: [{routes}] }}\n'
    )


def servers(folder: Path) -> Processes:
    free = iter(free_ports(2 * len(NODES)))
    ports = {node: (next(free), next(free)) for node in NODES}
    commands = {}
    for node in NODES:
        file = folder / f"{node}.conf"
        file.write_text(settings(node, ports, folder / f"data-{node}"), encoding="utf-8")
        commands[node] = [str(nats_server()), "-c", str(file)]
    return Processes(commands, {node: f"127.0.0.1:{client}" for node, (client, _) in ports.items()}, folder, {})
