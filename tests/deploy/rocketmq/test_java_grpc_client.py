"""RocketMQ's Java client over gRPC, unmodified: all kinds of messages and consumers, with its checks of open transactions."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import grpc_java_client
from tests.waiting import LIMIT_S

SHOWN = ["normal", "async", "fifo", "delayed", "transactions", "again", "sql", "push"]


def test_every_kind_of_message_and_consumer(cluster: RocketmqCluster, tmp_path: Path) -> None:
    client = grpc_java_client(tmp_path)
    cluster.cli_ok("topic", "create", "kinds", "--queues", "4")
    command = client.command("Kinds5", ";".join(cluster.status_json()["rocketmq"]["grpc"]), "kinds")
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert lines == [f"ok {name}" for name in SHOWN], f"{done.stdout}\n{done.stderr}"
