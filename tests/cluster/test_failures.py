"""Nodes killed, paused, cut off and out of space: what is acknowledged stays, and the group goes on or says why not."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger_client import Message, Producer
from dledger_wire.errors import DledgerError
from tests.cluster.harness import Cluster


def make_topic(cluster: Cluster, name: str = "t", queues: int = 1) -> None:
    cluster.cli_ok("topic", "create", name, "--queues", str(queues))


def test_kill_of_each_node_in_turn_loses_nothing(cluster: Cluster) -> None:
    make_topic(cluster)
    bodies: list[bytes] = []
    for victim in [*cluster.local.node_ids(), cluster.leader()]:
        batch = [b"%s %d" % (victim.encode(), len(bodies) + n) for n in range(100)]
        cluster.kill(victim)
        assert cluster.produce("t", batch)["acknowledged"] == 100
        bodies += batch
        cluster.start(victim)
    cluster.wait_equal()
    assert cluster.consume("t", 400) == bodies
    assert cluster.consume("t", 400, "--follower") == bodies
    cluster.cli_ok("verify", "--online")


def test_leader_killed_under_load_loses_and_doubles_nothing(cluster: Cluster) -> None:
    make_topic(cluster, queues=2)
    acknowledged: list[int] = []
    with Producer(bootstrap=cluster.bootstrap, group="load") as producer:

        def kill() -> None:
            while len(acknowledged) < 300:
                time.sleep(0.005)
            cluster.kill(cluster.leader())

        killer = threading.Thread(target=kill)
        killer.start()
        futures = []
        for number in range(3000):
            future = producer.send_async(Message("t", b"%d" % number, keys=str(number)))
            future.add_done_callback(lambda done, number=number: acknowledged.append(number) if done.exception() is None else None)
            futures.append(future)
            if number % 50 == 0:
                time.sleep(0.01)
        for future in futures:
            future.result(30)
        killer.join()
    found = [int(body) for body in cluster.consume("t", 4000)]
    assert sorted(found) == list(range(3000)) == sorted(acknowledged)


def test_without_majority_writes_fail_at_their_deadline_and_come_back(cluster: Cluster) -> None:
    make_topic(cluster)
    assert cluster.produce("t", [b"before"])["acknowledged"] == 1
    stopped = [node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader()]
    for node_id in stopped:
        cluster.kill(node_id)
    start = time.monotonic()
    result = cluster.cli("produce", "t", "--timeout", "2", stdin=b"during\n")
    assert result.returncode == 1
    assert 1.5 < time.monotonic() - start < 15
    assert result.stderr.startswith("dledger: ")
    assert "no quorum" in cluster.cli("status").stdout
    cluster.start(stopped[0], wait=False)
    cluster.leader(20)
    assert cluster.produce("t", [b"after"])["acknowledged"] == 1
    cluster.start(stopped[1])
    found = cluster.consume("t", 3)
    assert [body for body in found if body != b"during"] == [b"before", b"after"]


def test_a_paused_follower_and_a_paused_leader(cluster: Cluster) -> None:
    make_topic(cluster)
    follower = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    cluster.pause(follower)
    assert cluster.produce("t", [b"%d" % n for n in range(50)])["acknowledged"] == 50
    cluster.resume(follower)
    cluster.wait_equal()
    leader = cluster.leader()
    cluster.pause(leader)
    assert cluster.produce("t", [b"%d" % n for n in range(50, 100)])["acknowledged"] == 50
    cluster.resume(leader)
    cluster.wait_equal()
    assert cluster.leader() != leader
    assert cluster.consume("t", 100) == [b"%d" % n for n in range(100)]


def test_bad_requests_are_refused_with_their_reason(cluster: Cluster) -> None:
    result = cluster.cli("produce", "nowhere", "--timeout", "5", stdin=b"x\n")
    assert result.returncode == 1
    assert "nowhere" in result.stderr
    assert len(result.stderr.splitlines()) <= 2

    make_topic(cluster, "ro")
    cluster.cli_ok("topic", "update", "ro", "--perm", "4")
    assert cluster.cli("produce", "ro", "--timeout", "5", stdin=b"x\n").returncode == 1

    make_topic(cluster, "small")
    too_large = cluster.cli("produce", "small", "--timeout", "5", stdin=b"x" * ((1 << 20) + 1) + b"\n")
    assert too_large.returncode == 1
    assert cluster.produce("small", [b"ok"])["acknowledged"] == 1

    assert "exists" in cluster.cli("topic", "create", "small").stderr
    assert cluster.cli("topic", "create", "small", "--if-not-exists").returncode == 0
    assert cluster.cli("topic", "create", "bad name!").returncode == 1
    assert cluster.cli("topic", "describe", "nowhere").returncode == 1
    with pytest.raises(DledgerError), Producer(bootstrap=cluster.bootstrap, group="t") as producer:
        producer.send(Message("nowhere", b"x"))


def test_leader_transfer_by_command(cluster: Cluster) -> None:
    make_topic(cluster)
    leader = cluster.leader()
    target = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    result = cluster.cli("leader", "transfer", "--to", target)
    assert result.returncode == 0, result.stderr
    assert f"{leader} -> {target}" in result.stderr
    assert cluster.leader() == target
    assert cluster.cli("leader", "transfer", "--to", "n9").returncode == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Put a folder on a disk of 48 MiB of its own."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small disk here: {done.stderr.decode().strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_follower_whose_disk_is_full_does_not_stop_the_group(
    make_cluster: Callable[..., Cluster], small_disk: Callable[[Path], None]
) -> None:
    cluster = make_cluster()
    small_disk(cluster.data / "n2")
    cluster.start()
    if cluster.leader() == "n2":
        cluster.cli_ok("leader", "transfer", "--to", "n0")
    make_topic(cluster)
    ballast = cluster.data / "n2" / "ballast"
    with open(ballast, "wb") as file:
        free = os.statvfs(cluster.data / "n2")
        file.write(b"\0" * max(0, free.f_bavail * free.f_frsize - (2 << 20)))
    bodies = [b"%06d " % n + b"x" * 10_000 for n in range(2000)]
    assert cluster.produce("t", bodies)["acknowledged"] == 2000
    state = cluster.statuses()["n2"].status
    assert state is not None
    assert state.state.startswith("read-only"), state.state
    ballast.unlink()


def test_verify_names_the_flipped_byte(cluster: Cluster) -> None:
    make_topic(cluster)
    assert cluster.produce("t", [b"%06d " % n + b"y" * 5000 for n in range(2000)])["acknowledged"] == 2000
    cluster.stop()
    assert cluster.cli("verify", "--data", str(cluster.data)).returncode == 0
    segments = sorted((cluster.data / "n1" / "commitlog").iterdir())
    sealed = segments[0]
    with open(sealed, "r+b") as file:
        file.seek(1_000_000)
        old = file.read(1)
        file.seek(1_000_000)
        file.write(bytes([old[0] ^ 0x10]))
    result = cluster.cli("verify", "--data", str(cluster.data))
    assert result.returncode == 1
    assert f"n1/commitlog/{sealed.name}" in result.stdout + result.stderr
    assert "entry" in result.stdout + result.stderr
    assert cluster.cli("verify", "--data", str(cluster.data / "n0")).returncode == 0
