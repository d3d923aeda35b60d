"""Nodes and name servers that come back at other addresses under their names, while a client sends and reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.placed import NAME_PORT, NODE_PORT, Placed
from tests.machines.spaces import Spaces
from tests.waiting import LIMIT_S, wait_until

# As a machine that has lost its power: it answers nothing, not even that a port is closed.
DEAD = """
table inet dead {
  chain input { type filter hook input priority 0; policy drop; }
  chain output { type filter hook output priority 0; policy drop; }
}
"""


class Pods:
    """Which space each process is in, and the names that lead there."""

    def __init__(self, spaces: Spaces, placed: Placed, addresses: dict[str, str]) -> None:
        self.spaces, self.placed, self._addresses = spaces, placed, addresses

    def start(self, space: str, *names: str) -> None:
        for name in names:
            self.placed.start(name, space)

    def lead(self, space: str, *names: str) -> None:
        for name in names:
            self.spaces.lead(f"{name}.pods", self._addresses[space])


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with Spaces(tmp_path / "spaces") as spaces:
        addresses = {name: spaces.add(name, 41 + number) for number, name in enumerate("abcd")}
        spaces.add("client", 99)
        settings = {
            "name_servers": [{"id": f"ns{at}", "address": f"ns{at}.pods:{NAME_PORT}", "listen": f"0.0.0.0:{NAME_PORT}"} for at in range(2)],
            "groups": [
                {
                    "name": "g0",
                    "nodes": [{"id": f"n{at}", "address": f"n{at}.pods:{NODE_PORT}", "listen": f"0.0.0.0:{NODE_PORT}"} for at in range(3)],
                }
            ],
        }
        yield Pods(spaces, Placed(spaces, tmp_path / "cluster", "client", settings), addresses)


@pytest.mark.xdist_group("network")
def test_addresses_that_change_are_followed(pods: Pods) -> None:
    placed, spaces = pods.placed, pods.spaces
    # Everything starts before the names exist; one of them does not for a good while.
    pods.start("a", "ns0", "n0")
    pods.start("b", "ns1", "n1")
    pods.start("c", "n2")
    wait_until(lambda: "link_failed" in placed.log("n0"), "n0 looked for the others in vain")
    pods.lead("b", "ns1", "n1")
    pods.lead("a", "ns0", "n0")
    client = Client(placed)
    client.goes_on("two nodes had names")
    pods.lead("c", "n2")
    leader = placed.wait_leader()
    # The machine of the leader, or of another one with a name server, falls silent; both come back elsewhere with the same data.
    dead, number = ("a", "0") if leader == "n0" else ("b", "1")
    spaces.filter(dead, DEAD)
    moved = (f"ns{number}", f"n{number}")
    for name in moved:
        placed.kill(name)
    pods.start("d", *moved)
    pods.lead("d", *moved)
    client.goes_on("a machine fell silent")
    placed.wait_leader()
    # Two nodes change places, and for a while the names still lead to where they were.
    stays, other = ("a", "n0") if number == "1" else ("b", "n1")
    for name in (other, "n2"):
        placed.kill(name)
    pods.start("c", other)
    pods.start(stays, "n2")
    wait_until(lambda: f"expected '{other}', got 'n2'" in placed.log(other), f"{other} refused a link that was meant for n2")
    pods.lead("c", other)
    pods.lead(stays, "n2")
    client.goes_on("two nodes changed places")
    placed.wait_leader()
    client.ends_with_all_it_sent()


class Client:
    """Sends and reads in the client's space all the time."""

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self._count, self._log = placed.folder / "count", placed.folder / "client.log"
        argv = placed.argv("steady", str(self._count))
        self._process = placed.spaces.start(placed.client, argv, log=self._log, env=placed.environment)

    def goes_on(self, after: str) -> None:
        """What it sends from now on is acknowledged, and read again."""
        before = self._sent
        wait_until(lambda: self._process.poll() is not None or self._sent > before + 5, f"the client sends after {after}")
        assert self._process.poll() is None, self._log.read_text()
        self._placed.assert_running()

    def ends_with_all_it_sent(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(LIMIT_S) == 0, self._log.read_text()
        assert json.loads(self._log.read_text().splitlines()[-1])["sent"] >= self._sent > 15

    @property
    def _sent(self) -> int:
        return int(self._count.read_text()) if self._count.exists() else 0
