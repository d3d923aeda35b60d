"""Name servers as real processes: killed, wiped, cut apart from each other and given garbage, they come back with the same answers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.name_servers import PASSWORD_VARIABLE
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_client import Admin, Message, Producer
from dledger_wire.errors import TopicNotFoundError
from tests.cluster.harness import Cluster, dledger
from tests.waiting import LIMIT_MS, wait_until

SERVERS = ("ns0", "ns1", "ns2")
FAST = {"name_service": {"registerInterval": "1s", "expireAfter": "5s"}}


@pytest.fixture
def named(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two groups of one node and three name servers; they know everything."""
    cluster = make_cluster(nodes=1, groups=2, name_servers=3, settings=FAST)
    cluster.start()
    wait_until(lambda: agreed(cluster) is not None, "all name servers agree")
    return cluster


def bootstrap(cluster: Cluster) -> str:
    return ",".join(server.address for server in cluster.config.name_server_processes)


def agreed(cluster: Cluster) -> int | None:
    """The version of the directory if all name servers are complete and have the same one."""
    with Admin(bootstrap(cluster), timeout_ms=2_000) as admin:
        found = admin.name_servers()
    versions = {server.directory_version for server in found if server.complete}
    return versions.pop() if len(found) == 3 and all(server.complete for server in found) and len(versions) == 1 else None


def create(cluster: Cluster, name: str) -> None:
    with Admin(bootstrap(cluster), timeout_ms=LIMIT_MS) as admin:
        admin.create_topic(name, queues=4)


def wait_known(cluster: Cluster, server_id: str, topic: str) -> None:
    """Wait until that name server has heard of the topic from the nodes of both groups."""

    def is_known() -> bool:
        with contextlib.suppress(TopicNotFoundError):
            return groups_of(cluster, server_id, topic) == ["g0", "g1"]
        return False

    wait_until(is_known, f"{server_id} knows both groups of topic {topic}")


def groups_of(cluster: Cluster, server_id: str, topic: str) -> list[str]:
    """Where that name server says that the queues of the topic are; nobody else is asked."""
    with Admin(cluster.config.name_server(server_id).server.address, timeout_ms=LIMIT_MS) as admin:
        return sorted({queues.replica_group for queues in admin.describe_topic(topic)})


def test_status_for_programs_has_what_the_text_says_of_name_servers(named: Cluster) -> None:
    named.kill("ns1")
    # One that this machine holds up for a second has not answered, or has missed registrations: the next look counts.
    wait_until(lambda: "2 of 3 name servers know the whole cluster" in named.cli_ok("status"), "status counts those that are left")

    def told() -> list[tuple[bool, bool, str]]:
        servers = json.loads(named.cli_ok("status", "--json"))["name_servers"]
        return sorted((server["reachable"], server["complete"], server["id"]) for server in servers)

    # The one that is dead cannot tell its id.
    wait_until(lambda: told() == [(False, False, ""), (True, True, "ns0"), (True, True, "ns2")], lambda: f"it is told: {told()}")


def test_each_name_server_that_is_killed_and_wiped_comes_back_with_the_same_answers(named: Cluster) -> None:
    create(named, "t")
    before = wait_until(lambda: agreed(named), "all name servers agree")
    for victim in SERVERS:
        named.kill(victim)
        shutil.rmtree(named.data / victim)
        named.start(victim, wait=False)
        assert wait_until(lambda: agreed(named), f"{victim} agrees with the others again") == before
        # On a machine that stands still for as long as a registration lasts, one is over until the node registers again.
        wait_known(named, victim, "t")


def test_no_send_fails_while_all_name_servers_are_dead(named: Cluster) -> None:
    create(named, "t")
    errors: list[Exception] = []
    sent = threading.Semaphore(0)
    ending = threading.Event()

    def load(producer: Producer) -> None:
        while not ending.is_set():
            try:
                producer.send(Message("t", b"x"))
            except Exception as error:
                errors.append(error)
            sent.release()

    def wait_sent(count: int) -> None:
        for _ in range(count):
            assert sent.acquire(timeout=LIMIT_MS / 1000)

    with Producer(bootstrap(named), group="load") as producer:
        thread = threading.Thread(target=load, args=(producer,))
        thread.start()
        try:
            wait_sent(50)
            for server in SERVERS:
                named.kill(server)
            wait_sent(500)
            for server in SERVERS:
                named.start(server, wait=False)
            wait_until(lambda: agreed(named) is not None, "all name servers agree again")
            wait_sent(100)
        finally:
            ending.set()
            thread.join()
    assert errors == []


def test_a_name_server_that_slept_catches_up(named: Cluster) -> None:
    named.pause("ns1")
    create(named, "later")  # waits for the others only
    named.resume("ns1")
    wait_until(lambda: agreed(named), "all name servers agree")
    wait_known(named, "ns1", "later")  # they agree on the groups; of topics the nodes tell each of them


