"""Nodes, name servers and clients in private networks of their own, which routers forward published ports to and hide the sources from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.placed import NAME_PORT, NODE_PORT, QUORUM_PORT, Placed
from tests.machines.spaces import Spaces

# The same in every private network, as the bridges of containers are.
INSIDE, GATEWAY = "192.168.7.2", "192.168.7.1"
PUBLISHED = {NODE_PORT: 30911, NAME_PORT: 30876, QUORUM_PORT: 31876}
REPLICA_PORT, REPLICA_PUBLISHED = 10912, 30912
# What comes in and what goes out gets the router's address, so that nobody sees where anything came from.
ROUTER = """
table ip nat {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    {forwarded}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    masquerade
  }}
}}
"""


def routed(spaces: Spaces, number: int, name: str, published: dict[int, int]) -> str:
    """A private network with one space behind a router; the router's public address."""
    address = spaces.add(f"r{name}", number)
    spaces.add_behind(name, f"r{name}", INSIDE, GATEWAY)
    # Only from outside: a process cannot reach itself at its published address, as with many routers.
    rules = [f"iifname eth0 tcp dport {outer} dnat to {INSIDE}:{inner}" for inner, outer in published.items()]
    spaces.filter(f"r{name}", ROUTER.format(forwarded="\n    ".join(rules)))
    return address


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Placed]:
    with Spaces(tmp_path / "spaces") as spaces:
        published = PUBLISHED | {REPLICA_PORT: REPLICA_PUBLISHED}
        addresses = [routed(spaces, 21 + number, name, published) for number, name in enumerate("abc")]
        routed(spaces, 99, "client", {})
        names = [
            {
                "id": f"ns{at}",
                "address": f"{address}:{PUBLISHED[NAME_PORT]}",
                "quorum_address": f"{address}:{PUBLISHED[QUORUM_PORT]}",
                "listen": f"0.0.0.0:{NAME_PORT}",
                "quorum_listen": f"0.0.0.0:{QUORUM_PORT}",
            }
            for at, address in enumerate(addresses[:2])
        ]
        nodes = [
            {"id": f"n{at}", "address": f"{address}:{PUBLISHED[NODE_PORT]}", "listen": f"{INSIDE}:{NODE_PORT}"}
            for at, address in enumerate(addresses)
        ]
        nodes[0] |= {"replica_address": f"{addresses[0]}:{REPLICA_PUBLISHED}", "replica_listen": f"0.0.0.0:{REPLICA_PORT}"}
        yield Placed(spaces, tmp_path / "cluster", "client", {"name_servers": names, "groups": [{"name": "g0", "nodes": nodes}]})


@pytest.mark.xdist_group("network")
def test_a_cluster_behind_routers_is_reached_at_published_ports(hidden: Placed) -> None:
    for name in [*hidden.names, *hidden.nodes]:
        hidden.start(name, "abc"[int(name[-1])])
    hidden.check_everything()
