"""The way of one message through the client, from the call to its first byte on the network, where nothing waits.

Counted in files and in stays, which are runs of calls in one file: each is a place that a reader of the way has to look at.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

import dledger_client
from dledger_client import tracing
from dledger_client.aio import Message, Producer
from tests.sim import stream
from tests.unit.client.noted_sends import send_noted, stays_of
from tests.unit.client.sim_rig import Rig

CLIENT = Path(dledger_client.__file__).parent
FILES, STAYS = 7, 15  # before pass-through layers were cut: 14 and 33


async def journey(producer: Producer) -> list[str]:
    """The file of each call in the client until the request is written."""
    files: list[str] = []
    written = False

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal written
        code = frame.f_code
        written = written or (code.co_filename == stream.__file__ and code.co_name == "write_now")
        if event == "call" and not written and Path(code.co_filename).is_relative_to(CLIENT):
            files.append(Path(code.co_filename).relative_to(CLIENT).as_posix())

    await send_noted(producer, note)
    assert written
    return files


def test_a_message_passes_few_files_before_its_first_byte_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, tracing.API, raising=False)  # as in an application that does not use OpenTelemetry
    ways: list[list[str]] = []

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for _ in range(10):  # the leader is found, the stream is open
                await producer.send(Message("t", b"x"))
            ways.extend([await journey(producer) for _ in range(5)])

    Rig().run(scenario)
    for way in ways:
        stays = stays_of(way)
        assert len(set(stays)) <= FILES, stays
        assert len(stays) <= STAYS, stays
