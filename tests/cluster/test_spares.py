"""A spare node takes the place of a member that is away, by itself, with real processes."""

from __future__ import annotations

import json
from collections.abc import Callable

from dledger_cli.local.ports import free_ports
from tests.cluster.harness import SMALL, Cluster
from tests.waiting import wait_until


def test_a_member_that_is_away_is_replaced_by_a_spare_node(make_cluster: Callable[..., Cluster]) -> None:
    (port,) = free_ports(1)
    spares = [{"id": "sp0", "address": f"127.0.0.1:{port}", "host": "h9"}]
    cluster = make_cluster(settings=SMALL | {"spares": spares, "replicas": {"replaceAfter": "3s"}})
    cluster.start()

    def group() -> dict[str, list[str]]:
        return dict(json.loads(cluster.cli("status", "--json").stdout)["groups"][0])

    def spare_ids() -> list[str]:
        return [spare["id"] for spare in json.loads(cluster.cli_ok("cluster", "status", "--json"))["spares"]]

    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies = [b"%06d" % number for number in range(300)]
    assert cluster.produce("t", bodies)["acknowledged"] == 300
    wait_until(lambda: spare_ids() == ["sp0"], lambda: cluster.log_text("sp0"))
    assert sorted(group()["voters"]) == ["n0", "n1", "n2"]
    victim = next(node_id for node_id in ("n0", "n1", "n2") if node_id != cluster.leader())
    survivors = sorted({"n0", "n1", "n2"} - {victim})
    cluster.kill(victim)
    wait_until(lambda: sorted(group()["voters"]) == [*survivors, "sp0"], lambda: cluster.log_text(cluster.leader()))
    assert cluster.produce("t", [b"after"])["acknowledged"] == 1

    cluster.kill("sp0")  # it belongs to the group for good, and comes back as its member
    cluster.start("sp0", wait=False)
    wait_until(lambda: "sp0" in group()["acknowledging"], lambda: cluster.log_text("sp0"))
    assert spare_ids() == []
    cluster.start(victim, wait=False)
    other = next(node_id for node_id in survivors if node_id != cluster.leader())
    cluster.kill(other)  # the quorum is the spare node and the leader: the old member does not count
    assert cluster.produce("t", [b"last"])["acknowledged"] == 1
    assert cluster.consume("t", 302) == [*bodies, b"after", b"last"]
    assert victim not in group()["voters"]


def test_a_leader_that_dies_while_a_spare_node_joins_is_followed_by_one_that_goes_on(make_cluster: Callable[..., Cluster]) -> None:
    (port,) = free_ports(1)
    spares = [{"id": "sp0", "address": f"127.0.0.1:{port}", "host": "h9"}]
    cluster = make_cluster(settings=SMALL | {"spares": spares, "replicas": {"replaceAfter": "3s"}})
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies = [b"%06d" % number for number in range(300)]
    assert cluster.produce("t", bodies)["acknowledged"] == 300
    victim = next(node_id for node_id in ("n0", "n1", "n2") if node_id != cluster.leader())
    survivors = sorted({"n0", "n1", "n2"} - {victim})
    cluster.kill(victim)

    def begun_by() -> str:
        """Whoever leads when the time is up."""
        return next((node_id for node_id in survivors if "sp0 is to take its place" in cluster.log_text(node_id)), "")

    first = wait_until(begun_by, lambda: "".join(map(cluster.log_text, survivors)))
    cluster.kill(first)
    cluster.start(first, wait=False)

    def voters() -> list[str]:
        return sorted(json.loads(cluster.cli("status", "--json").stdout)["groups"][0]["voters"])

    wait_until(lambda: voters() == [*survivors, "sp0"], lambda: cluster.log_text(cluster.leader()))
    assert cluster.consume("t", 300) == bodies
