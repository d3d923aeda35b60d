"""One secured cluster for all tests of an attacker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.attack import secured_cluster
from tests.cluster.attack.secured_cluster import Secured


@pytest.fixture(scope="module")
def secured(module_folder: Path) -> Iterator[Secured]:
    """Three nodes with TLS and users."""
    with secured_cluster.running(secured_cluster.make(module_folder)) as made:
        yield made
