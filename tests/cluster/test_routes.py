"""Connections that a client holds, and the command that shows a route, with real processes: ten replica groups and name servers."""

from __future__ import annotations

import json
from collections.abc import Callable

import psutil

from dledger_client import Admin, Message, Producer, PullConsumer
from tests.cluster.harness import Cluster
from tests.waiting import wait_until

GROUPS = 10


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def connected(ports: set[int]) -> list[int]:
    """Which of ``ports`` this process is connected to, once for each connection."""
    found = psutil.Process().net_connections("tcp")
    return sorted(each.raddr.port for each in found if each.status == psutil.CONN_ESTABLISHED and each.raddr and each.raddr.port in ports)


def test_a_client_of_one_topic_holds_connections_to_its_group_and_one_name_server(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(nodes=1, groups=GROUPS, name_servers=2)
    cluster.start()
    servers = {port_of(server.address) for server in cluster.config.name_servers}
    nodes = {group.name: port_of(group.nodes[0].address) for group in cluster.config.groups}
    everybody = servers | set(nodes.values())
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", queues=2, replica_groups=["g7"])
    wait_until(lambda: not connected(everybody), what="the connections of the closed client to end")

    with Producer(cluster.bootstrap, group="p") as producer, PullConsumer(cluster.bootstrap) as consumer:
        producer.send(Message("t", b"a"), queue_id=0)
        assert [each.body for each in consumer.fetch("t", 0, 0)] == [b"a"]

        def is_settled() -> bool:
            """Each of the two clients has a poll at a name server, and what it needs at the one node; the node asked first is left."""
            held = connected(everybody)
            return set(held) <= servers | {nodes["g7"]} and len([port for port in held if port in servers]) == 2

        wait_until(is_settled, limit_s=60, what="idle connections to close, and one poll of each client")
        producer.send(Message("t", b"b"), queue_id=1)
        assert is_settled(), "what is in use goes on over these"

    told = json.loads(cluster.cli_ok("route", "t", "--json"))
    assert told["by_name_server"] is True
    assert told["complete"] is True
    assert port_of(told["answered_by"]) in servers
    assert [(part["group"], part["read_queues"], port_of(part["leader_address"])) for part in told["parts"]] == [("g7", 2, nodes["g7"])]
    for server in [server.id for server in cluster.config.name_servers]:
        cluster.kill(server)
    told = json.loads(cluster.cli_ok("route", "t", "--json"))
    assert told["by_name_server"] is False
    assert [part["leader"] for part in told["parts"]] == [cluster.config.groups[7].nodes[0].id]
    assert "no name server answers" in cluster.cli("route", "t").stderr
