"""One secured cluster for all tests of an attacker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.attack import secured_cluster
from tests.cluster.attack.secured_cluster import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Three nodes with TLS and users."""
    with secured_cluster.running(secured_cluster.make(tmp_path_factory.mktemp("secured"))) as made:
        yield made
