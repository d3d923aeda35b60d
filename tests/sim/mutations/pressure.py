"""Deliberate faults of what happens under pressure: the order of streams, the bound of what is under way, refusals in time."""

from __future__ import annotations

from typing import Any

import pytest

from broker.api.produce import _ProduceStream
from broker.api.produce_request import Request
from dledger.replica.proposer import Proposer
from dledger.replica.room import Flow, Room
from dledger_wire.errors import NotSentError


def room_is_never_given_back(patch: pytest.MonkeyPatch) -> None:
    wait = Room.wait

    async def greedy(self: Room, flow: Flow, size_bytes: int) -> None:
        await wait(self, flow, size_bytes)
        self.granted_bytes += 1

    patch.setattr(Room, "wait", greedy)


def the_window_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Proposer, "_has_room_beside", lambda _self, _granted_bytes: True)


def late_requests_are_stored_and_refused(patch: pytest.MonkeyPatch) -> None:
    proposed = _ProduceStream._proposed

    def both(self: _ProduceStream, pending: Request, *place: int) -> Any:
        part = proposed(self, pending, *place)
        if pending.was_held and part.waiting is not None:
            part.refusal = NotSentError("refused by the leader; nothing was stored")
        return part

    patch.setattr(_ProduceStream, "_proposed", both)
