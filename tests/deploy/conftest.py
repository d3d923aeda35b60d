"""Marks every test here as one of the layer ``deploy``, and builds the image that tests of containers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.containers import IMAGE_VERSION, Image, build_image


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.deploy)


@pytest.fixture(scope="session")
def image(session_folder: Path) -> Iterator[Image]:
    """The image of the checkout; its tests are one group of xdist, so that one worker builds it."""
    made = build_image(session_folder, IMAGE_VERSION)
    yield made
    made.remove()
