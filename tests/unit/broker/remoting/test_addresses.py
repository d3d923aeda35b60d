"""Where nodes listen for RocketMQ's clients, by the cluster file."""

from __future__ import annotations

import re

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.layer_settings import store_settings_of
from broker.config.ports import Use, ports_of
from broker.config.rocketmq import remoting_address, remoting_listens, remoting_name_servers
from dledger_wire.errors import ConfigError
from tests.cluster.harness import ROOT

FILE = """
cluster: c
groups:
  - name: g
    nodes:
      - {id: a, address: "10.0.0.1:10911"}
      - {id: b, address: "10.0.0.2:10911", rocketmq: "0.0.0.0:7000"}
      - {id: c, address: "10.0.0.3:10911", listen: "0.0.0.0:10911"}
"""


def config(more: str) -> ClusterConfig:
    return ClusterConfig.parse(FILE + more, "c.yaml")


def test_without_the_setting_a_node_does_not_speak_it() -> None:
    file = config("")
    assert [remoting_listens(file, node) for node in "abc"] == [(), ("0.0.0.0:7000",), ()]
    assert remoting_name_servers(file) == ["10.0.0.2:7000"]


def test_a_node_is_reached_at_its_own_host_and_the_port_for_all() -> None:
    file = config('rocketmq: {address: "0.0.0.0:10921", nameserver_address: "0.0.0.0:9876"}\n')
    assert remoting_listens(file, "a") == ("0.0.0.0:10921", "0.0.0.0:9876")
    assert [remoting_address(file, node.id, node.address) for _, node in file.all_nodes()] == [
        *("10.0.0.1:10921", "10.0.0.2:7000", "10.0.0.3:10921"),
    ]
    assert remoting_name_servers(file) == ["10.0.0.1:9876", "10.0.0.2:7000", "10.0.0.3:9876"]


def test_an_offset_gives_each_node_a_port_above_its_own() -> None:
    file = config("rocketmq: {portOffset: 10000}\n")
    assert remoting_listens(file, "a") == ("10.0.0.1:20911",)
    assert remoting_listens(file, "c") == ("0.0.0.0:20911",)
    assert remoting_address(file, "c", "10.0.0.3:10911") == "10.0.0.3:20911"


def test_frames_name_the_address_that_these_clients_reach() -> None:
    assert store_settings_of(config("rocketmq: {portOffset: 10000}\n").node("a")).store_host == "10.0.0.1:20911"
    assert store_settings_of(config("").node("a")).store_host == "10.0.0.1:10911"


NAMED = """
name_servers:
  - {id: ns0, address: "10.0.0.1:9875"}
  - {id: ns1, address: "10.0.0.2:9875", rocketmq: "0.0.0.0:7001"}
"""


def test_a_name_server_has_a_port_of_its_own_and_comes_first() -> None:
    text = NAMED + 'rocketmq: {address: "0.0.0.0:10921", nameserver_address: "0.0.0.0:9876"}\n'
    file = config(text)
    assert [remoting_listens(file, name) for name in ("ns0", "ns1")] == [("0.0.0.0:9876",), ("0.0.0.0:7001",)]
    assert remoting_listens(file, "a") == ("0.0.0.0:10921",), "where name servers are processes, that address is theirs"
    nodes = ["10.0.0.1:10921", "10.0.0.2:7000", "10.0.0.3:10921"]
    assert remoting_name_servers(file) == ["10.0.0.1:9876", "10.0.0.2:7001", *nodes]
    assert [
        remoting_listens(config('rocketmq: {address: "0.0.0.0:10921"}\n' + NAMED.replace(', rocketmq: "0.0.0.0:7001"', "")), "ns0")
    ] == [()]


def test_name_servers_need_nodes_that_they_can_send_clients_to() -> None:
    with pytest.raises(ConfigError, match="name servers send RocketMQ's clients to nodes, and a has none for them"):
        config(NAMED)


def test_ports_of_name_servers_that_meet_others_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:9875 of name server ns0 is taken"):
        config(NAMED + 'rocketmq: {address: "0.0.0.0:10921", nameserver_address: "0.0.0.0:9875"}\n')


def test_the_rules_for_firewalls_name_the_ports_of_the_example_beside_them() -> None:
    text = (
        (ROOT / "docs" / "reference" / "network.md")
        .read_text(encoding="utf-8")
        .partition("## RocketMQ's clients\n")[2]
        .partition("\n## ")[0]
    )
    (file,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    found = ClusterConfig.parse("cluster: c\n" + file, "c.yaml")
    ports = {int(port.address.rpartition(":")[2]): port.owner for port in ports_of(found) if port.use is Use.ROCKETMQ}
    rule = re.search(r"dport {(.*?)}", text)
    assert rule is not None
    assert sorted(map(int, rule[1].split(","))) == sorted(ports)
    assert ports[9877] == "name server ns0"


def test_a_port_that_a_node_has_already_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:10911 of node a is taken"):
        config('rocketmq: {address: "10.0.0.1:10911"}\n')


def test_users_need_tls_where_its_ports_are_reached_from_outside() -> None:
    more = "rocketmq: {portOffset: 10000}\nsecurity: {cluster_secret_file: s, users: {required: true}}\n"
    with pytest.raises(ConfigError, match=r"users outside loopback need security\.tls"):
        config(more)
