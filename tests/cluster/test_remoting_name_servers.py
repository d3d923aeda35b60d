"""RocketMQ's remoting protocol at real name servers: they send clients to nodes, and go on when one of them is killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.remoting.codes import Answer, Request
from tests.cluster.harness import send_garbage
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.waiting import wait_until

SERVERS = ("ns0", "ns1")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RocketmqCluster]:
    """Two groups of one node and two name servers."""
    made = RocketmqCluster(tmp_path / "data", nodes=1, groups=2, name_servers=2)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_name_servers_send_clients_to_the_nodes_of_every_group(cluster: RocketmqCluster) -> None:
    servers = [cluster.remoting(name) for name in SERVERS]
    nodes = {group.name: cluster.remoting(group.nodes[0].id) for group in cluster.config.groups}
    assert cluster.name_servers == [*servers, *nodes.values()], "dledger status --json"
    cluster.cli_ok("topic", "create", "routed", "--queues", "4")
    for address in cluster.name_servers:
        wait_until(lambda at=address: ask(at, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "routed"}).code == Answer.SUCCESS, "it is known")
        route = json.loads(bytes(ask(address, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "routed"}).body))
        assert {broker["brokerName"]: broker["brokerAddrs"] for broker in route["brokerDatas"]} == {
            name: {"0": node} for name, node in nodes.items()
        }
        table = json.loads(bytes(ask(address, Request.GET_BROKER_CLUSTER_INFO, {}).body))
        assert {name: broker["brokerAddrs"]["0"] for name, broker in table["brokerAddrTable"].items()} == nodes
    assert "routed" in json.loads(bytes(ask(servers[0], Request.GET_ALL_TOPIC_LIST, {}).body))["topicList"]
    assert ask(servers[0], Request.SEND_MESSAGE_V2, {}).code == Answer.REQUEST_CODE_NOT_SUPPORTED, "that is for nodes"


def test_a_name_server_that_is_killed_or_given_garbage_comes_back_with_the_same_routes(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "stays", "--queues", "2")
    killed, address = "ns0", cluster.remoting("ns0")

    def route() -> bytes:
        return bytes(ask(address, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "stays"}).body)

    before = wait_until(route, "ns0 knows the topic")
    cluster.kill(killed)
    cluster.start(killed, wait=False)
    wait_until(
        lambda: len(re.findall(r'"event": ?"started"', cluster.local.log_file(killed).read_text(encoding="utf-8"))) == 2, "ns0 is back"
    )
    for _ in range(3):
        answer = ask(address, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "stays"})
        assert answer.code in (Answer.SUCCESS, Answer.SERVICE_NOT_AVAILABLE), "what is not known yet is not said not to exist"
    wait_until(lambda: route() == before, "ns0 knows the topic in both groups again")
    send_garbage(address, b"\0\0\0\x14\x09\0\0\0" + bytes(16))
    assert route() == before
