"""Connections of real nodes: strangers that hold theirs, a firewall that lets in what the cluster file names and nothing else."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests import needs
from tests.cluster.harness import ROOT, Cluster

HANDLES = 220
# Of a network of this process's own: two runs on one machine must not answer over each other's wire.
IN, OUT = (f"10.213.{os.getpid() // 64 % 256}.{os.getpid() % 64 * 4 + number}" for number in (1, 2))


def test_silent_connections_do_not_use_up_a_node(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(nodes=1)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    node = psutil.Process(cluster.processes["n0"].pid)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (HANDLES, HANDLES))
    host, port = cluster.config.node("n0").addresses[0].rsplit(":", 1)
    with contextlib.ExitStack() as held:
        for _ in range(400):
            connection = held.enter_context(socket.socket())
            connection.settimeout(30)
            connection.connect((host, int(port)))
        assert cluster.produce("t", [b"while they are there"])["acknowledged"] == 1
        assert node.num_fds() <= HANDLES
        for _ in range(100):  # what is there is closed, and may be followed by as much again
            connection = held.enter_context(socket.socket())
            connection.connect((host, int(port)))
    assert cluster.consume("t", 1) == [b"while they are there"]
    assert cluster.produce("t", [b"after"])["acknowledged"] == 1
    assert cluster.processes["n0"].poll() is None
    assert "Traceback" not in cluster.log_text("n0")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def walled() -> Iterator[Callable[[list[int]], list[str]]]:
    """Another network, which reaches this one only at the ports it is told; what a command has to begin with to run there."""
    needs.root()
    needs.program("ip")
    space = f"dl{os.getpid()}"
    near, far = f"{space}a"[-15:], f"{space}b"[-15:]
    try:
        ip("netns", "add", space)
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        needs.lacking(f"no network namespaces here: {error.stderr.decode().strip()}")

    def wall(ports: list[int]) -> list[str]:
        inside = ("-n", space)
        ip("addr", "add", f"{IN}/30", "dev", near)
        ip("link", "set", near, "up")
        ip(*inside, "addr", "add", f"{OUT}/30", "dev", far)
        ip(*inside, "link", "set", far, "up")
        ip(*inside, "link", "set", "lo", "up")
        for port in ports:
            ip(*inside, "rule", "add", "pref", "100", "ipproto", "tcp", "dport", str(port), "lookup", "main")
        ip(*inside, "rule", "add", "pref", "200", "to", IN, "prohibit")
        return ["ip", "netns", "exec", space]

    try:
        yield wall
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", near], capture_output=True, check=False)


PROGRAM = """
import socket, sys
from dledger_client import Admin, Message, Producer, PullConsumer

with socket.socket() as probe:
    probe.settimeout(5)
    try:
        probe.connect((sys.argv[1].rpartition(":")[0], int(sys.argv[2])))
        print("the wall has a hole")
    except OSError:
        pass
with Admin(sys.argv[1]) as admin, Producer(sys.argv[1]) as producer, PullConsumer(sys.argv[1]) as consumer:
    admin.create_topic("t", queues=1)
    producer.send(Message("t", b"through the wall"))
    print([message.body for message in consumer.fetch("t", 0, 0, linearizable=True)])
"""


def test_a_client_behind_a_firewall_needs_the_configured_port_only(
    make_cluster: Callable[..., Cluster], walled: Callable[[list[int]], list[str]]
) -> None:
    cluster = make_cluster(nodes=1)
    address = cluster.config.groups[0].nodes[0].address
    port = int(address.rpartition(":")[2])
    own = cluster.data / "reached-elsewhere.yaml"
    own.write_text(cluster.local.file.read_text().replace(f"address: {address}", f"address: {IN}:{port}\n    listen: 0.0.0.0:{port}"))
    cluster._files["n0"] = own
    command = walled([port])
    cluster.start()
    with socket.create_server((IN, 0)) as other:
        arguments = [sys.executable, "-c", PROGRAM, f"{IN}:{port}", str(other.getsockname()[1])]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.stdout.splitlines() == [str([b"through the wall"])], done.stderr
