"""``dledger up --rocketmq``: the cluster file of the data folder gets ports for RocketMQ's clients, and keeps those it has."""

from __future__ import annotations

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.rocketmq import remoting_name_servers
from dledger_cli.commands.updown import _with_rocketmq

FILE = "cluster: c\ngroups:\n  - name: g\n    nodes: [{id: a, address: 127.0.0.1:10911}]  # one\n"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "127.0.0.1:20911"),
        ("rocketmq: {nameserver_address: 127.0.0.1:9876}\n", "127.0.0.1:20911"),
        ("rocketmq: {address: 127.0.0.1:7000}\n", "127.0.0.1:7000"),
    ],
)
def test_nodes_get_ports_unless_the_file_says_where(more: str, expected: str) -> None:
    text = _with_rocketmq(ClusterConfig.parse(FILE + more, "c.yaml"), FILE + more)
    assert remoting_name_servers(ClusterConfig.parse(text, "c.yaml")) == [expected]
    assert text.startswith(FILE.rstrip())
