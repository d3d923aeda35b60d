"""RocketMQ's Java clients, unmodified: every kind of message and consumer, and nothing lost or stored twice when nodes die."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.remoting.codes import Request
from dledger_client import Action, ConsumeContext, PullConsumer, PushConsumer, ReceivedMessage
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.deploy.rocketmq.clients import VERSIONS, JavaClient, java_client
from tests.deploy.rocketmq.load import (
    MESSAGES,
    PAUSE_MS,
    REST_S,
    ROLLED,
    Account,
    loaded_while_leaders_fail,
    loaded_while_nodes_restart,
    running,
)
from tests.waiting import LIMIT_S, wait_until

NO_REPLIES = "5.3.3"  # ends a request when it was sent, before its reply
SHOWN = {
    *("sync", "async", "batch", "concurrently", "retry", "orderly"),
    *("transactions", "by id", "by key", "sql", "lite pull", "traces"),
}


@pytest.fixture
def named(tmp_path: Path) -> Iterator[RocketmqCluster]:
    """With name servers of its own."""
    made = RocketmqCluster(tmp_path / "data", name_servers=2)
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module", params=VERSIONS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    return java_client(request.param, tmp_path_factory.mktemp("java"))


def test_every_kind_of_message_and_consumer(cluster: RocketmqCluster, client: JavaClient) -> None:
    cluster.cli_ok("topic", "create", "kinds", "--queues", "4")
    cluster.cli_ok("topic", "create", "RMQ_SYS_TRACE_TOPIC", "--queues", "1")
    command = client.command("Kinds", ";".join(cluster.name_servers), "kinds")
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert not [line for line in lines if line.startswith("bad ")], done.stdout
    assert {line.removeprefix("ok ") for line in lines} == SHOWN, f"{done.stdout}\n{done.stderr}"


def test_clients_that_know_only_the_name_servers(named: RocketmqCluster, client: JavaClient) -> None:
    named.cli_ok("topic", "create", "kinds", "--queues", "4")
    servers = [named.remoting(server) for server in named.local.name_server_ids()]
    for server in servers:
        wait_until(lambda at=server: not ask(at, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "kinds"}).code, "the topic is known")
    with running(client.command("Load", ";".join(servers), "kinds", "readers", "200", str(PAUSE_MS), "60", "m")) as (account, process):
        wait_until(lambda: len(account.sent) > 50, lambda: f"the load has begun: {account.failed[:3]}, exit status {process.poll()}")
        named.kill(named.local.name_server_ids()[0])
        assert process.wait(2 * LIMIT_S) == 0
    assert (len(account.sent), account.failed) == (200, [])
    assert account.sent == account.got.keys()
    assert not account.stored_twice


def test_nothing_is_lost_or_stored_twice_when_leaders_are_killed_and_paused(cluster: RocketmqCluster, client: JavaClient) -> None:
    cluster.cli_ok("topic", "create", "load", "--queues", "4")
    servers = ";".join(cluster.name_servers)
    loaded_while_leaders_fail(cluster, client.command("Load", servers, "load", "readers", str(MESSAGES), str(PAUSE_MS), str(REST_S), "m"))


def test_a_rolling_restart_loses_nothing_and_keeps_the_order(cluster: RocketmqCluster, client: JavaClient) -> None:
    servers = ";".join(cluster.name_servers)
    loaded_while_nodes_restart(cluster, client.command("Load", servers, "load", "readers", *ROLLED, "m"))


@pytest.mark.parametrize("client", [version for version in VERSIONS if version != NO_REPLIES], indirect=True)
def test_requests_are_answered_or_time_out_also_when_the_leader_is_killed(cluster: RocketmqCluster, client: JavaClient) -> None:
    """Never by the reply to another one."""
    cluster.cli_ok("topic", "create", "questions", "--queues", "2")
    command = client.command("Replies", ";".join(cluster.name_servers), "questions", "300", "20")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = list[str]()

    def read() -> None:
        assert process.stdout is not None
        lines.extend(line.strip() for line in process.stdout)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        wait_until(lambda: sum(line.startswith("answered ") for line in lines) > 100, "requests were answered")
        assert not [line for line in lines if line.startswith(("timeout ", "failed "))]
        killed = cluster.leader()
        cluster.kill(killed)
        answered = len(lines)
        wait_until(lambda: sum(line.startswith("answered ") for line in lines[answered + 1 :]) > 50, "requests are answered again")
        cluster.start(killed)
        assert process.wait(2 * LIMIT_S) == 0, lines[-5:]
    finally:
        process.kill()
        reading.join()
    kinds = Counter(line.split()[0] for line in lines)
    assert not kinds["wrong"], [line for line in lines if line.startswith("wrong ")]
    assert kinds["answered"] + kinds["timeout"] + kinds["failed"] == 300
    assert kinds["answered"] > 250, kinds


def test_a_timed_message_is_recalled(cluster: RocketmqCluster, tmp_path: Path) -> None:
    cluster.cli_ok("topic", "create", "recalled", "--queues", "1")
    command = java_client(VERSIONS[-1], tmp_path).command("Recall", ";".join(cluster.name_servers), "recalled")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    recalled, late = [line for line in done.stdout.splitlines() if line.startswith(("recalled ", "bad ", "code "))]
    assert len(set(recalled.removeprefix("recalled ").split(" of "))) == 1, done.stdout
    assert late == "code 604"
    with PullConsumer(cluster.bootstrap) as consumer:
        assert [message.body for message in consumer.fetch("recalled", 0, 0, 10)] == [b"kept"]
        assert consumer.fetch("recalled", 0, 1, 10, wait_ms=4000) == []


def test_members_of_two_versions_and_a_native_one_share_a_group(cluster: RocketmqCluster, tmp_path: Path) -> None:
    """RocketMQ's clients share queues out by themselves, by the list of members that they get: it is one for all kinds of members."""
    cluster.cli_ok("topic", "create", "shared", "--queues", "6")
    accounts, servers = [Account(), Account()], ";".join(cluster.name_servers)
    processes, readers = list[subprocess.Popen[str]](), list[threading.Thread]()
    received: Counter[str] = Counter()

    def note(messages: list[ReceivedMessage], _context: ConsumeContext) -> Action:
        received.update(message.body.decode() for message in messages)
        return Action.COMMIT

    native = PushConsumer(cluster.bootstrap, "shared", note)
    native.subscribe("shared")
    with native:
        try:
            for prefix, account, version in zip("ab", accounts, VERSIONS[::2], strict=True):
                command = java_client(version, tmp_path).command("Load", servers, "shared", "shared", "300", "20", "5", prefix)
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
                readers.append(threading.Thread(target=account.read, args=[processes[-1]]))
                readers[-1].start()
            for process in processes:
                assert process.wait(LIMIT_S) == 0
            sent = accounts[0].sent | accounts[1].sent
            wait_until(lambda: sent <= received.keys() | accounts[0].got.keys() | accounts[1].got.keys(), "all was consumed")
        finally:
            for process, reader in zip(processes, readers, strict=True):
                process.kill()
                reader.join()
    assert len(sent) == 600
    assert all(share for share in (received, accounts[0].got, accounts[1].got)), "each had queues"
