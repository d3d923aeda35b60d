"""Replica groups added, drained and removed by the commands, with real processes, while messages are sent."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_client import Message, Producer
from dledger_client.aio import Admin as AsyncAdmin
from dledger_client.types import SendResult
from tests.cluster.harness import Cluster
from tests.waiting import wait_until


@pytest.fixture
def two(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two replica groups of one node each, started."""
    cluster = make_cluster(nodes=1, groups=2)
    cluster.start()
    return cluster


def group_file(cluster: Cluster, name: str, node_id: str, **group: Any) -> str:
    """The file of a new replica group of one node."""
    file = cluster.data / f"{name}.yaml"
    (port,) = free_ports(1)
    file.write_text(yaml.safe_dump({"name": name, "nodes": [{"id": node_id, "address": f"127.0.0.1:{port}"}]} | group))
    return str(file)


def stop_local(cluster: Cluster) -> None:
    """End all processes of the data folder, those that commands started too."""
    cluster.cli_ok("down", "--data", str(cluster.data))
    for process in cluster.processes.values():
        process.wait()
    cluster.processes.clear()


def send_keys(cluster: Cluster, groups: set[str]) -> None:
    """A producer that knows nothing yet sends with keys, and reaches these replica groups."""
    with Producer(cluster.bootstrap) as producer:
        assert {producer.send(Message("t", b"keyed"), queue_key=f"k{number}").replica_group for number in range(40)} == groups
    cluster.cli_ok("produce", "t", "--queue-key", "k0", stdin=b"x\n")


def check_stale_file(cluster: Cluster, stale: Path) -> None:
    """A file that still names g1: commands say so, and what they find of the others counts."""
    backup = ("backup", "--to", str(cluster.data / "backups"))
    for command in (("status",), ("status", "--json"), ("status", "--check", "all"), ("verify", "--online"), backup):
        result = cluster.cli(*command, "--config", str(stale))
        assert "replica group g1 was removed from the cluster; take it out of the cluster file" in result.stderr, command
        assert result.returncode == 0, (command, result.stdout, result.stderr)
        assert "no quorum" not in result.stdout


def check_added(cluster: Cluster, old_file: Path, groups: set[str]) -> None:
    """The cluster has these replica groups; a file from before one was added does not keep it out of a backup."""
    assert set(directory(cluster)) == groups
    made = json.loads(cluster.cli_ok("backup", "--to", str(cluster.data / "whole"), "--config", str(old_file), "--json"))
    assert set(made["groups"]) == groups


def names_in_file(cluster: Cluster) -> list[str]:
    return [group["name"] for group in yaml.safe_load(cluster.local.file.read_text())["groups"]]


def directory(cluster: Cluster) -> dict[str, dict[str, Any]]:
    found = json.loads(cluster.cli_ok("cluster", "status", "--json"))
    return {group["name"]: group for group in found["groups"]}


def test_a_group_is_added_and_another_drained_and_removed_under_load(two: Cluster) -> None:
    two.cli_ok("topic", "create", "t", "--queues", "4")
    data, old = str(two.data), Path(shutil.copy(two.local.file, two.data / "old.yaml"))
    sent: list[SendResult] = []
    try:
        with Producer(two.bootstrap, group="load") as producer:

            def send(count: int) -> None:
                first = len(sent)
                sent.extend(producer.send(Message("t", b"%06d" % number)) for number in range(first, first + count))

            send(200)
            assert {result.replica_group for result in sent} == {"g0", "g1"}
            two.cli_ok("cluster", "add-group", group_file(two, "g2", "x0"), "--data", data)
            assert names_in_file(two) == ["g0", "g1", "g2"]
            assert two.cli("cluster", "add-group", str(two.data / "g2.yaml"), "--data", data).returncode == 0, "repeated: nothing to do"
            check_added(two, old, {"g0", "g1", "g2"})
            two.cli_ok("topic", "update", "t", "--replica-groups", "g0,g1,g2", "--queues", "6")
            send(100)
            refused = two.cli("cluster", "remove-group", "g1", "--yes", "--data", data)
            assert refused.returncode == 1
            assert "it is drained first" in refused.stderr
            two.cli("cluster", "drain", "g1", "--wait", "0")
            stale = Path(shutil.copy(two.local.file, two.data / "stale.yaml"))
            before = len(sent)
            send(200)
            assert {result.replica_group for result in sent[before + 50 :]} == {"g0", "g2"}
            refused = two.cli("cluster", "remove-group", "g1", "--yes", "--data", data)
            assert refused.returncode == 1
            assert "no consumer group reads it" in refused.stderr
            assert sorted(two.consume("t", len(sent))) == [b"%06d" % number for number in range(len(sent))]
            drained = json.loads(two.cli_ok("cluster", "drain", "g1", "--json"))
            assert (drained["state"], drained["left"]) == ("draining", [])
            two.cli_ok("cluster", "remove-group", "g1", "--yes", "--data", data)
            two.processes.pop("n1").wait()
            assert names_in_file(two) == ["g0", "g2"]
            wait_until(lambda: directory(two).get("g1", {"state": "removed"})["state"] == "removed", lambda: str(directory(two)))
            send(100)
        check_stale_file(two, stale)
        send_keys(two, {"g0", "g2"})
        stop_local(two)
        two.cli_ok("up", "--data", data)
        send_keys(two, {"g0", "g2"})
    finally:
        stop_local(two)


