"""Kafka: three combined nodes (broker and controller) in KRaft mode."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from benchmarks.peers.fetched import jars, java
from benchmarks.peers.servers import Processes
from dledger_cli.local.ports import free_ports

VERSION = "3.9.1"
NODES = ("1", "2", "3")
HEAP = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")


def fetch(version: str = VERSION) -> list[Path]:
    return jars(f"kafka-{version}", f"org.apache.kafka:kafka_2.13:{version}")


def settings(node: str, ports: dict[str, tuple[int, int]], data: Path) -> str:
    """One node's file; everything else is Kafka's default."""
    client, controller = ports[node]
    voters = ",".join(f"{other}@127.0.0.1:{port}" for other, (_, port) in ports.items())
    lines = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "auto.create.topics.enable": "false",
        "log.segment.delete.delay.ms": "1000",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def servers(folder: Path, version: str = VERSION) -> Processes:
    """Formats the nodes' storage; they start when the context is entered."""
    path, program = ":".join(map(str, fetch(version))), str(java()[0])
    free = iter(free_ports(2 * len(NODES)))
    ports = {node: (next(free), next(free)) for node in NODES}
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    commands = {}
    for node in NODES:
        file = folder / f"{node}.properties"
        file.write_text(settings(node, ports, folder / f"data-{node}"), encoding="utf-8")
        format_command = [program, "-cp", path, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file)]
        done = subprocess.run(format_command, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Kafka's storage could not be formatted: {done.stderr.decode(errors='replace')[-300:]}")
        commands[node] = [program, *HEAP, "-cp", path, "kafka.Kafka", str(file)]
    return Processes(commands, {node: f"127.0.0.1:{client}" for node, (client, _) in ports.items()}, folder, {})
