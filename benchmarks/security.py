"""What TLS and users cost: produce, consume, latency and Spark reads with them against without, by turns; and a storm of handshakes.

    python -m benchmarks.security [--rounds 3] [--messages 300000] [--spark 3] [--storm 1000]

Two clusters of three nodes run side by side, one plain, one with TLS 1.3, certificates of nodes and users with passwords; the other one is
idle while one is measured.  The storm dials connections to the leader, 100 at a time, each of which authenticates and makes a call; the
longest gap between two acknowledged writes meanwhile is that of a producer that sends one message at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from broker.config.security import verifier_text
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client.aio.producer import Producer
from dledger_client.runtime.security import client_security
from dledger_client.types import Message
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc import methods
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue, new_authority
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.scram import password_verifier
from dledger_wire.security.tls import TlsSettings
from dledger_wire.tcp.network import TcpNetwork

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = "private"
AT_ONCE = 100
DRAWN = "benchmarks have no secrets"


def certificates(folder: Path) -> None:
    """An authority, three nodes, one user."""
    folder.mkdir()
    authority = new_authority(CLUSTER)
    (folder / "ca.crt").write_bytes(authority.certificate)
    for owner in [*(principal.node(CLUSTER, "g0", f"n{number}") for number in range(3)), principal.user("admin", CLUSTER)]:
        issue(authority, owner, ["127.0.0.1", "localhost"]).write(str(folder / owner.name))
    with os.fdopen(os.open(folder / "password", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(DRAWN + "\n")


def secured(folder: Path) -> dict[str, Any]:
    """The block ``security`` of the cluster file."""
    users = {"administrators": {"admin": verifier_text(password_verifier("admin", DRAWN))}}
    return {"security": {"folder": str(folder), "tls": {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}, "users": users}}


def credentials(folder: Path) -> dict[str, str]:
    return {"DLEDGER_USER": "admin", "DLEDGER_PASSWORD_FILE": str(folder / "password"), "DLEDGER_TLS_CA": str(folder / "ca.crt")}


def bench(cluster: PrivateCluster, environment: dict[str, str], *command: str) -> dict[str, Any]:
    """The figures of ``dledger bench``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DLEDGER_")}
    line = [str(ROOT / ".venv/bin/dledger"), "bench", *command, "--config", str(cluster.local.file), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=own | environment)
    if done.returncode:
        sys.exit(f"{' '.join(line)}: {done.stderr}")
    return dict(json.loads(done.stdout))


def by_turns(clusters: dict[str, tuple[PrivateCluster, dict[str, str]]], rounds: int, messages: int) -> None:
    ratios: dict[str, list[float]] = {"produce": [], "consume": []}
    for number in range(rounds):
        found: dict[str, dict[str, Any]] = {}
        for name in list(clusters) if number % 2 == 0 else list(reversed(clusters)):
            cluster, environment = clusters[name]
            found[name] = {
                "produce": bench(cluster, environment, "produce", "--messages", str(messages), "--topic", f"b{number}")["messages_per_s"],
                "consume": bench(cluster, environment, "consume", "--messages", str(messages), "--topic", f"b{number}")["messages_per_s"],
                "latency": bench(cluster, environment, "latency", "--messages", "2000"),
            }
        for kind in ratios:
            ratios[kind].append(found["secured"][kind] / found["plain"][kind])
        print(json.dumps({"round": number, **found}), flush=True)
    print(json.dumps({f"median_ratio_{kind}": round(statistics.median(values), 3) for kind, values in ratios.items()}), flush=True)


