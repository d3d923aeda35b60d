"""The replica group where users and rules are changed: the first one that is not removed."""

from __future__ import annotations

from broker.config.cluster_file import ClusterConfig
from broker.routes.known_groups import KnownGroups
from broker.security.user_watch import home_of
from dledger_wire._pb import routes_pb2
from dledger_wire.status import ACTIVE, DRAINING, REMOVED

CLUSTER = """
cluster: shop
groups:
  - {name: g1, nodes: [{id: n0, address: 127.0.0.1:20001}]}
  - {name: g0, nodes: [{id: n1, address: 127.0.0.1:20002}]}
"""


def directory(version: int, **states: str) -> routes_pb2.DirectoryReply:
    reply = routes_pb2.DirectoryReply(version=version)
    for name, state in states.items():
        reply.groups.add(name=name, state=state)
    return reply


def test_the_next_group_takes_over_when_the_first_one_was_removed() -> None:
    groups = KnownGroups(ClusterConfig.parse(CLUSTER, "c.yaml"))
    assert home_of(groups, "g1") == "g1"
    groups.take(directory(1, g1=DRAINING, g0=ACTIVE))
    assert home_of(groups, "g1") == "g1"  # one that drains keeps its log, and so its users
    groups.take(directory(2, g1=REMOVED, g0=ACTIVE))
    assert home_of(groups, "g1") == "g0"
    groups.take(directory(3, g0=REMOVED))
    assert home_of(groups, "g1") == "g1"
