"""Feature levels of the builds that tests play: this one, and that of the next release, which can do one level more."""

from __future__ import annotations

import pytest

from dledger_wire import feature_levels
from dledger_wire.feature_levels import LEVELS, MAX_LEVEL, MIN_LEVEL, Level, LevelRange

NEXT_LEVEL = Level(MAX_LEVEL + 1, "0.2.0", "what the next release brings")
NEXT_BUILD = LevelRange(MIN_LEVEL, NEXT_LEVEL.number)


@pytest.fixture
def next_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of levels is that of the next release."""
    monkeypatch.setattr(feature_levels, "LEVELS", (*LEVELS, NEXT_LEVEL))
