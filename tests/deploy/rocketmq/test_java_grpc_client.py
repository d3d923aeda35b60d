"""RocketMQ's Java client over gRPC, unmodified: all kinds of messages and consumers, nothing lost when a leader is killed."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import JavaClient, grpc_java_client
from tests.deploy.rocketmq.load import LOAD, PAUSE_MS, consumed_while_the_leader_is_killed, running
from tests.waiting import LIMIT_S, wait_until

SHOWN = ["normal", "async", "fifo", "delayed", "transactions", "again", "sql", "push"]
TRANSACTIONS = 5


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    return grpc_java_client(tmp_path_factory.mktemp("java"))


def endpoints(cluster: RocketmqCluster) -> str:
    return ";".join(cluster.status_json()["rocketmq"]["grpc"])


def test_every_kind_of_message_and_consumer(cluster: RocketmqCluster, client: JavaClient) -> None:
    cluster.cli_ok("topic", "create", "kinds", "--queues", "4")
    command = client.command("Kinds5", endpoints(cluster), "kinds")
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert lines == [f"ok {name}" for name in SHOWN], f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_nothing_is_lost_or_stored_twice_when_the_leader_is_killed(cluster: RocketmqCluster, client: JavaClient, kind: str) -> None:
    command = client.command("Load5", kind, endpoints(cluster), "load", "readers", str(LOAD), str(PAUSE_MS))
    consumed_while_the_leader_is_killed(cluster, command)


def test_the_next_leader_asks_what_became_of_transactions(cluster: RocketmqCluster, client: JavaClient) -> None:
    cluster.cli_ok("topic", "create", "paid", "--queues", "4")
    command = client.command("Load5", "checked", endpoints(cluster), "paid", "readers", str(TRANSACTIONS), "0")
    with running(command) as (account, process):
        wait_until(lambda: len(account.sent) == TRANSACTIONS, lambda: f"transactions are open: exit status {process.poll()}")
        cluster.kill(cluster.leader())
        assert not account.got
        assert process.stdin is not None
        process.stdin.write("\n")  # from now on it commits what it is asked for
        process.stdin.flush()
        assert process.wait(LIMIT_S) == 0
    assert account.sent == account.got.keys() == account.asked.keys() & account.sent
