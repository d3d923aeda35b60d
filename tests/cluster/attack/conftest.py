"""One secured cluster for all tests of an attacker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.attack import secured_cluster
from tests.cluster.attack.secured_cluster import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Three nodes with TLS and users; the administrator's credentials are in the environment."""
    made = secured_cluster.make(tmp_path_factory.mktemp("secured"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in secured_cluster.environment(made.folder).items():
            patch.setenv(name, value)
        try:
            made.cluster.start()
            secured_cluster.settle(made)
            yield made
        finally:
            made.cluster.end()
