"""Starting, stopping and refusing to start: up, down, second up, data folders and ports that are taken."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dledger_wire.rpc import methods
from tests.cluster.harness import Cluster, dledger, listening_addresses, send_garbage
from tests.waiting import LIMIT_S, wait_until


@pytest.fixture
def idle(make_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster that ``dledger up`` is to start."""
    return make_cluster()


def pids(cluster: Cluster) -> dict[str, int]:
    return {node["id"]: node["pid"] for node in cluster.status_json()["groups"][0]["nodes"]}


def test_up_twice_and_down_twice(idle: Cluster) -> None:
    data = str(idle.data)
    output = idle.cli_ok("up", "--data", data)
    assert "leader" in output
    assert output.splitlines()[-1] == "1 group, 3 of 3 nodes up, quorum ok (writes go on when one more node fails)"
    first = pids(idle)
    assert idle.cli("up", "--data", data).returncode == 0
    assert pids(idle) == first

    os.kill(first["n1"], signal.SIGKILL)
    assert idle.local.wait_stopped("n1", LIMIT_S)
    again = idle.cli("up", "--data", data)
    assert again.returncode == 0, again.stderr
    second = pids(idle)
    assert second["n1"] != first["n1"]
    assert (second["n0"], second["n2"]) == (first["n0"], first["n2"])

    assert idle.cli("down", "--data", data).returncode == 0
    assert idle.local.running() == {}
    assert idle.cli("status").returncode == 1
    assert idle.cli("down", "--data", data).returncode == 0


def test_two_commands_at_once_on_one_folder_follow_each_other(idle: Cluster) -> None:
    data = str(idle.data)
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: idle.cli("up", "--data", data), range(2)))
        assert [result.returncode for result in both] == [0, 0], [result.stderr for result in both]
        assert f"waiting for another command that starts or stops nodes in {data} (pid " in "".join(result.stderr for result in both)
        running = idle.local.running()
        assert set(running) == {"n0", "n1", "n2"}
        assert {name: int((idle.data / f"{name}.pid").read_text()) for name in running} == running
        stopping = pool.submit(idle.cli, "down", "--data", data)
        wait_until(lambda: len(idle.local.running()) < 3, "a node stops")
        assert pool.submit(idle.cli, "up", "--data", data).result().returncode == 0
        assert stopping.result().returncode == 0
    assert set(idle.local.running()) == {"n0", "n1", "n2"}
    idle.cli_ok("down", "--data", data)


def test_what_was_stored_is_there_after_down_and_up(idle: Cluster) -> None:
    data = str(idle.data)
    idle.cli_ok("up", "--data", data)
    idle.cli_ok("topic", "create", "kept", "--queues", "1")
    bodies = [b"message %d" % n for n in range(500)]
    assert idle.produce("kept", bodies)["acknowledged"] == 500
    idle.cli_ok("down", "--data", data)
    (idle.data / "n0" / "consumequeue" / "README").write_text("a file of somebody else, where only folders are")
    idle.cli_ok("up", "--data", data)
    assert idle.consume("kept", 500) == bodies
    idle.cli_ok("down", "--data", data)


def test_a_second_start_on_the_same_folder_is_refused(cluster: Cluster) -> None:
    pid = cluster.processes["n0"].pid
    result = dledger("node", "--config", str(cluster.local.file), "--id", "n0", "--data", str(cluster.data))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"dledger: data folder {cluster.data / 'n0'} is in use by pid {pid}"
    assert cluster.processes["n0"].poll() is None


def test_another_nodes_folder_is_refused(cluster: Cluster) -> None:
    cluster.stop()
    shutil.rmtree(cluster.data / "n1")
    shutil.copytree(cluster.data / "n0", cluster.data / "n1")
    result = dledger("node", "--config", str(cluster.local.file), "--id", "n1", "--data", str(cluster.data))
    assert result.returncode == 1
    assert "belongs to node n0 of replica group g0, cluster private, not to node n1" in result.stderr.splitlines()[-1]


