"""Behind the switch to a feature level the last release stops, also where nobody tells it: it cannot do harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.last_release import ROOT, unpack
from tests.deploy.mixed_cluster import MixedCluster

TOPIC = "orders"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("last-release"))


def unmark(identity: Path) -> None:
    """Make the folder's identity that of before the switch, as if the power had gone in between."""
    fields = json.loads(identity.read_text())
    del fields["feature_level"], fields["release"]
    identity.write_text(json.dumps(fields | {"format_version": 1}))


@pytest.mark.timeout(300)
def test_the_last_release_stops_at_the_switch_where_nobody_tells_it(old: Path, tmp_path: Path) -> None:
    """A group of one voter has no peers: what stops the old build is the record of the command itself."""
    with MixedCluster(tmp_path / "data", old, nodes=1) as cluster:
        cluster.build["n0"] = ROOT
        cluster.start()
        cluster.cli_ok("topic", "create", TOPIC, "--queues", "1")
        cluster.cli_ok("cluster", "upgrade-finish", "--yes")
        cluster.produce(TOPIC, [b"one", b"two"])
        assert cluster.terminate("n0") == 0
        unmark(cluster.data / "n0" / "identity.json")
        assert "version 2, kind 2 is no record's" in cluster.refused_start("n0", old)
        cluster.build["n0"] = ROOT
        cluster.start()
        assert sorted(cluster.stored(TOPIC, 1)) == [b"one", b"two"]
