"""RocketMQ's Go client, version 2, unmodified: every kind of message and consumer, and nothing lost or stored twice when nodes die."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import go_client
from tests.deploy.rocketmq.load import MESSAGES, PAUSE_MS, REST_S, ROLLED, loaded_while_leaders_fail, loaded_while_nodes_restart
from tests.waiting import LIMIT_S

SHOWN = {
    *("sync", "async", "batch", "compressed", "delayed", "timed", "concurrently", "retry", "orderly"),
    *("transactions", "sql", "poll", "pull", "offset by time"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> str:
    return go_client(tmp_path_factory.mktemp("go"))


def test_every_kind_of_message_and_consumer(cluster: RocketmqCluster, client: str) -> None:
    cluster.cli_ok("topic", "create", "kinds", "--queues", "4")
    command = [client, "kinds", ";".join(cluster.name_servers), "kinds"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("bad ")], done.stdout
    assert {line.removeprefix("ok ") for line in lines} == SHOWN, f"{done.stdout}\n{done.stderr}"


def test_nothing_is_lost_or_stored_twice_when_leaders_are_killed_and_paused(cluster: RocketmqCluster, client: str) -> None:
    cluster.cli_ok("topic", "create", "load", "--queues", "4")
    servers = ";".join(cluster.name_servers)
    loaded_while_leaders_fail(cluster, [client, "load", servers, "load", "readers", str(MESSAGES), str(PAUSE_MS), str(REST_S), "m"])


def test_a_rolling_restart_loses_nothing_and_keeps_the_order(cluster: RocketmqCluster, client: str) -> None:
    servers = ";".join(cluster.name_servers)
    loaded_while_nodes_restart(cluster, [client, "load", servers, "load", "readers", *ROLLED, "m"])
