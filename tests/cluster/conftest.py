"""Real node processes for the tests of this folder; everything here carries the marker ``cluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Make a cluster of this test's own; its processes end with the test."""
    made: list[Cluster] = []

    def make(kind: type[Cluster] = Cluster, **options: Any) -> Cluster:
        cluster = kind(tmp_path / f"c{len(made)}", **options)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.end()


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Three nodes with small segments, started."""
    made = make_cluster()
    made.start()
    return made
