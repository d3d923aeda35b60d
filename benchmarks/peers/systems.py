"""The systems that are compared: how their servers start, what their client runs in, and what an acknowledgement means as configured."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import servers_dledger, servers_kafka, servers_nats
from benchmarks.peers.fetched import environment, java
from benchmarks.peers.servers import Servers
from dledger_wire.version import installed_version

ROOT = Path(__file__).resolve().parents[2]
CONFLUENT_KAFKA = "2.16.1"
NATS_PY = "2.16.0"


@dataclass(frozen=True, slots=True)
class Variant:
    """A system as it is configured for a column of the table."""

    name: str
    durability: str
    synced: bool
    topic_config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class System:
    """``prepare`` fetches what is needed and raises UnavailableError; ``ways``: what the client calls are, by way."""

    name: str
    client: str
    variants: tuple[Variant, ...]
    ways: dict[str, dict[str, str]]
    prepare: Callable[[], tuple[Path, str]]
    servers: Callable[[Path], Servers]


def _dledger() -> tuple[Path, str]:
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    commit = f" ({done.stdout.strip()})" if done.returncode == 0 else ""
    return Path(sys.executable), f"dledger {installed_version()}{commit}, Python {platform.python_version()}"


def _kafka() -> tuple[Path, str]:
    servers_kafka.fetch()
    python = environment("kafka-client", f"confluent-kafka=={CONFLUENT_KAFKA}")
    return python, f"Kafka {servers_kafka.VERSION} (KRaft, Java {java()[1]}, heap 512 MB), confluent-kafka {CONFLUENT_KAFKA}"


def _nats() -> tuple[Path, str]:
    version = servers_nats.version()
    return environment("nats-client", f"nats-py=={NATS_PY}"), f"nats-server {version}, nats-py {NATS_PY}"


DLEDGER = System(
    "dledger",
    "dledger",
    (Variant("dledger", "on disk (synced) of 2 of 3 nodes", synced=True),),
    {
        "produce": {"single": "send_async", "many": "send_many_async of 10 000"},
        "consume": {"single": "messages of scan_chunks", "many": "scan_arrow, the body column"},
    },
    _dledger,
    servers_dledger.servers,
)
KAFKA = System(
    "kafka",
    "kafka",
    (
        Variant("Kafka", "in the page cache (not synced) of all in-sync replicas, 3 of 3; acks=all, idempotent", synced=False),
        Variant(
            "Kafka flush=1",
            "on disk (flush.messages=1) of all in-sync replicas, 3 of 3; acks=all, idempotent",
            synced=True,
            topic_config={"flush.messages": "1"},
        ),
    ),
    {"produce": {"single": "produce", "many": "produce_batch of 10 000"}, "consume": {"single": "consume of 10 000"}},
    _kafka,
    servers_kafka.servers,
)
NATS = System(
    "nats",
    "nats",
    (Variant("NATS", "in the page cache (synced every 2 min) of 2 of 3 nodes", synced=False),),
    {"produce": {"single": "publish_async, 4000 on their way"}, "consume": {"single": "ordered push consumer"}},
    _nats,
    servers_nats.servers,
)
SYSTEMS = {system.name: system for system in (DLEDGER, KAFKA, NATS)}
