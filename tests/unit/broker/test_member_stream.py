"""Members that write and do not read (docs/reference/semantics, row G7)."""

from __future__ import annotations

import asyncio

import pytest

from broker.support.member_stream import MAX_WAITING, MAX_WAITING_BYTES, MemberStream
from broker.transactions.producer_sessions import MAX_WAITING_CHECKS, ProducerSessions
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import NotReadyError
from tests.byte_streams import TaskwiseStream
from tests.unit.store.store_rig import StepClock
from tests.waiting import LIMIT_S

JOIN = transaction_pb2.ProducerJoin(producer_group="p")


class Unread(TaskwiseStream):
    """A stream whose other side says the same again and again, and never reads."""

    def __init__(self) -> None:
        self.said = 0
        self.to_say = 1 << 30

    async def read(self) -> bytes | None:
        await asyncio.sleep(0)
        if self.said == self.to_say:
            await asyncio.get_running_loop().create_future()
        self.said += 1
        return JOIN.SerializeToString()

    async def write(self, message: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_what_waits_for_a_member_is_bounded_and_its_stream_ends_then(size: int) -> None:
    async def main() -> None:
        stream = MemberStream(Unread())
        count = 0
        while not stream.ended.done():
            stream.send(bytes(size))
            count += 1
            assert count <= MAX_WAITING + 2
            assert count * size <= MAX_WAITING_BYTES + 2 * size
        assert isinstance(stream.ended.result(), NotReadyError)

    asyncio.run(main())


def test_one_large_message_is_not_too_much() -> None:
    async def main() -> None:
        stream = MemberStream(Unread())
        stream.send(bytes(2 * MAX_WAITING_BYTES))
        assert not stream.ended.done()

    asyncio.run(main())


def test_a_producer_that_sends_heartbeats_and_does_not_read_is_sent_away() -> None:
    async def main() -> None:
        members = ProducerSessions(StepClock())
        with pytest.raises(NotReadyError, match="wait for this member"):
            await asyncio.wait_for(members.join(JOIN, Unread()), LIMIT_S)
        assert members.counts() == {}

    asyncio.run(main())


@pytest.mark.parametrize(("size", "taken"), [(10, MAX_WAITING_CHECKS + 2), (1 << 20, 10)])
def test_questions_go_to_another_member_before_that(size: int, taken: int) -> None:
    async def main() -> None:
        members, stream = ProducerSessions(StepClock()), Unread()
        stream.to_say = 0
        attending = asyncio.ensure_future(members.join(JOIN, stream))
        await asyncio.sleep(0)
        asked = 0
        while members.check("p", 1, 1, bytes(size)):
            asked += 1
            assert asked <= taken
        assert asked > taken // 2
        assert members.counts() == {"p": 1}
        attending.cancel()
        await asyncio.wait([attending])

    asyncio.run(main())
