"""RocketMQ's Python client over gRPC that signs, unmodified: it may do what the rules of its user allow."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack

from tests.cluster.rocketmq import RocketmqCluster
from tests.cluster.test_remoting_users import cluster as cluster
from tests.cluster.users import secrets_of_users
from tests.deploy.rocketmq.clients import PYTHON_PROGRAMS, python_client
from tests.deploy.rocketmq.load import running
from tests.waiting import LIMIT_S, wait_until


def sent(cluster: RocketmqCluster, client: str, name: str, secret: str) -> str:
    """What three sends of a user to topic orders printed."""
    command = [client, str(PYTHON_PROGRAMS / "sends.py"), "load", ";".join(cluster.status_json()["rocketmq"]["grpc"]), "orders", "3", "0"]
    keys = {"ACCESS_KEY": name, "SECRET_KEY": secret}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | keys)
    return done.stdout


def test_sends_are_signed_and_refused_without_rights_or_with_another_secret(cluster: RocketmqCluster) -> None:
    client, secrets = python_client(), secrets_of_users(cluster)
    assert [line for line in sent(cluster, client, "shop", secrets["shop"]).splitlines() if " m" in line][:3] == [
        "sent m0",
        "sent m1",
        "sent m2",
    ]
    for name, secret in (("audit", secrets["audit"]), ("shop", "wrong"), ("", "")):
        assert "sent" not in sent(cluster, client, name, secret)
    assert cluster.consume("orders", 9) == [b"m0", b"m1", b"m2"]


def test_who_may_only_consume_does_so_by_its_group_alone(cluster: RocketmqCluster) -> None:
    client, secrets = python_client(), secrets_of_users(cluster)
    assert "sent m2" in sent(cluster, client, "shop", secrets["shop"])
    assert "sent" not in sent(cluster, client, "audit", secrets["audit"])
    others, readers = (consuming(cluster, client, group) for group in ("others", "readers"))
    with ExitStack() as stack:
        refused = [
            stack.enter_context(running(command, ACCESS_KEY=name, SECRET_KEY=secret))
            for command, name, secret in (
                (others, "audit", secrets["audit"]),
                (readers, "shop", secrets["shop"]),
                (readers, "audit", "wrong"),
                (readers, "", ""),
            )
        ]
        wait_until(lambda: all(account.failed or process.poll() is not None for account, process in refused), "all are refused")
    assert not any(account.got for account, _ in refused)
    with running(readers, ACCESS_KEY="audit", SECRET_KEY=secrets["audit"]) as (account, process):
        assert process.wait(LIMIT_S) == 0
    assert account.got.keys() == {"m0", "m1", "m2"}


def consuming(cluster: RocketmqCluster, client: str, group: str) -> list[str]:
    endpoints = ";".join(cluster.status_json()["rocketmq"]["grpc"])
    return [client, str(PYTHON_PROGRAMS / "consumes.py"), "simple", endpoints, "orders", group, "3"]