def test_a_name_server_without_a_majority_answers_by_what_nodes_tell_it(named: Cluster) -> None:
    def alone() -> bool:
        with Admin(named.config.name_server("ns0").server.address, timeout_ms=2_000) as admin:
            own = next(server for server in admin.name_servers() if server.id == "ns0")
        return own.complete and not own.has_quorum

    named.pause("ns1")
    named.pause("ns2")
    wait_until(alone, "ns0 has noticed that it is alone")
    create(named, "split")
    wait_known(named, "ns0", "split")
    named.resume("ns1")
    named.resume("ns2")
    wait_until(lambda: agreed(named), "all name servers agree")
    for server in SERVERS:
        wait_known(named, server, "split")


def test_garbage_does_not_hurt(named: Cluster) -> None:
    settings = named.config.name_server("ns0")
    before = agreed(named)
    for address in settings.addresses:
        host, _, port = address.rpartition(":")
        for size in (1, 7, 64, 5_000, 70_000):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(os.urandom(size))
    create(named, "after")
    assert wait_until(lambda: agreed(named), "all name servers agree") == before  # topics are no part of the directory's version
    wait_known(named, "ns0", "after")
    with Admin(bootstrap(named)) as admin:
        wait_until(lambda: all(server.has_quorum for server in admin.name_servers()), "all name servers have their quorum")


def test_status_and_stopping_in_order(named: Cluster) -> None:
    found = json.loads(named.cli_ok("nameserver", "status", "--json"))["name_servers"]
    assert [(server["id"], server["reachable"], server["complete"], server["replica_groups"]) for server in found] == [
        (server, True, True, 2) for server in SERVERS
    ]
    for command in (["nameserver", "status"], ["status"]):
        assert "all 3 name servers know the whole cluster and agree" in named.cli_ok(*command)
    named.kill("ns2")
    assert "2 of 3 name servers know the whole cluster" in named.cli_ok("nameserver", "status")
    assert named.terminate("ns1") == 0
    log = named.local.log_file("ns1").read_text(encoding="utf-8")
    assert "Traceback" not in log
    assert [json.loads(line)["event"] for line in log.splitlines() if "broker.main" in line] == ["started", "stopping"]


def test_a_name_server_that_is_added_to_the_file_is_told_without_a_restart_of_nodes(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(nodes=1)
    file, up = cluster.data / "wanted.yaml", ("up", "--data", str(cluster.data), "--config")
    shutil.copy(cluster.local.file, file)
    cluster.cli_ok(*up, str(file))
    before = cluster.local.running()
    content = yaml.safe_load(file.read_text())
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    content["name_servers"] = [{"id": "ns0", "address": addresses[0], "quorum_address": addresses[1]}]
    file.write_text(yaml.safe_dump(content))
    try:
        assert cluster.cli_ok(*up, str(file)).splitlines()[-1] == "all 1 name servers know the whole cluster and agree"
        assert {
            name: pid
            for name, pid in LocalCluster(ClusterConfig.load(str(cluster.local.file)), cluster.data).running().items()
            if name != "ns0"
        } == before
    finally:
        cluster.cli_ok("down", "--kill", "--data", str(cluster.data))


def started(cluster: Cluster, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    found: subprocess.CompletedProcess[str] = dledger(
        "nameserver", "--config", str(cluster.local.file), "--data", str(cluster.data), *arguments, env=env
    )
    return found


def test_what_cannot_start_says_why_in_one_line(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(nodes=1, name_servers=2)
    cluster.start("ns0", wait=False)
    wait_until(lambda: "started" in cluster.local.log_file("ns0").read_text(encoding="utf-8"), "ns0 has started")
    second = started(cluster, "--id", "ns0")
    assert (second.returncode, "is in use by pid" in second.stderr, len(second.stderr.splitlines())) == (1, True, 1)
    unknown = started(cluster, "--id", "n0")
    assert (unknown.returncode, unknown.stderr) == (1, "dledger: no name server 'n0' in this cluster file; it has ns0, ns1\n")
    quorum = cluster.config.name_server("ns1").server.quorum
    host, _, port = quorum.rpartition(":")
    with socket.create_server((host, int(port))):
        taken = started(cluster, "--id", "ns1")
    assert (taken.returncode, f"{quorum} (ns1) is taken" in taken.stderr) == (1, True)
    (cluster.data / "ns1").mkdir()
    shutil.copy(cluster.data / "ns0" / "identity.json", cluster.data / "ns1")
    foreign = started(cluster, "--id", "ns1")
    assert (foreign.returncode, "belongs to node ns0" in foreign.stderr) == (1, True)


def test_outside_loopback_there_has_to_be_a_password(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    text = """cluster: c
name_servers:
  - {id: ns0, address: "127.0.0.1:PORT", quorum_address: "127.0.0.1:OTHER"}
  - {id: ns1, address: "10.255.0.9:9876"}
groups: [{name: g0, nodes: [{id: n0, address: "127.0.0.1:10911"}]}]
"""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    file.write_text(text.replace("PORT", str(ports[0])).replace("OTHER", str(ports[1])), encoding="utf-8")
    refused = dledger("nameserver", "--config", str(file), "--id", "ns0", "--data", str(tmp_path), env={PASSWORD_VARIABLE: ""})
    wanted = "name servers that reach each other outside loopback need a password: set name_service.passwordFile or " + PASSWORD_VARIABLE
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (1, f"dledger: {wanted}")
