"""``dledger cluster status`` of 30 replica groups: one screen from one name server, also when a group does not answer."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_cli.local.ports import free_ports
from dledger_client.aio import Admin
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.tcp.network import TcpNetwork
from tests.waiting import wait_until

GROUPS = 30
SCREEN_LINES = 50
LIMIT_S = 3.0  # 0.4 s on two busy cores: nobody waits for the group that does not answer


def registrations(addresses: list[str], now_ms: int) -> list[routes_pb2.Registration]:
    """What the nodes of 30 groups tell; the last group has no leader, and only one of its nodes is there."""
    found = []
    for number in range(GROUPS):
        members = [
            routes_pb2.Member(id=f"n{number}-{node}", address=addresses[node], voter=True, host=f"h{node}", rack=f"r{node}")
            for node in range(3)
        ]
        for place, member in enumerate(members):
            leads = place == number % 3 and number != GROUPS - 1
            if number == GROUPS - 1 and place:
                continue
            told = routes_pb2.Registration(
                cluster="large", group=f"g{number:02}", node_id=member.id, address=member.address, host=member.host, rack=member.rack
            )
            told.started_at_ms, told.sequence, told.term = now_ms, 1, 1
            told.role, told.master, told.configuration_index = "leader" if leads else "follower", leads, 1
            told.members.extend(members)
            told.in_sync.extend(member.id for member in members if leads)
            told.topics_version, told.has_topics, told.wanted_voters = 1, leads, 3
            found.append(told)
    return found


@pytest.fixture
def silent() -> Iterator[list[str]]:
    """Addresses where connections are taken and nothing is ever answered."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()


async def register_all(address: str, silent: list[str]) -> bool:
    channel = TcpNetwork().connect(address)
    try:
        for told in registrations(silent, int(time.time() * 1000)):
            reply = await methods.REGISTER.call(channel, told, timeout_s=5)
            assert reply.accepted
    except DledgerError:
        return False
    finally:
        await channel.close()
    return True


async def time_of_directory(bootstrap: str) -> float:
    """What the command waits for; the start of Python takes longer."""
    began = time.monotonic()
    async with Admin(bootstrap) as admin:
        assert len((await admin.directory()).groups) == GROUPS
    return time.monotonic() - began


def test_thirty_groups_fit_one_screen_also_when_one_does_not_answer(tmp_path: Path, silent: list[str]) -> None:
    ports = free_ports(2)
    address = f"127.0.0.1:{ports[0]}"
    lines = [
        "cluster: large",
        "name_service: {expireAfter: 10m}",
        f"name_servers: [{{id: ns0, address: '{address}', quorum_address: '127.0.0.1:{ports[1]}'}}]",
        "groups:",
    ]
    for number in range(GROUPS):
        nodes = ", ".join(f"{{id: n{number}-{node}, address: '10.1.{number}.{node + 1}:10911'}}" for node in range(3))
        lines.append(f"  - {{name: g{number:02}, nodes: [{nodes}]}}")
    config = tmp_path / "cluster.yaml"
    config.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "dledger_cli"]
    server = subprocess.Popen(
        [*command, "nameserver", "--config", str(config), "--id", "ns0", "--data", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: asyncio.run(register_all(address, silent)), "the name server takes no registrations")
        asked = [*command, "cluster", "status", "--bootstrap", f"{silent[0]},{address}"]
        shown = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        screen = (shown.stdout + shown.stderr).splitlines()
        assert len(screen) <= SCREEN_LINES
        assert sum(line.startswith("g") for line in screen) == GROUPS
        assert "warning: replica group g29 has no leader" in screen
        bootstrap = f"{silent[0]},{address}"
        # Who waits for the group does so each time; the machine is not that busy each time.
        wait_until(
            lambda: asyncio.run(time_of_directory(bootstrap)) < LIMIT_S, "nobody waits for the group that does not answer", limit_s=60
        )
        told = json.loads(subprocess.run([*asked, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout)
        assert told["from_name_server"] is True
        assert told["groups"][-1]["missing"] == ["n29-1", "n29-2"]
        assert told["leaders_by_host"] == {"h0": 10, "h1": 10, "h2": 9}
    finally:
        server.kill()
        server.wait()
