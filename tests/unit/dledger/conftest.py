"""What tests of whole nodes share beside their rig."""

from __future__ import annotations

import pytest

from tests.unit.dledger.raft_rig import MemoryDisk


@pytest.fixture(params=[False, True], ids=["by the thread", "at once"])
def both_ways_of_writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes flush by a task, or within the steps of their cores."""
    monkeypatch.setattr(MemoryDisk, "writes_now", request.param)
