"""Hosts that let in the documented ports and nothing else, and clients that let in nothing and out to these ports only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import ROOT
from tests.deploy.placed import METRICS_PORT, NAME_PORT, NODE_PORT, QUORUM_PORT, Placed
from tests.machines.spaces import Spaces
from tests.waiting import wait_until

HOSTS = ("a", "b", "c")
# What is not let in or out is counted, so that the test sees whether anything was missed.
COUNTED = """
table inet counted {{
  counter missed {{}}
  chain input {{
    type filter hook input priority -10;
    iif != lo tcp dport != {{ {opened} }} tcp flags & (syn|ack) == syn counter name missed
  }}
  chain output {{
    type filter hook output priority -10;
    oif != lo tcp dport != {{ {dialled} }} tcp flags & (syn|ack) == syn counter name missed drop
  }}
}}
"""
CLOSED = """
table inet closed {
  chain input { type filter hook input priority filter; policy drop; iif lo accept; ct state established,related accept; }
}
"""


def section() -> str:
    """The section of the page on ports."""
    text = (ROOT / "docs" / "reference" / "network.md").read_text(encoding="utf-8")
    return text.partition("## Ports\n")[2].partition("\n## ")[0]


def documented_rules() -> str:
    return section().partition("```nft\n")[2].partition("```")[0]


def documented_ports() -> set[int]:
    """Of nodes, name servers and metrics, by the table."""
    rows = [line.split("|")[1:3] for line in section().splitlines() if line.startswith("| ") and "`" in line]
    return {int(port) for setting, shown in rows if "console" not in setting for port in re.findall(r"\b\d{4,5}$", shown.strip())}


def counted(opened: set[int], dialled: set[int]) -> str:
    opened_text, dialled_text = (", ".join(map(str, sorted(ports))) for ports in (opened, dialled))
    return COUNTED.format(opened=opened_text, dialled=dialled_text)


def missed(spaces: Spaces, name: str) -> int:
    found = re.search(r"packets (\d+)", spaces.run(name, ["nft", "list", "counter", "inet", "counted", "missed"]))
    assert found is not None
    return int(found[1])


@pytest.fixture
def walled(tmp_path: Path) -> Iterator[Placed]:
    with Spaces(tmp_path / "spaces") as spaces:
        ports = documented_ports()
        assert ports == {NODE_PORT, NAME_PORT, QUORUM_PORT, METRICS_PORT}
        assert set(map(int, re.findall(r"\d+", documented_rules().partition("{ ")[2].partition("}")[0]))) == ports
        addresses = {name: spaces.add(name, 11 + number) for number, name in enumerate(HOSTS)}
        for name in HOSTS:
            spaces.lead(f"{name}.hosts", addresses[name])
            spaces.filter(name, documented_rules() + counted(ports, ports))
        spaces.add("client", 99)
        spaces.filter("client", CLOSED + counted({0}, ports - {QUORUM_PORT}))
        settings = {
            "name_servers": [{"id": f"ns{at}", "address": f"{addresses[name]}:{NAME_PORT}"} for at, name in enumerate(HOSTS[:2])],
            "groups": [
                {
                    "name": "g0",
                    "nodes": [
                        {"id": f"n{at}", "address": f"{addresses[name]}:{NODE_PORT}", "metrics": f"0.0.0.0:{METRICS_PORT}"}
                        for at, name in enumerate(HOSTS)
                    ],
                }
            ],
        }
        yield Placed(spaces, tmp_path / "cluster", "client", settings)


@pytest.mark.xdist_group("network")
def test_a_cluster_behind_a_firewall_needs_the_documented_ports_only(walled: Placed) -> None:
    spaces = walled.spaces
    for name in [*walled.names, *walled.nodes]:
        walled.start(name, HOSTS[int(name[-1])])
    walled.check_everything()
    probe = "import sys, urllib.request; print(urllib.request.urlopen(f'http://{sys.argv[1]}/readyz', timeout=60).status)"
    place = next(HOSTS[int(name[-1])] for name in walled.running if name in walled.nodes)
    assert spaces.run("client", ["python3", "-c", probe, f"{place}.hosts:{METRICS_PORT}"]) == "200\n"
    everywhere = (*HOSTS, "client")
    assert {name: missed(spaces, name) for name in everywhere} == dict.fromkeys(everywhere, 0)
    # The wall has no hole: another port that is listened on is not reached.
    listening = "import socket, time; held = socket.create_server(('0.0.0.0', 4711)); print('listening', flush=True); time.sleep(600)"
    log = walled.folder / "other.log"
    spaces.start("a", ["python3", "-c", listening], log=log)
    wait_until(lambda: "listening" in log.read_text(), "another port is listened on")
    spaces.filter("client", CLOSED)
    dial = "import socket; socket.create_connection(('a.hosts', 4711), timeout=0.5)"
    assert spaces.run("client", ["sh", "-c", f'python3 -c "{dial}" 2> /dev/null || echo refused']) == "refused\n"
    assert missed(spaces, "a") > 0
