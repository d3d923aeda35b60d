"""A replica group that lost two of three disks goes on with the third, as the guide on replacing nodes says.

docs/reference/semantics.md, row S3.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

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
    """Two of them are a group of their own, which the survivor and its clients have nothing to do with."""
    survivor, lost = lose_all_but_a_follower(cluster)
    recover(cluster, survivor)
    lead_alone(cluster, survivor)
    term = node_of(cluster, survivor)["term"]
    for node_id in lost:
        cluster.start(node_id, wait=False)
    wait_until(lambda: "leader" in [node_of(cluster, node_id)["role"] for node_id in lost], lambda: cluster.log_text(lost[0]))
    assert cluster.produce("t", [b"more"])["acknowledged"] == 1
    found = node_of(cluster, survivor)
    assert (found["role"], found["term"]) == ("leader", term)
    assert all(node_of(cluster, node_id)["term"] < term for node_id in lost)
    assert cluster.consume("t", len(BODIES) + 1) == [*BODIES, b"more"]
