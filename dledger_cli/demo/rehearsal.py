"""What the demo does with its cluster: each step, and the report.  Every figure is counted from what was sent, acknowledged and read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from dledger_cli.demo.account import Findings, compare, read_with_client
from dledger_cli.demo.load import TOPIC, Line, Load
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_cli.output import print_line
from dledger_client import Admin, Producer
from dledger_client.admin.replica_comparison import ReplicaComparison

QUEUES = 4
TIMEOUT_MS = 60_000


def rehearse(cluster: PrivateCluster, lines: Sequence[Line], source: str, work: Path, *, spark: bool) -> bool:
    """Send, kill the leader, read, compare.  Returns whether nothing was lost."""
    _step("starting three nodes on this machine")
    cluster.start()
    print_line(_roles(cluster, cluster.leader()))
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)

    _step(f"sending {len(lines)} messages ({source}); the leader is killed after a third of them")
    with Producer(cluster.bootstrap, group="dledger-demo") as producer:
        load = Load(producer, lines)
        load.wait_for_a_third()
        victim = cluster.leader()
        killed_at = time.monotonic()
        cluster.kill(victim)
        print_line(f"killed {victim} (SIGKILL) after {load.count} acknowledged messages")
        leader = cluster.leader()
        print_line(f"{leader} leads now")
        cluster.start(victim, wait=False)
        load.wait_for_all()
    pause_ms = load.pause_ms(killed_at)
    print_line(_pause_text(pause_ms))
    cluster.wait_healthy()
    cluster.wait_equal()
    leader = cluster.leader()
    print_line(f"{victim} was started again and has caught up; {_roles(cluster, leader)}")

    _step("reading all messages from followers")
    found = {"messages read": compare(load, read_with_client(cluster.bootstrap))}
    if spark:
        from dledger_cli.demo.spark import read_with_spark

        _step("reading all messages from followers with a Spark job")
        found["rows Spark read"] = compare(load, read_with_spark(cluster.bootstrap, work))
    with Admin(cluster.bootstrap, timeout_ms=TIMEOUT_MS) as admin:
        (comparison,) = admin.compare_replicas()
    return _report(load, found, comparison, leader, pause_ms)


def _step(text: str) -> None:
    print_line("")
    print_line(f"== {text}")


def _roles(cluster: PrivateCluster, leader: str) -> str:
    return f"{leader} leads, {' and '.join(name for name in cluster.local.node_ids() if name != leader)} follow"


def _pause_text(pause_ms: float) -> str:
    if not isfinite(pause_ms):
        return "no message was left to send after the kill"
    return f"the first message sent after the kill was acknowledged {pause_ms:.0f} ms after it"


def _report(load: Load, found: dict[str, Findings], comparison: ReplicaComparison, leader: str, pause_ms: float) -> bool:
    _step("report")
    for error in load.errors[:5]:
        print_line(f"not acknowledged: {error}")
    equal = comparison.equal and not comparison.unreachable
    readings = found.values()
    rows = {
        "sent": len(load.lines),
        "acknowledged": load.count,
        "lost": max(each.lost for each in readings),
        "duplicated": max(each.duplicated for each in readings),
        "changed": max(each.changed for each in readings),
        "out of order": max(each.out_of_order for each in readings),
        **{name: f"{each.rows} from {', '.join(each.replicas)} (leader: {leader})" for name, each in found.items()},
        "pause at the failover": f"{pause_ms:.0f} ms" if isfinite(pause_ms) else "-",
        "checksum on all replicas": "equal" if equal else f"DIFFERENT: {comparison.difference}",
    }
    for name, value in rows.items():
        print_line(f"{name:<24} {value}")
    good = equal and all(each.good and each.rows >= load.count for each in readings) and load.count > 0
    print_line("PASS: nothing acknowledged was lost, duplicated, changed or reordered" if good else "FAIL")
    return good