def test_what_contradicts_the_running_cluster_is_refused(two: Cluster) -> None:
    data = str(two.data)
    taken = yaml.safe_load(two.local.file.read_text())["groups"][1]["nodes"][0]
    file = two.data / "g2.yaml"
    file.write_text(yaml.safe_dump({"name": "g2", "nodes": [{"id": "n1", "address": "127.0.0.1:9"}]}))
    assert "expected an id no other node has, got 'n1' again" in two.cli("cluster", "add-group", str(file), "--data", data).stderr
    file.write_text(yaml.safe_dump({"name": "g2", "nodes": [{"id": "x0", "address": taken["address"]}]}))
    assert "expected an address that no other node has" in two.cli("cluster", "add-group", str(file), "--data", data).stderr
    content = yaml.safe_load(two.local.file.read_text())
    content["groups"][1] = {"name": "g9", "nodes": [taken]}
    file.write_text(yaml.safe_dump(content))
    refused = two.cli("cluster", "apply", str(file), "--dry-run").stderr
    assert f"node n1 of g9: a node of g1 at {taken['address']} has that id" in refused
    assert "serves the cluster's name service" in two.cli("cluster", "drain", "g0").stderr
    assert names_in_file(two) == ["g0", "g1"]


def test_a_group_that_could_not_be_added_is_not_left_in_the_file(two: Cluster) -> None:
    data, file = str(two.data), two.data / "g2.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        *free, other = free_ports(3)
        ports = [free[0], taken.getsockname()[1], free[1]]
        nodes = [{"id": f"x{number}", "address": f"127.0.0.1:{port}"} for number, port in enumerate(ports)]
        behind = {"name": "g3", "nodes": [{"id": "y0", "address": f"127.0.0.1:{other}"}]}  # its turn does not come
        file.write_text(yaml.safe_dump([{"name": "g2", "nodes": nodes}, behind]))
        try:
            failed = two.cli("cluster", "add-group", str(file), "--data", data)
            assert failed.returncode == 1
            assert f"{nodes[1]['address']} (x1) is taken" in failed.stderr
            assert "replica group g2 is not in the cluster file any more" in failed.stderr
            assert names_in_file(two) == ["g0", "g1"]
            assert sorted(two.local.running()) == ["n0", "n1"]
            assert LocalCluster(ClusterConfig.parse(old_and(two, nodes), "g2"), two.data).running().keys() == {"n0", "n1"}

            # As a command leaves it that was killed there: what the file says now counts.
            two.local.file.write_text(old_and(two, nodes))
            nodes[1]["address"] = f"127.0.0.1:{other}"
            file.write_text(yaml.safe_dump({"name": "g2", "nodes": nodes}))
            two.cli_ok("cluster", "add-group", str(file), "--data", data)
            assert yaml.safe_load(two.local.file.read_text())["groups"][2]["nodes"] == nodes
        finally:
            stop_local(two)