def test_sigterm_hands_over_and_ends_with_0(cluster: Cluster) -> None:
    leader = cluster.leader()
    assert cluster.terminate(leader) == 0
    assert cluster.leader() != leader
    cluster.cli_ok("topic", "create", "after", "--queues", "1")
    cluster.start(leader)
    assert '"event": "stopping"' in cluster.log_text(leader)


def stream_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BI", kind, len(payload)) + payload


def garbage() -> list[bytes]:
    """What scanners, strangers and broken clients send: noise, other protocols, and beginnings of ours that go wrong."""
    noise = random.Random(7)
    paths = (methods.PRODUCE.path, methods.FETCH.path, methods.RAFT_LINK.path, "/a/B")
    openings = [stream_frame(0, json.dumps({"method": method, "metadata": {}}).encode()) for method in paths]
    return [
        b"",
        b"\x00" * 4096,
        b"\xff" * 4096,
        noise.randbytes(1 << 16),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise.randbytes(999),
        b"\x16\x03\x01\x02\x00\x01" + noise.randbytes(200),
        stream_frame(0, b"not json"),
        stream_frame(1, b"no opening before"),
        b"\x00\xff\xff\xff\xff",
        *(opening + stream_frame(1, noise.randbytes(5000)) for opening in openings),
        *(opening + noise.randbytes(5000) for opening in openings),
    ]


@pytest.mark.parametrize("how", ["started by hand", "nohup"])
def test_a_terminal_that_is_closed_stops_a_node_in_order(make_cluster: Callable[..., Cluster], how: str) -> None:
    """SIGHUP comes from the shell and from the kernel; ``nohup`` is heeded."""
    cluster = make_cluster(nodes=1)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if how == "nohup" else signal.SIG_DFL)
    try:
        cluster.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    process = cluster.processes["n0"]
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    if how == "nohup":
        cluster.cli_ok("topic", "create", "t")
        process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert '"stopping"' in cluster.log_text("n0")


def test_garbage_on_every_port_changes_nothing(cluster: Cluster) -> None:
    before = pids(cluster)
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    ports = {node_id: listening_addresses(pid) for node_id, pid in before.items()}
    for node_id, addresses in ports.items():
        assert set(addresses) == set(cluster.config.node(node_id).addresses), "nothing listens but what the cluster file names"
        for address in addresses:
            for data in garbage():
                send_garbage(address, data)
    assert cluster.produce("t", [b"after"])["acknowledged"] == 1
    cluster.wait_equal()
    assert cluster.consume("t", 1, "--follower") == [b"after"]
    assert pids(cluster) == before
    for node_id in ports:
        assert "Traceback" not in cluster.log_text(node_id)


def test_all_nodes_killed_at_once_and_up_again(idle: Cluster) -> None:
    data = str(idle.data)
    idle.cli_ok("up", "--data", data)
    idle.cli_ok("topic", "create", "kept", "--queues", "1")
    bodies = [b"%d" % n for n in range(2000)]
    assert idle.produce("kept", bodies)["acknowledged"] == 2000
    for pid in pids(idle).values():
        os.kill(pid, signal.SIGKILL)
    for node_id in idle.local.node_ids():
        assert idle.local.wait_stopped(node_id, LIMIT_S)
    assert idle.cli("consume", "kept", "--timeout", "1").returncode == 1
    idle.cli_ok("up", "--data", data)
    assert idle.consume("kept", 2000) == bodies
    idle.cli_ok("verify", "--online")
    idle.cli_ok("down", "--data", data)
    idle.cli_ok("verify", "--data", data)


def test_the_name_server_addresses_serve_as_bootstrap(cluster: Cluster) -> None:
    from dledger_client import Admin, Message, Producer

    for address in (server.address for server in cluster.config.name_servers):
        with Admin(bootstrap=address) as admin:
            admin.create_topic("by-name", queues=1, if_not_exists=True)
        with Producer(bootstrap=address, group="t") as producer:
            producer.send(Message("by-name", b"x"))
