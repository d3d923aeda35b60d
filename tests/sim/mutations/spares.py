"""Deliberate faults of how spare nodes are taken in: whose turn it is, and to which group a spare node belongs."""

from __future__ import annotations

import pytest

from broker.membership import replacement, waiting_spare


def turns_ignored(patch: pytest.MonkeyPatch) -> None:
    """Every group begins when it wants to."""
    patch.setattr(replacement, "turns_of_others", lambda *_told: {})


def binding_not_written(patch: pytest.MonkeyPatch) -> None:
    """A spare node that is killed has forgotten its group."""

    async def nothing(*_binding: object) -> None:
        return None

    patch.setattr(waiting_spare, "write_binding", nothing)