def old_and(two: Cluster, nodes: list[dict[str, str]]) -> str:
    """The cluster file with a replica group g2."""
    content = yaml.safe_load(two.local.file.read_text())
    content["groups"].append({"name": "g2", "nodes": nodes})
    return yaml.safe_dump(content)


def test_apply_prints_its_plan_and_is_repeated_without_harm(two: Cluster) -> None:
    data = str(two.data)
    (port,) = free_ports(1)
    content = yaml.safe_load(two.local.file.read_text())
    content["groups"][0] |= {"replaceAfter": "10m", "learners": 1}
    content["groups"].append({"name": "g2", "nodes": [{"id": "x0", "address": f"127.0.0.1:{port}"}]})
    del content["groups"][1]
    file = two.data / "wanted.yaml"
    file.write_text(yaml.safe_dump(content))
    plan = two.cli("cluster", "apply", str(file), "--dry-run", "--data", data)
    assert plan.stderr.splitlines() == [
        "set the policy of g0: learners 1, replaceAfter 600000",
        f"add replica group g2: x0 at 127.0.0.1:{port}",
        "drain replica group g1, then remove it",
    ]
    assert names_in_file(two) == ["g0", "g1"]
    try:
        two.cli_ok("cluster", "apply", str(file), "--data", data)
        assert names_in_file(two) == ["g0", "g2"]
        again = two.cli("cluster", "apply", str(file), "--data", data)
        assert (again.returncode, again.stderr.splitlines()[0]) == (0, "nothing to change")
        two.processes.pop("n1").wait()
    finally:
        stop_local(two)


async def removed_by_half(bootstrap: str, group: str) -> set[tuple[str, ...]]:
    """Remove a group that has nothing in it, and die before topics and processes are told; what topics say of their groups then."""
    async with AsyncAdmin(bootstrap) as admin:
        await admin.drain_replica_group(group)
        await admin._set_state(group, "removed")
        return await named_by_topics(admin)


async def named_by_topics(admin: AsyncAdmin) -> set[tuple[str, ...]]:
    return {part.replica_groups for part in await admin.list_topics(partial=True) if part.topic == "t"}


def test_apply_completes_a_removal_that_died_halfway(two: Cluster) -> None:
    data = str(two.data)
    two.cli_ok("topic", "create", "t", "--queues", "4")
    assert ("g0", "g1") in asyncio.run(removed_by_half(two.bootstrap, "g1"))
    content = yaml.safe_load(two.local.file.read_text())
    del content["groups"][1]
    file = two.data / "wanted.yaml"
    file.write_text(yaml.safe_dump(content))
    try:
        wait_until(lambda: directory(two)["g1"]["state"] == "removed", lambda: str(directory(two)))
        done = two.cli("cluster", "apply", str(file), "--data", data)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines() == [
            "complete the removal of replica group g1: topics still name it",
            "n1 stopped",
            "no topic names replica group g1 any more",
        ]
        two.processes.pop("n1").wait()
        assert names_in_file(two) == ["g0"]

        async def after() -> set[tuple[str, ...]]:
            async with AsyncAdmin(two.bootstrap) as admin:
                return await named_by_topics(admin)

        assert asyncio.run(after()) == {("g0",)}
        assert two.cli("cluster", "apply", str(file), "--data", data).stderr.splitlines() == ["nothing to change"]
    finally:
        stop_local(two)


def test_a_group_that_is_added_from_a_file_of_ones_own_is_said_and_kept_beside_others(two: Cluster) -> None:
    data, own = str(two.data), two.data / "own.yaml"
    shutil.copy(two.local.file, own)
    try:
        for name, node_id in (("g2", "x0"), ("g3", "y0")):
            added = two.cli("cluster", "add-group", group_file(two, name, node_id), "--data", data, "--config", str(own))
            assert added.returncode == 0, added.stderr
            _, said, lines = added.stderr.partition(
                f"{own} does not name them, and commands that read it will not know them, until its list"
            )
            assert yaml.safe_load(lines.partition("\n")[2]) == [yaml.safe_load((two.data / f"{name}.yaml").read_text())]
            assert said
        assert sorted(names_in_file(two)) == ["g0", "g1", "g2", "g3"]
    finally:
        stop_local(two)
