"""What every test layer shares: a failed comparison of something huge is reported by its sizes, not by a diff that takes hours; what
died in a simulation is freed between two tests; a property is not judged by how long one of its examples takes; folders that tests share
are removed when they passed.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.sim.loop import SimLoop

# A busy machine may take seconds for an example that takes a millisecond elsewhere.
hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any machine")

MAX_DIFF_BYTES = 200_000


def rough_size(value: object) -> int:
    """Bytes of text or data inside ``value``, counted until it is clear that a diff would be too long."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        return len(value)
    size = 0
    if isinstance(value, list | tuple | set | frozenset | dict):
        for item in value.items() if isinstance(value, dict) else value:
            size += 8 + rough_size(item)
            if size > MAX_DIFF_BYTES:
                break
    return size


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    sizes = rough_size(left), rough_size(right)
    if max(sizes) <= MAX_DIFF_BYTES:
        return None
    return [f"{type(left).__name__} {op} {type(right).__name__}, of at least {sizes[0]} and {sizes[1]} bytes: too long to show"]


# Layers in which a ResourceWarning is no failure yet; in all others it is one.
NOT_CLOSED_YET = {"deploy", "browser", "spark"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if NOT_CLOSED_YET & {marker.name for marker in item.iter_markers()}:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # the collections below look at what tests made only


@pytest.fixture(autouse=True)
def the_dead_are_freed_here() -> Iterator[None]:
    """Coroutines of killed processes are closed when they are freed.  Inside ``ast.parse``, of a traceback or an import at the session's
    end, CPython 3.11 takes that for damage and raises SystemError."""
    before = SimLoop.made
    yield
    if SimLoop.made != before:
        gc.collect()


@pytest.fixture(scope="module")
def module_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What fixtures of a module share, such as the data of a cluster; kept when a test failed while it was in use, as ``tmp_path`` is."""
    yield from _folder(request.session, tmp_path_factory)


@pytest.fixture(scope="session")
def session_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """As ``module_folder``, for fixtures of the session."""
    yield from _folder(request.session, tmp_path_factory)


def _folder(session: pytest.Session, factory: pytest.TempPathFactory) -> Iterator[Path]:
    failed, folder = session.testsfailed, factory.mktemp("shared")
    yield folder
    if session.testsfailed == failed:
        shutil.rmtree(folder, ignore_errors=True)
