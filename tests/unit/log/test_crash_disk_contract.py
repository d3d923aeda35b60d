"""The crash disk keeps the contract that the real one keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dledger.runtime.env import Disk
from tests.contract import test_disk as contract
from tests.unit.log.crash_disk import CrashDisk


@pytest.fixture(params=[False, True], ids=["", "at once"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> contract.Run:
    def start(scenario: Callable[[Disk], Awaitable[None]]) -> None:
        asyncio.run(scenario(CrashDisk(writes_now=request.param)))  # type: ignore[arg-type]

    return start


for _name in [name for name in dir(contract) if name.startswith("test_")]:
    globals()[_name] = getattr(contract, _name)
