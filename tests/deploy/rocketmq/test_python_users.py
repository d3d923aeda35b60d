"""RocketMQ's Python client over gRPC that signs, unmodified: it may do what the rules of its user allow."""

from __future__ import annotations

import os
import subprocess

from tests.cluster.rocketmq import RocketmqCluster
from tests.cluster.test_remoting_users import cluster as cluster
from tests.cluster.users import secrets_of_users
from tests.deploy.rocketmq.clients import PYTHON_PROGRAMS, python_client
from tests.waiting import LIMIT_S


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
