"""A spare node of a secured cluster, whose certificate names no replica group, becomes a member; before, it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dledger_cli.local.ports import free_ports
from dledger_wire.rpc import methods
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue
from tests.cluster.attack import secured_cluster
from tests.cluster.attack.by_hand import Identity
from tests.cluster.attack.secured_cluster import CLUSTER, HOSTS
from tests.waiting import wait_until


def test_a_spare_node_is_a_replica_once_it_was_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    spares = [{"id": "sp0", "address": f"127.0.0.1:{port}", "host": "h9"}]
    secured = secured_cluster.make(tmp_path / "s", more={"spares": spares, "replicas": {"replaceAfter": "3s"}})
    issue(secured.authority, principal.node(CLUSTER, "-", "sp0"), HOSTS).write(str(secured.folder / "sp0"))
    for name, value in secured_cluster.environment(secured.folder).items():
        monkeypatch.setenv(name, value)
    cluster, stolen = secured.cluster, Identity(secured.folder / "sp0")
    try:
        cluster.start()
        request = methods.COPY_PLAN.request(cluster=CLUSTER, group="g0", node_id="sp0")
        assert secured.call(stolen, methods.COPY_PLAN, request).code == "PERMISSION_DENIED"
        assert "sp0" not in voters(secured)
        victim = next(node_id for node_id in ("n0", "n1", "n2") if node_id != cluster.leader())
        cluster.kill(victim)
        wait_until(lambda: "sp0" in voters(secured), lambda: secured.log_text()[-4000:])
        secured.cluster.cli_ok("topic", "create", "t", "--queues", "1")
        assert cluster.produce("t", [b"with it"])["acknowledged"] == 1
        assert secured.call(stolen, methods.COPY_PLAN, request).code != "PERMISSION_DENIED"
    finally:
        cluster.end()


def voters(secured: secured_cluster.Secured) -> list[str]:
    return list(json.loads(secured.cluster.cli("status", "--json").stdout)["groups"][0]["voters"])
