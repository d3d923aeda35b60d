"""A replica group that lost two of three disks goes on with the third, as the guide on replacing nodes says.

docs/reference/semantics, row S3.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.harness import Cluster
from tests.waiting import wait_until

BODIES = [b"%06d" % number for number in range(500)]


def node_of(cluster: Cluster, node_id: str) -> dict[str, Any]:
    (group,) = cluster.status_json()["groups"]
    return dict(next(node for node in group["nodes"] if node["id"] == node_id))


def lose_all_but_a_follower(cluster: Cluster) -> tuple[str, list[str]]:
    """(the survivor, the lost nodes); all of them are killed, and every replica had all messages."""
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    assert cluster.produce("t", BODIES)["acknowledged"] == len(BODIES)
    cluster.wait_equal()
    leader = cluster.leader()
    survivor = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    refused = cluster.cli("member", "unsafe-recover", "--id", survivor, "--data", str(cluster.data), "--yes")
    assert refused.returncode == 1
    assert "is in use by pid" in refused.stderr
    cluster.kill_all()
    return survivor, [node_id for node_id in cluster.local.node_ids() if node_id != survivor]


def let_others_wait(cluster: Cluster, survivor: str) -> None:
    """Mark all nodes but the survivor in the cluster file: they wait to be added."""
    content = yaml.safe_load(cluster.local.file.read_text())
    for node in content["groups"][0]["nodes"]:
        node["spare"] = node["id"] != survivor
    cluster.local.file.write_text(yaml.safe_dump(content, sort_keys=False))


def recover(cluster: Cluster, survivor: str) -> None:
    refused = cluster.cli("member", "unsafe-recover", "--id", survivor, "--data", str(cluster.data), "--yes")
    assert refused.returncode == 1
    assert f"give every node of it but {survivor} spare: true there" in refused.stderr
    let_others_wait(cluster, survivor)
    looked = cluster.cli("member", "unsafe-recover", "--id", survivor, "--data", str(cluster.data))
    assert looked.returncode == 2
    assert f"node {survivor} of replica group g0 has entries up to" in looked.stderr
    made = json.loads(cluster.cli_ok("member", "unsafe-recover", "--id", survivor, "--data", str(cluster.data), "--yes", "--json"))
    assert made["voters"] == [survivor]


def lead_alone(cluster: Cluster, survivor: str) -> None:
    cluster.start(survivor, wait=False)
    wait_until(lambda: node_of(cluster, survivor)["role"] == "leader", lambda: cluster.log_text(survivor))


def test_a_group_goes_on_with_one_of_three_disks(cluster: Cluster) -> None:
    survivor, lost = lose_all_but_a_follower(cluster)
    for node_id in lost:
        shutil.rmtree(cluster.data / node_id)
    recover(cluster, survivor)
    for node_id in lost:  # before the survivor: they are no group of their own
        cluster.start(node_id, wait=False)
    wait_until(lambda: {node_of(cluster, node_id).get("role") for node_id in lost} == {"learner"}, lambda: cluster.log_text(lost[0]))
    lead_alone(cluster, survivor)
    assert cluster.produce("t", [b"alone"])["acknowledged"] == 1
    assert [node_of(cluster, node_id)["role"] for node_id in lost] == ["learner"] * len(lost)
    for node_id in lost:
        cluster.cli_ok("member", "add", "--id", node_id)
        cluster.cli_ok("member", "promote", "--id", node_id, "--wait", "120", timeout_s=150)
    cluster.wait_healthy()
    cluster.wait_equal()
    cluster.kill(survivor)
    assert cluster.produce("t", [b"without it"])["acknowledged"] == 1
    assert cluster.consume("t", len(BODIES) + 2) == [*BODIES, b"alone", b"without it"]


def test_old_folders_that_come_back_count_nothing(cluster: Cluster) -> None:
    """Two of them are a majority of the group as they know it; they follow nobody and lead nobody once the survivor runs."""
    survivor, lost = lose_all_but_a_follower(cluster)
    recover(cluster, survivor)
    lead_alone(cluster, survivor)
    term = node_of(cluster, survivor)["term"]
    for node_id in lost:
        cluster.start(node_id, wait=False)
    wait_until(
        lambda: all("this node does not lead any more" in cluster.log_text(node_id) for node_id in lost), lambda: cluster.log_text(lost[0])
    )
    assert [node_of(cluster, node_id)["role"] for node_id in lost] == ["follower"] * len(lost)
    assert cluster.produce("t", [b"more"])["acknowledged"] == 1
    found = node_of(cluster, survivor)
    assert (found["role"], found["term"]) == ("leader", term)
    assert all(node_of(cluster, node_id)["term"] < term for node_id in lost)
    assert cluster.consume("t", len(BODIES) + 1) == [*BODIES, b"more"]


OWN_LOG = "stop it, move its data folder away, start it with an empty one and spare: true, then dledger member add --id"


class Recovered:
    """A group that goes on with ``survivor``; of the two lost nodes those in ``back`` come back with their old folders."""

    def __init__(self, cluster: Cluster, how_many: int, aside: Path) -> None:
        self.cluster, self.aside = cluster, aside
        self.survivor, self.lost = lose_all_but_a_follower(cluster)
        self.back = self.lost[:how_many]
        self.sent: list[bytes] = []
        for node_id in self.lost:
            shutil.copytree(cluster.data / node_id, aside / node_id, ignore=shutil.ignore_patterns("*.sock"))
        recover(cluster, self.survivor)

    def start_old(self) -> None:
        """They lead while no survivor runs, and when they were voters of its group before."""
        for node_id in self.back:
            self.cluster.start(node_id, wait=False)
        wanted = ({"leader", "follower"} if len(self.back) == 2 else {"pre_candidate"}, {"follower"})
        self.until(lambda: {node_of(self.cluster, node_id).get("role") for node_id in self.back} in wanted)

    def kill_old(self) -> None:
        for node_id in self.back:
            self.cluster.kill(node_id)

    def until(self, condition: Callable[[], object]) -> None:
        wait_until(condition, lambda: self.cluster.cli("status").stdout + self.cluster.log_text(self.survivor))

    def stores(self) -> None:
        self.sent.append(b"new-%02d" % len(self.sent))
        assert self.cluster.produce("t", self.sent[-1:])["acknowledged"] == 1
        assert self.cluster.consume("t", len(BODIES) + len(self.sent)) == [*BODIES, *self.sent]

    def goes_on(self, term: int) -> None:
        """The survivor leads in its term, takes writes, and has all of them."""
        self.stores()
        found = node_of(self.cluster, self.survivor)
        assert (found["role"], found["term"]) == ("leader", term)

    def add_empty(self, node_id: str) -> None:
        self.cluster.start(node_id, wait=False)
        self.until(lambda: node_of(self.cluster, node_id).get("role") == "learner")
        self.cluster.cli_ok("member", "add", "--id", node_id)
        self.cluster.cli_ok("member", "promote", "--id", node_id, "--wait", "120", timeout_s=150)

    def exchange_folders(self, newer: str, older: str) -> None:
        """Keep the folders in place as ``newer``, and put the ``older`` ones there."""
        for node_id in self.back:
            shutil.move(self.cluster.data / node_id, self.aside / f"{node_id}{newer}")
            shutil.copytree(self.aside / f"{node_id}{older}", self.cluster.data / node_id, ignore=shutil.ignore_patterns("*.sock"))


@pytest.mark.timeout(900)  # some eighty commands, and six copies of a log
@pytest.mark.parametrize("how_many", [1, 2])
def test_old_nodes_that_come_back_at_any_step_take_nothing_over(cluster: Cluster, how_many: int, tmp_path: Path) -> None:
    """The steps of the guide, with old nodes that run before and after each of them, and commands given for them by mistake."""
    group = Recovered(cluster, how_many, tmp_path)
    group.start_old()
    lead_alone(cluster, group.survivor)
    term = node_of(cluster, group.survivor)["term"]
    group.goes_on(term)
    for node_id in group.back:
        refused = cluster.cli("member", "add", "--id", node_id)
        assert refused.returncode == 1
        assert f"{OWN_LOG} {node_id}" in refused.stderr
        assert f"not a member, and it has a log of its own: {OWN_LOG} {node_id}" in cluster.cli("status").stdout
    group.goes_on(term)

    group.kill_old()
    by_mistake = group.back[0]
    cluster.cli_ok("member", "add", "--id", by_mistake)  # it does not answer, so its log is not known
    group.start_old()
    group.until(lambda: f"stop it, dledger member remove --id {by_mistake} --yes" in cluster.cli("status").stdout)
    assert cluster.cli("member", "promote", "--id", by_mistake).returncode == 1
    group.goes_on(term)

    group.kill_old()
    cluster.cli_ok("member", "remove", "--id", by_mistake, "--yes")
    for node_id in group.lost:
        shutil.rmtree(cluster.data / node_id)
        group.add_empty(node_id)
        group.goes_on(term)
    cluster.wait_healthy()

    group.kill_old()
    group.exchange_folders("-new", "")
    group.start_old()  # a majority of the voters is away when there are two: what is acknowledged then is the other group's
    if how_many == 1:
        group.until(lambda: "refused by its peers: lineage" in cluster.cli("status").stdout)
        group.stores()
    group.kill_old()
    group.exchange_folders("-old", "-new")
    for node_id in group.back:
        cluster.start(node_id, wait=False)
    cluster.wait_healthy()
    cluster.wait_equal()
    assert cluster.consume("t", len(BODIES) + len(group.sent)) == [*BODIES, *group.sent]
