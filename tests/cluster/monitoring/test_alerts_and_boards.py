"""A real Prometheus at a real cluster with TLS and users: targets, rules and boards find their series, and what breaks raises its alert.

The tests share one cluster and run in the order of this file; each leaves it whole but the last one, which kills two of three nodes.
"""

from __future__ import annotations

import contextlib
import math
import os
import re

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from broker.metrics.catalog import METRICS
from tests import needs
from tests.cluster.attack.requests import declared
from tests.cluster.monitoring.conftest import SMALL_DISK
from tests.cluster.monitoring.watched import NAME_SERVER, Watched
from tests.monitoring_files import Shown, rules, selectors, shown
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1200)

# Of the machine that runs the tests: what it shows, and from where on an alert says so rightly.  Figures of 5 min or 15 min last that long.
OF_THE_MACHINE = {
    "DledgerDiskUsed": (f'max(dledger_store_disk_used_ratio{{node!="{SMALL_DISK}"}})', 0.75),
    "DledgerSlowFsync": ("max(cluster_group_node:dledger_log_fsync_seconds:p99_5m)", 0.5),
    "DledgerSlowCommit": ("max(cluster_group:dledger_raft_commit_seconds:p99_5m)", 1.0),
    "DledgerLoopLag": ("max(max_over_time(dledger_loop_lag_seconds[1m]))", 0.2),
    "DledgerHighLeaderChanges": ("max(increase(dledger_raft_leader_changes_total[15m]))", 3.9),
}


def as_grafana_asks(expr: str) -> str:
    """With everything chosen; a filter at the end, which gives nothing while all is well, is taken off."""
    return re.sub(r" > 0$", " >= 0", re.sub(r"\$(?!__)\w+", ".*", expr.replace("$__rate_interval", "1m")))


def has_values(watching: Watched, expr: str) -> bool:
    """Whether there is a series with a number; NaN is what a quantile of nothing gives."""
    return any(not math.isnan(float(series["value"][1])) for series in watching.prometheus.query(expr))


def test_every_target_is_up_and_shows_the_user_of_the_scrape_config_only_what_it_may(watching: Watched) -> None:
    wait_until(lambda: watching.prometheus.value('sum(up{job="dledger"})') == 4, lambda: str(watching.prometheus.ask("targets")))
    for series in watching.prometheus.query('up{job="dledger"}'):
        labels = series["metric"]
        assert watching.targets[labels["node"]] == (labels["group"], labels["instance"])
        # One scrape may be too late on a busy machine.
        told = watching.prometheus.query(f'last_over_time(dledger_build_info{{instance="{labels["instance"]}"}}[1m])')
        assert [(each["metric"]["group"], each["metric"]["node"], each["metric"]["cluster"]) for each in told] == [
            (labels["group"], labels["node"], "tested")
        ]


def test_every_metric_of_the_catalogue_is_collected(watching: Watched) -> None:
    def missing() -> list[str]:
        watching.traffic.step()
        names = set(watching.prometheus.ask("label/__name__/values"))
        suffix = {"histogram": "_bucket", "counter": "", "gauge": ""}
        return [metric.name for metric in METRICS if metric.name + suffix[metric.kind] not in names]

    wait_until(lambda: not missing(), lambda: f"series of {missing()}", limit_s=90)


