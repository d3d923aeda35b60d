"""A cluster of the last release is upgraded node by node under load, goes back, and forward again to the switch: no send fails.

Behind the switch the last release is refused, by its own check of the folder and by its peers, and where nobody tells it, it stops.
docs/guides/operate/upgrade.md says what is done here.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_client import Admin, Message
from tests.cluster.world import Member, Sender
from tests.deploy.last_release import next_release, unpack
from tests.deploy.mixed_cluster import MixedCluster, OldProducer
from tests.waiting import LIMIT_MS, wait_until

TOPIC, QUEUES = "orders", 4
OLD_SAYS = "can do feature levels 0 to 0, and the replica group is at 1: start dledger 0.2.0 or newer"


@pytest.fixture(scope="module")
def old(module_folder: Path) -> Path:
    return unpack(module_folder / "last-release")


@pytest.fixture(scope="module")
def new(module_folder: Path) -> Path:
    return next_release(module_folder / "next-release")


class Load:
    """Producers and push consumers of both builds, all the time.  No body ends in 7, so no listener asks for a message again."""

    def __init__(self, cluster: MixedCluster, folder: Path) -> None:
        self.cluster = cluster
        self.sender = Sender("new")
        self.members = [Member(cluster, "new-readers", TOPIC, folder, "m0"), Member(cluster, "old-readers", TOPIC, folder, "m0")]
        self.members[1].root = cluster.old
        self._stop = threading.Event()
        self._sending = threading.Thread(target=self._send)
        self.old_producer = OldProducer(cluster, TOPIC, rate=10)

    def start(self) -> None:
        for member in self.members:
            member.start()
        self._sending.start()
        self.goes_on()

    def _send(self) -> None:
        self.sender.run(self.cluster.bootstrap, self._stop, 20, lambda number: (Message(TOPIC, b"new%d." % number), None))

    def goes_on(self) -> None:
        """What is sent from now on is stored, and both groups are given more."""
        before, given = len(self.sender.acknowledged), [len(member.given()) for member in self.members]
        wait_until(lambda: len(self.sender.acknowledged) > before + 20, "messages are stored")
        for member, count in zip(self.members, given, strict=True):
            wait_until(lambda member=member, count=count: len(member.given()) > count, f"{member.group} is given messages")

    def finish(self) -> None:
        """No send failed; every message is stored once, and was given to both groups.

        A group is given again what a member had not confirmed when its session ended, which the halts of a busy machine decide."""
        self._stop.set()
        self._sending.join()
        figures = self.old_producer.finish()
        assert (figures["failed"], figures["unknown"], figures["acknowledged"]) == (0, 0, len(self.old_producer.bodies))
        assert (self.sender.refused, self.sender.unknown) == ({}, {})
        sent = {*self.sender.acknowledged, *self.old_producer.bodies}
        assert Counter(self.cluster.stored(TOPIC, QUEUES)) == Counter(sent)
        for member in self.members:
            wait_until(lambda member=member: {given.body for given in member.given()} >= sent, f"{member.group} has all messages")
            assert {given.body for given in member.given()} == sent, member.group

    def end(self) -> None:
        self._stop.set()
        self.old_producer.kill()
        if self._sending.is_alive():
            self._sending.join()
        for member in self.members:
            member.end()


@pytest.fixture
def cluster(old: Path, new: Path, tmp_path: Path) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path / "data", old, new, name_servers=2) as made:
        made.start()
        yield made
        made.end()


@pytest.fixture
def load(cluster: MixedCluster, tmp_path: Path) -> Iterator[Load]:
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    made = Load(cluster, tmp_path)
    yield made
    made.end()


def checked(cluster: MixedCluster) -> dict[str, object]:
    """What ``upgrade-check`` says of the replica group."""
    (group,) = json.loads(cluster.cli_ok("cluster", "upgrade-check", "--json"))["groups"]
    return dict(group)


@pytest.mark.timeout(1800)
def test_a_cluster_of_the_last_release_is_upgraded_under_load_and_back_until_the_switch(cluster: MixedCluster, load: Load) -> None:
    load.start()
    first = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    cluster.exchange(first, cluster.new)
    load.goes_on()  # an old leader, a new follower
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS) as admin:
        admin.transfer_leader(first)
    load.goes_on()  # a new leader, old followers
    group = checked(cluster)
    assert (group["level"], group["can_rise_to"], group["problems"]) == (0, 0, [])
    refused = cluster.cli("cluster", "upgrade-finish", "--yes")
    assert refused.returncode == 1
    assert "replica group g0 stays at feature level 0" in refused.stderr
    for server in cluster.local.name_server_ids():
        cluster.exchange(server, cluster.new)
    cluster.exchange_all(cluster.new)
    assert checked(cluster)["can_rise_to"] == 1
    load.goes_on()
    cluster.exchange_all(cluster.old)
    load.goes_on()
    cluster.exchange_all(cluster.new)
    cluster.cli_ok("cluster", "upgrade-finish", "--yes")
    load.goes_on()
    assert_the_last_release_is_refused(cluster)
    load.finish()
    cluster.wait_equal()


def assert_the_last_release_is_refused(cluster: MixedCluster) -> None:
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    identity = cluster.data / victim / "identity.json"
    wait_until(lambda: json.loads(identity.read_text())["feature_level"] == 1, "the folder is marked with its level")
    assert cluster.terminate(victim) == 0
    found = cluster.cli("cluster", "upgrade-check")
    assert (found.returncode, f"under-replicated: g0/{victim}" in found.stderr) == (1, True), found.stderr
    assert OLD_SAYS in cluster.refused_start(victim, cluster.old)
    unmark(identity)
    assert OLD_SAYS in cluster.refused_start(victim, cluster.old)  # by its peers: its folder does not say the level
    cluster.build[victim] = cluster.new
    cluster.start(victim)


def unmark(identity: Path) -> None:
    """Make the folder's identity that of before the switch, as if the power had gone in between."""
    identity.write_text(json.dumps(json.loads(identity.read_text()) | {"feature_level": 0, "release": ""}))


@pytest.mark.timeout(300)
def test_the_last_release_stops_at_the_switch_where_nobody_tells_it(old: Path, new: Path, tmp_path: Path) -> None:
    """A group of one voter has no peers: what stops the old build is the record of the command itself."""
    with MixedCluster(tmp_path / "data", old, new, nodes=1) as cluster:
        cluster.build["n0"] = cluster.new
        cluster.start()
        cluster.cli_ok("topic", "create", TOPIC, "--queues", "1")
        cluster.cli_ok("cluster", "upgrade-finish", "--yes")
        cluster.produce(TOPIC, [b"one", b"two"])
        assert cluster.terminate("n0") == 0
        unmark(cluster.data / "n0" / "identity.json")
        assert OLD_SAYS in cluster.refused_start("n0", old)
        cluster.build["n0"] = cluster.new
        cluster.start()
        assert sorted(cluster.stored(TOPIC, 1)) == [b"one", b"two"]
