"""Ports for private clusters: two processes are never given the same, not even while nobody listens on them."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local import ports
from dledger_cli.local.processes import LocalCluster, check_addresses_free
from dledger_wire.errors import AddressInUseError, DledgerError

SPAN = 80
FIRST = random.SystemRandom().randrange(
    ports.FIRST_PORT, ports.LAST_PORT - SPAN
)  # another run of this test takes all ports of its own span
OTHER = f"""
from dledger_cli.local import ports
ports.FIRST_PORT, ports.LAST_PORT = {FIRST}, {FIRST + SPAN}
print(*ports.free_ports(8), flush=True)
input()
"""


def test_another_process_is_given_others_until_this_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FIRST_PORT", FIRST)
    monkeypatch.setattr(ports, "LAST_PORT", FIRST + SPAN)
    command = [sys.executable, "-c", OTHER]
    others = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) for _ in range(2)
    ]
    try:
        given = [set(map(int, other.stdout.readline().split())) for other in others if other.stdout is not None]
        own = set(ports.free_ports(8))
        assert [len(each) for each in (*given, own)] == [8, 8, 8]
        assert given[0] & given[1] == given[0] & own == given[1] & own == set()
        with pytest.raises(DledgerError, match=f"no {SPAN} free ports"):
            ports.free_ports(SPAN)
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_an_address_that_is_none_of_this_machine_is_told_from_one_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(AddressInUseError, match=r"\(n0\) is taken by pid"):
            check_addresses_free("n0", [f"127.0.0.1:{holder.getsockname()[1]}"])
    for address in ("192.0.2.1:10911", "nowhere.invalid:10911"):
        with pytest.raises(AddressInUseError, match=rf"^{address} \(n0\): cannot listen: .*; to listen at .*, set listen of n0$"):
            check_addresses_free("n0", [address])


def test_no_node_is_started_while_the_port_of_another_is_taken(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        addresses = [f"127.0.0.1:{port}" for port in (*ports.free_ports(2), holder.getsockname()[1])]
        nodes = ", ".join(f"{{id: n{number}, address: '{address}'}}" for number, address in enumerate(addresses))
        file = tmp_path / "cluster.yaml"
        file.write_text(f"cluster: c\ngroups: [{{name: g0, nodes: [{nodes}]}}]\n")
        cluster = LocalCluster(ClusterConfig.load(str(file)), tmp_path)
        with pytest.raises(AddressInUseError, match=r"\(n2\) is taken by pid"):
            cluster.start(cluster.all_ids())
        assert cluster.running() == {}
        assert [each.name for each in tmp_path.iterdir()] == ["cluster.yaml"]
