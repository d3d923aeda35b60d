"""The disks the log is tested on; another implementation is added to ``DISKS``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.runtime.env import Disk
from dledger.runtime.real_disk import RealDisk
from tests.unit.log.crash_disk import CrashDisk

DISKS = ("real", "memory")


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "memory":
        yield CrashDisk()
        return
    real = RealDisk(str(tmp_path / "data"), direct_folders=("commitlog",))
    yield real
    real.close()
