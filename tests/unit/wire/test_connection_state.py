"""The state of a connection: what it carries, what is held of it, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.tcp import connection_state
from dledger_wire.tcp.connection_state import ConnectionState, state_of
from tests.unit.wire.test_credit import CALL, KIB, MIB, STREAM, Rig, answer, frame, run
from tests.waiting import until


def states(rig: Rig, later_s: float = 0.0) -> list[ConnectionState]:
    """In the order in which they came; as they would be, if nothing else happened, in ``later_s``."""
    now_s = asyncio.get_running_loop().time() + later_s
    return [state_of(each, now_s) for each in rig.server.connections()]


def one(rig: Rig, later_s: float = 0.0) -> ConnectionState:
    (found,) = states(rig, later_s)
    return found


def test_a_connection_that_is_served_at_once_runs() -> None:
    async def scenario(rig: Rig) -> None:
        reader, writer = await rig.dial()
        writer.write(frame(1 * KIB))
        assert await answer(reader) == b"1024"
        found = one(rig)
        assert (found.purpose, found.waits_for, found.is_held_up, found.received_bytes) == (STREAM, "", False, 0)
        assert found.peer == "{}:{}".format(*writer.get_extra_info("sockname"))
        assert found.since_s >= 0
        writer.close()

    run(8 * MIB, scenario)


def test_one_whose_message_is_not_taken_waits_for_that_and_one_behind_it_for_memory() -> None:
    async def scenario(rig: Rig) -> None:
        rig.takes.clear()
        first_reader, first = await rig.dial()
        first.write(frame(5 * MIB))
        await until(lambda: rig.memory.held >= 5 * MIB and not rig.memory._given)
        assert [one(rig).waits_for, one(rig, connection_state.LEAST_WAIT_S).waits_for] == ["", "taker"]
        reader, writer = await rig.dial()
        writer.write(frame(3 * MIB))
        await until(lambda: rig.waiting == 1)
        later = states(rig, connection_state.LEAST_WAIT_S)
        assert [(each.waits_for, each.is_held_up) for each in later] == [("taker", True), ("memory", True)]
        assert later[0].received_bytes == 5 * MIB
        assert 32 * KIB <= later[1].received_bytes <= 192 * KIB
        rig.takes.set()
        assert [await answer(each) for each in (first_reader, reader)] == [str(5 * MIB).encode(), str(3 * MIB).encode()]
        found = states(rig)[1]
        assert (found.waits_for, found.is_held_up, found.received_bytes) == ("", True, 0)
        assert not states(rig, connection_state.LATELY_S)[1].is_held_up
        for each in (first, writer):
            each.close()

    run(8 * MIB, scenario)


def test_one_that_does_not_read_its_answers_waits_for_itself() -> None:
    async def give(stream: ByteStream, _context: CallContext) -> None:
        await stream.read()
        for _ in range(40):
            await stream.write(bytes(MIB))

    async def scenario(rig: Rig) -> None:
        rig.server.add_stream(STREAM, give)
        reader, writer = await rig.dial()
        writer.write(frame(10))
        await until(lambda: one(rig).waits_for == "reader")
        assert one(rig).unsent_bytes > MIB
        for _ in range(40):
            await answer(reader)
        assert one(rig).waits_for == ""
        writer.close()

    run(64 * MIB, scenario)


@pytest.mark.parametrize("purpose", [CALL, STREAM])
def test_its_purpose_is_the_method_of_its_stream_or_calls(purpose: str) -> None:
    async def scenario(rig: Rig) -> None:
        _, writer = await rig.dial(purpose)
        found: Callable[[], list[ConnectionState]] = lambda: states(rig)  # noqa: E731
        await until(lambda: bool(found()) and found()[0].purpose != "")
        assert one(rig).purpose == ("calls" if purpose == CALL else STREAM)
        writer.close()

    run(8 * MIB, scenario)