def spark_reads(clusters: dict[str, tuple[PrivateCluster, dict[str, str]]], rounds: int, work: Path) -> None:
    """Seconds of a read of all columns of topic b0 over the wire; a round of each that is not counted comes first."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from spark_bench import everything, session  # type: ignore[import-not-found]

    names = {"DLEDGER_USER": "user", "DLEDGER_PASSWORD_FILE": "passwordFile", "DLEDGER_TLS_CA": "tls.ca"}
    ratios = []
    with session(work) as spark:
        for number in range(rounds + 1):
            took = {}
            for name in list(clusters) if number % 2 == 0 else list(reversed(clusters)):
                cluster, environment = clusters[name]
                options = {"bootstrap": cluster.bootstrap, "topic": "b0"} | {names[each]: value for each, value in environment.items()}
                begun = time.perf_counter()
                everything(spark.read.format("dledger").options(**options).load())
                took[name] = round(time.perf_counter() - begun, 2)
            if number:
                ratios.append(took["plain"] / took["secured"])
                print(json.dumps({"spark read, s": took}), flush=True)
    print(json.dumps({"median_ratio_spark_read": round(statistics.median(ratios), 3)}), flush=True)


async def writes(cluster: PrivateCluster, security: dict[str, Any], stop: asyncio.Event) -> list[float]:
    """When each of the messages that are sent one at a time was acknowledged."""
    acknowledged = []
    async with Producer(cluster.bootstrap, **security) as producer:
        while not stop.is_set():
            await producer.send(Message("storm", b"x" * 1024))
            acknowledged.append(time.monotonic())
    return acknowledged


async def handshakes(address: str, number: int, security: NetworkSecurity) -> None:
    """``number`` connections, each made, authenticated, used and kept until all are there."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one() -> Any:
        async with turns:
            channel = TcpNetwork(security).connect(address)
            for _ in range(20):
                try:
                    await methods.METADATA.call(channel, broker_pb2.MetadataRequest(), timeout_s=30)
                    return channel
                except DledgerError:
                    continue
            return channel

    channels = await asyncio.gather(*(one() for _ in range(number)))
    await asyncio.gather(*(channel.close() for channel in channels))


async def storm(cluster: PrivateCluster, folder: Path, number: int) -> None:
    ca, cert, key = (str(folder / name) for name in ("ca.crt", "admin.crt", "admin.key"))
    kinds = {
        "scram": client_security("admin", password_file=str(folder / "password"), tls=TlsSettings(ca)),
        "certificate": client_security(tls=TlsSettings(ca, cert, key)),
    }
    leader = await asyncio.to_thread(cluster.leader)
    address, process = cluster.config.node(leader).node.address, psutil.Process(cluster.processes[leader].pid)
    for kind, security in kinds.items():
        stop = asyncio.Event()
        given = {"user": "admin", "password_file": str(folder / "password"), "tls": ca}
        writing = asyncio.create_task(writes(cluster, given, stop))
        await asyncio.sleep(2)
        rss, begun, cpu = process.memory_info().rss, time.monotonic(), sum(process.cpu_times()[:2])
        await handshakes(address, number, security)
        took, most, used = time.monotonic() - begun, process.memory_info().rss, sum(process.cpu_times()[:2]) - cpu
        stop.set()
        times = await writing
        gaps = [later - earlier for earlier, later in pairwise(times)]
        during = [gap for gap, at in zip(gaps, times[1:], strict=False) if begun <= at <= begun + took]
        quiet = [gap for gap, at in zip(gaps, times[1:], strict=False) if at < begun]
        print(
            json.dumps(
                {
                    "storm": kind,
                    "handshakes": number,
                    "s": round(took, 2),
                    "per_s": round(number / took),
                    "leader_cpu_ms_each": round(1000 * used / number, 2),
                    "longest_write_gap_ms": round(1000 * max(during, default=took)),
                    "median_write_gap_ms": round(1000 * statistics.median(during), 2) if during else None,
                    "longest_before_ms": round(1000 * max(quiet)),
                    "rss_mib": [rss >> 20, most >> 20],
                }
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--spark", type=int, default=3, help="rounds of Spark reads")
    parser.add_argument("--storm", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-security-") as made:
        folder = Path(made) / "certs"
        certificates(folder)
        with (
            PrivateCluster(Path(made) / "plain") as plain,
            PrivateCluster(Path(made) / "secured", settings=secured(folder)) as with_security,
        ):
            with_security.start()
            if arguments.rounds:
                plain.start()
                clusters = {"plain": (plain, dict[str, str]()), "secured": (with_security, credentials(folder))}
                by_turns(clusters, arguments.rounds, arguments.messages)
                if arguments.spark:
                    spark_reads(clusters, arguments.spark, Path(made))
            if arguments.storm:
                os.environ.update(credentials(folder))
                subprocess.run(
                    [str(ROOT / ".venv/bin/dledger"), "topic", "create", "storm", "--config", str(with_security.local.file)], check=True
                )
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    runner.run(storm(with_security, folder, arguments.storm))


if __name__ == "__main__":
    main()