def test_every_expression_of_rules_and_boards_finds_series(watching: Watched) -> None:
    asked = [Shown(rule.file, rule.name, rule.expr) for rule in rules() if not rule.is_alert]
    asked += [Shown(rule.file, rule.name, each.text) for rule in rules() if rule.is_alert for each in selectors(rule.expr)]
    asked += [Shown(each.board, each.panel, as_grafana_asks(each.expr)) for each in shown()]
    assert len(asked) > 120
    empty = asked

    def none_is_empty() -> bool:
        nonlocal empty
        watching.traffic.step()
        empty = [each for each in empty if not has_values(watching, each.expr)]
        return not empty

    wait_until(none_is_empty, lambda: "values of\n" + "\n".join(map(str, empty)), limit_s=120)
    broken = [rule for group in watching.prometheus.ask("rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]
    assert not broken


def test_what_runs_well_raises_no_alert(watching: Watched) -> None:
    """But the two that the traffic is made to raise: a dead letter, and a consumer that does not come along.  And what is told of this
    machine if its disk is rather full, or it is slow."""
    prometheus = watching.prometheus
    prometheus.wait_firing("DledgerDeadLetters", "warning", consumer_group="mailer")

    def shown_by_machine(expr: str, rightly_from: float) -> bool:
        return prometheus.value(expr) > rightly_from

    def unexpected() -> set[str]:
        told = {name for name, _ in prometheus.firing()} - {"DledgerDeadLetters", "DledgerConsumerLagSeconds"}
        return {name for name in told if name not in OF_THE_MACHINE or not shown_by_machine(*OF_THE_MACHINE[name])}

    wait_until(lambda: not unexpected(), lambda: f"no other alert: {unexpected()}, {sorted(prometheus.firing())}", limit_s=60)


def test_a_stock_client_finds_every_service_of_a_node_and_of_a_name_server(watching: Watched) -> None:
    """docs/guides/operate/index.md: without credentials."""
    authority = grpc.ssl_channel_credentials(watching.secured.ca.read_bytes())
    ours = {path.split("/")[1] for path in declared()}
    for address, least in ((watching.secured.address, ours), (name_server(watching), {"dledger.v1.NameService"})):
        with grpc.secure_channel(address, authority) as channel:
            found = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        assert found >= least | {"grpc.health.v1.Health"}


def name_server(watching: Watched) -> str:
    return str(next(each.address for each in watching.cluster.config.name_server_processes if each.id == NAME_SERVER))


def test_a_follower_that_hangs_is_named_and_the_alerts_end_when_it_goes_on(watching: Watched) -> None:
    cluster, prometheus = watching.cluster, watching.prometheus
    victim = next(node for node in cluster.local.node_ids() if node != cluster.leader())
    cluster.pause(victim)
    try:
        watching.traffic.step()
        prometheus.wait_firing("DledgerMembersDown", "warning", node=victim, group="g0")
        prometheus.wait_firing("DledgerUnderReplicated", "warning", group="g0")
        alert = prometheus.wait_firing("DledgerPeerLag", "warning", peer=victim, group="g0")
        assert f"{victim} of g0 lags" in alert["annotations"]["summary"]
        assert "DledgerInsufficientMembers" not in {name for name, _ in prometheus.firing()}
    finally:
        cluster.resume(victim)
    prometheus.wait_quiet("DledgerPeerLag", "DledgerUnderReplicated", "DledgerMembersDown")


def test_a_damaged_segment_pages_at_once(watching: Watched) -> None:
    cluster, prometheus = watching.cluster, watching.prometheus
    cluster.cli_ok("topic", "create", "large", "--queues", "1")
    assert cluster.produce("large", [b"%06d " % number + b"y" * 5000 for number in range(1500)])["acknowledged"] == 1500
    cluster.wait_equal()
    victim = next(node for node in cluster.local.node_ids() if node not in (cluster.leader(), SMALL_DISK))
    cluster.kill(victim)
    sealed = min((cluster.data / victim / "commitlog").iterdir())
    with open(sealed, "r+b") as file:
        file.seek(3_000_123)
        (byte,) = file.read(1)
        file.seek(3_000_123)
        file.write(bytes([byte ^ 0x10]))
    cluster.start(victim)
    alert = prometheus.wait_firing("DledgerCorruption", "critical", node=victim, group="g0")
    assert f"{victim} of g0 found 1 damaged entries" in alert["annotations"]["summary"]
    repairs = f'dledger_log_repairs_total{{node="{victim}"}}'
    wait_until(lambda: prometheus.value(repairs) == 1, lambda: f"it is repaired: {prometheus.value(repairs)}")
    cluster.terminate(victim)
    cluster.start(victim)
    prometheus.wait_quiet("DledgerCorruption", "DledgerMembersDown")


def test_a_full_disk_pages_and_the_alert_ends_when_there_is_room(watching: Watched) -> None:
    disk, prometheus = watching.cluster.data / SMALL_DISK, watching.prometheus
    if not os.path.ismount(disk):
        needs.lacking("this user cannot mount a small disk")
    cluster = watching.cluster
    if cluster.leader() != SMALL_DISK:
        cluster.cli_ok("leader", "transfer", "--to", SMALL_DISK)
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(64 << 10))
    watching.traffic.step()
    wait_until(lambda: cluster.leader() != SMALL_DISK, "a node with room leads")
    alert = prometheus.wait_firing("DledgerDiskUsed", "critical", node=SMALL_DISK, group="g0")
    assert re.fullmatch(rf"The disk of {SMALL_DISK} is used to (9\d(\.\d+)?|100)%", alert["annotations"]["summary"])
    prometheus.wait_firing("DledgerReadOnly", "critical", node=SMALL_DISK, group="g0")
    ballast.unlink()
    prometheus.wait_quiet("DledgerDiskUsed", node=SMALL_DISK)  # the other nodes have the disk of this machine
    prometheus.wait_quiet("DledgerReadOnly", "DledgerUnderReplicated")
    cluster.wait_healthy()


def test_a_killed_leader_is_named_and_a_second_one_ends_the_group(watching: Watched) -> None:
    cluster, prometheus = watching.cluster, watching.prometheus
    first = cluster.leader()
    cluster.kill(first)
    prometheus.wait_firing("DledgerMembersDown", "warning", node=first, group="g0")
    prometheus.wait_firing("DledgerUnderReplicated", "warning", group="g0")
    second = cluster.leader()
    assert second != first
    quiet = {name for name, _ in prometheus.firing()}
    assert not quiet & {"DledgerNoLeader", "DledgerInsufficientMembers"}
    cluster.kill(second)
    prometheus.wait_firing("DledgerInsufficientMembers", "critical", group="g0")
    prometheus.wait_firing("DledgerNoLeader", "critical", group="g0")
