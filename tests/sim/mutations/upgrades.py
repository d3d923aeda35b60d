"""Deliberate faults of upgrades."""

from __future__ import annotations

import pytest

from broker.membership import feature_level


def levels_rise_at_once(patch: pytest.MonkeyPatch) -> None:
    """A group rises to a feature level that some of its members cannot do."""
    patch.setattr(feature_level, "_reasons_against", lambda *_asked: iter(()))
