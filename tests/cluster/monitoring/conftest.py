"""One secured cluster with a Prometheus for all tests of monitoring."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.cluster.attack import secured_cluster
from tests.cluster.monitoring import watched
from tests.cluster.monitoring.prometheus import Prometheus
from tests.cluster.monitoring.watched import Traffic, Watched

SMALL_DISK = "n2"  # its data folder is a disk of its own


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Iterator[Path]:
    """Of the cluster; the data folder of one node is a disk of 256 MiB, where this user may mount one."""
    made = module_folder / "cluster"
    disk = made / "data" / SMALL_DISK
    disk.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", "size=256m,mode=700", "none", str(disk)]
    mounted = subprocess.run(mounting, capture_output=True, check=False).returncode == 0
    yield made
    if mounted:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="module")
def watching(folder: Path, module_folder: Path) -> Iterator[Watched]:
    """The cluster with its traffic begun, and Prometheus at its work."""
    needs.program("prometheus")  # before nodes are started for it
    secured, targets = watched.make(folder)
    with secured_cluster.running(secured):
        watched.admit_reader(secured.cluster.bootstrap)
        watched.be_refused(secured)
        place = module_folder / "prometheus"
        with Prometheus(place, targets, watched.scrape_options(secured)) as prometheus, Traffic(secured.cluster.bootstrap) as traffic:
            yield Watched(secured, prometheus, targets, traffic)
