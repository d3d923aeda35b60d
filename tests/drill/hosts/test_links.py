"""The switch between machines: what it carries, and each direction of a link that is cut, loses, delays, reorders or limits."""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_drill.hosts.capabilities import probe
from dledger_drill.hosts.machine import CountedLinks, LinkShape
from dledger_drill.hosts.network import DRILL, Network
from dledger_drill.hosts.processes import MachineProcess
from dledger_wire.errors import InvalidArgumentError
from tests import needs
from tests.drill.hosts.peer import Peer
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.cluster

# Answers each connection with the digest of all that it was sent.
SINK = """
import hashlib, socket, sys
with socket.create_server((sys.argv[1], 7001)) as server:
    while True:
        connection, digest = server.accept()[0], hashlib.sha256()
        while piece := connection.recv(1 << 20):
            digest.update(piece)
        connection.sendall(digest.digest())
        connection.close()
"""


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    capabilities = probe()
    if not capabilities.network:
        needs.lacking("; ".join(capabilities.why_not.values()))


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture
def pair(network: Network) -> Iterator[tuple[Peer, Peer]]:
    peers = Peer(network, "a"), Peer(network, "b")
    yield peers
    for peer in peers:
        peer.close()


def all_received(source: Peer, target: Peer) -> list[tuple[int, float]]:
    """What ``target`` got so far of ``source``, once nothing more is on the way; the links between them carry."""
    last = source.next_end()  # another one each time: that of an earlier call says nothing of what was sent since

    def ended() -> list[tuple[int, float]]:
        source.send(target, [last])
        received = target.received()
        return received if received and received[-1][0] == last else []

    return [datagram for datagram in wait_until(ended, "the datagram that ends") if datagram[0] >= 0]


def arrived(target: Peer, count: int) -> list[tuple[int, float]]:
    wait_until(lambda: len(target.received()) >= count, lambda: f"{count} datagrams, of which {len(target.received())} came")
    return target.received()


def test_it_carries_streams_whole_and_fast(network: Network) -> None:
    ip = network.add("sink")
    server = MachineProcess([sys.executable, "-I", "-S", "-c", SINK, ip], namespace=network.namespace("sink"))
    body = bytes(range(256)) * 4096 * 64  # 64 MiB
    try:
        with connected(ip) as connection:
            began = time.monotonic()
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == hashlib.sha256(body).digest()
            rate = len(body) / (time.monotonic() - began)
        assert rate > 1e6, f"{rate / 2**20:.0f} MiB/s, digest included"
    finally:
        server.kill()


def test_a_connection_outlives_a_cut_and_loses_nothing(network: Network) -> None:
    ip = network.add("sink")
    server = MachineProcess([sys.executable, "-I", "-S", "-c", SINK, ip], namespace=network.namespace("sink"))
    try:
        with connected(ip) as connection:
            connection.sendall(b"before")
            network.links.isolate("sink", [DRILL])
            connection.sendall(b"meanwhile")
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(100)
            network.links.heal()
            connection.settimeout(LIMIT_S)
            assert connection.recv(100) == hashlib.sha256(b"beforemeanwhile").digest()
    finally:
        server.kill()


def connected(ip: str) -> socket.socket:
    def connect() -> socket.socket | None:
        try:
            return socket.create_connection((ip, 7001), timeout=LIMIT_S)
        except ConnectionRefusedError:
            return None

    made = wait_until(connect, "a process that listens")
    assert made is not None
    return made


def test_each_direction_is_cut_by_itself(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    links: CountedLinks = network.links
    links.cut("a", "b")
    a.send(b, list(range(20)))
    b.send(a, list(range(20)))
    assert [number for number, _ in arrived(a, 20)] == list(range(20))
    wait_until(lambda: links.struck("a", "b") >= 20, "all to be dropped")
    assert links.struck("b", "a") == 0
    links.heal()
    assert all_received(a, b) == [], "what was sent while it was cut is lost"
    a.send(b, [7])
    assert 7 in [number for number, _ in all_received(a, b)]


def test_a_cut_takes_what_is_on_the_way(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    network.links.shape("a", "b", LinkShape(delay_ms=60_000))
    a.send(b, [1, 2, 3])
    network.links.cut("a", "b")
    network.links.heal()
    assert all_received(a, b) == []


def test_loss_takes_a_share_of_one_direction(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    network.links.shape("a", "b", LinkShape(loss=0.3))
    a.send(b, list(range(1000)), pause_s=0.0005)
    b.send(a, list(range(200)), pause_s=0.0005)
    network.links.heal()
    assert 550 < len(all_received(a, b)) < 800
    assert len(all_received(b, a)) == 200


def test_delay_is_of_one_direction(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    network.links.shape("a", "b", LinkShape(delay_ms=100))
    a.send(b, list(range(50)))
    b.send(a, list(range(50)))
    slow = sorted(seconds for _, seconds in arrived(b, 50))
    assert slow[0] > 0.099
    assert slow[25] < 10.0
    assert min(seconds for _, seconds in arrived(a, 50)) < 0.09


def test_jitter_spreads_and_keeps_the_order(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    network.links.shape("a", "b", LinkShape(delay_ms=100, jitter_ms=90))
    for number in range(10):  # one after the other: a burst comes with its slowest
        a.send(b, [number])
        arrived(b, number + 1)
    received = b.received()
    assert min(seconds for _, seconds in received) < max(seconds for _, seconds in received) - 0.02
    a.send(b, list(range(10, 210)))
    assert [number for number, _ in arrived(b, 210)] == list(range(210))


def test_reordered_frames_come_late_and_none_is_lost(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    network.links.shape("a", "b", LinkShape(reorder=0.2))
    a.send(b, list(range(300)))
    numbers = [number for number, _ in arrived(b, 300)]
    assert sorted(numbers) == list(range(300))
    late = sum(number < max(numbers[:place], default=0) for place, number in enumerate(numbers))
    assert 20 <= late <= 120


def test_a_limited_rate_queues_and_then_drops(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    network.links.shape("a", "b", LinkShape(bytes_per_s=100_000))
    began_s = time.monotonic()
    a.send(b, list(range(20)), size=1000)
    arrived(b, 20)
    assert time.monotonic() - began_s > 0.19  # from the first one's start: a slow sender's last one waits less by itself
    a.send(b, list(range(20, 470)), size=1000)
    network.links.heal()
    assert 100 < len(all_received(a, b)) < 350


def test_what_is_not_there_is_named(network: Network) -> None:
    with pytest.raises(InvalidArgumentError, match="no machine 'b'"):
        network.links.cut(DRILL, "b")


def test_loop_disks_and_namespaces_are_seen_by_one_process(network: Network, tmp_path: Path) -> None:
    """The starter's thread began before this process had mounts of its own."""
    from dledger_drill.hosts import loop_disk

    if reason := loop_disk.missing():
        needs.lacking(reason)
    network.add("a")
    disk = loop_disk.LoopDisk(tmp_path / "disk", None, size_bytes=32 << 20)
    try:
        (disk.path / "file").write_text("on the disk")
        log = tmp_path / "log"
        command = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", str(disk.path / "file")]
        assert MachineProcess(command, log=log, namespace=network.namespace("a")).wait(LIMIT_S) == 0
        assert log.read_text() == "on the disk\n"
    finally:
        disk.close()
