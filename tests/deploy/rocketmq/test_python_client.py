"""RocketMQ's Python client over gRPC, unmodified: all kinds of messages and consumers, nothing lost or stored twice when nodes die."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import PYTHON_PROGRAMS, python_client
from tests.deploy.rocketmq.load import MESSAGES, PAUSE_MS, running
from tests.waiting import LIMIT_S, wait_until

LOAD = 300
SENT = {"normal", "asynchronous", "fifo", "delayed", "recalled", "priority", "large", "transactions"}
BODIES = {"normal", "async", "fifo0", "fifo1", "fifo2", "delayed", "priority", "x" * 900_000, "committed", "checked"}


@pytest.fixture(scope="module")
def client() -> str:
    return python_client()


def endpoints(cluster: RocketmqCluster) -> str:
    return ";".join(cluster.status_json()["rocketmq"]["grpc"])


def test_every_kind_of_message_is_sent(cluster: RocketmqCluster, client: str) -> None:
    cluster.cli_ok("topic", "create", "kinds", "--queues", "4")
    command = [client, str(PYTHON_PROGRAMS / "sends.py"), "kinds", endpoints(cluster), "kinds"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert not [line for line in lines if line.startswith("bad ")], done.stdout
    assert {line.removeprefix("ok ") for line in lines} == SENT, f"{done.stdout}\n{done.stderr}"
    found = cluster.consume("kinds", len(BODIES))
    assert sorted(body.decode() for body in found) == sorted(BODIES)


def test_nothing_is_lost_or_stored_twice_when_leaders_are_killed_and_paused(cluster: RocketmqCluster, client: str) -> None:
    cluster.cli_ok("topic", "create", "load", "--queues", "4")
    command = [client, str(PYTHON_PROGRAMS / "sends.py"), "load", endpoints(cluster), "load", str(MESSAGES), str(PAUSE_MS)]
    with running(command) as (account, process):
        wait_until(lambda: len(account.sent) > MESSAGES // 7, "the load has begun")
        killed = cluster.leader()
        cluster.kill(killed)
        wait_until(lambda: len(account.sent) > 3 * MESSAGES // 7, "the load went on without the killed leader")
        cluster.start(killed)
        assert process.wait(2 * LIMIT_S) == 0
    stored = Counter(body.decode() for body in cluster.consume("load", len(account.sent)))
    assert account.sent <= stored.keys(), sorted(account.sent - stored.keys())
    assert not [body for body, times in stored.items() if times > 1]
    assert len(account.failed) < MESSAGES // 20, account.failed


def test_every_kind_of_consumer(cluster: RocketmqCluster, client: str) -> None:
    cluster.cli_ok("topic", "create", "consumed", "--queues", "4")
    command = [client, str(PYTHON_PROGRAMS / "consumes.py"), "kinds", endpoints(cluster), "consumed", "g"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert lines == ["ok simple", "ok again", "ok filters", "ok push"], f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_a_group_gets_every_message_although_its_leader_is_killed(cluster: RocketmqCluster, client: str, kind: str) -> None:
    cluster.cli_ok("topic", "create", "load", "--queues", "4")
    at = endpoints(cluster)
    consuming = [client, str(PYTHON_PROGRAMS / "consumes.py"), kind, at, "load", "readers", str(LOAD)]
    sending = [client, str(PYTHON_PROGRAMS / "sends.py"), "load", at, "load", str(LOAD), str(PAUSE_MS)]
    with running(consuming) as (consumed, _), running(sending) as (sent, producer):
        wait_until(lambda: len(consumed.got) > LOAD // 7, "messages are consumed")
        killed = cluster.leader()
        cluster.kill(killed)
        wait_until(lambda: len(consumed.got) > 4 * LOAD // 7, "messages are consumed without the killed leader")
        cluster.start(killed)
        assert producer.wait(LIMIT_S) == 0
        wait_until(lambda: sent.sent <= consumed.got.keys(), lambda: f"consumed {sorted(sent.sent - consumed.got.keys())}, {sent.failed}")
    assert consumed.delivered_again < LOAD // 2
