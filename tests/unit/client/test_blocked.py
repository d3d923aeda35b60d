"""The notices of a producer that an alarm keeps out."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.producer.blocked import Blocked
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.errors import ReadOnlyError

ALARM = ReadOnlyError("n0: memory alarm; nothing was stored", alarm="memory", node="n0")


@pytest.mark.parametrize("fault", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_callback_that_fails_ends_nothing_of_the_client(fault: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_reason: str) -> None:
        raise fault

    blocked = Blocked(ProducerOptions.of("g", {"on_blocked": fail, "on_unblocked": fail}))
    blocked.refused("g0", ALARM)
    assert blocked.reason == "n0: memory alarm"
    blocked.ended("g0")
    assert blocked.reason == ""
    assert [line for line in caplog.messages if "callback" in line] == ["a callback of the producer failed"] * 2
