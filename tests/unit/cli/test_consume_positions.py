"""What ``dledger consume --group`` commits when standard output cannot take what was fetched."""

from __future__ import annotations

import asyncio
import errno
import io
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger_cli.commands.consume import _Committing, _Places, _Printer, _Selection, _Start
from dledger_cli.message_text import LineFormat
from dledger_cli.output import _StandardOutput, use_json
from dledger_cli.queue_readers import Place
from dledger_client.fetch.records import QueueOffsets

FIRST = 100


def messages(count: int) -> list[Any]:
    fixed = {"topic": "orders", "replica_group": "g0", "queue_id": 0, "msg_id": "7F00", "keys": "", "tags": "", "properties": {}}
    fixed["topic_epoch"] = "7"
    times = {"born_timestamp": 1, "store_timestamp": 2}
    return [SimpleNamespace(**fixed, **times, queue_offset=FIRST + number, body=b"%06d" % number) for number in range(count)]


class Group:
    """The positions that were committed."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], int] = {}

    async def commit(self, offsets: dict[tuple[str, int], int], replica_group: str, topic_epoch: str) -> None:
        assert (replica_group, topic_epoch) == ("g0", "7")
        self.committed |= offsets


class SmallDisk(io.RawIOBase):
    """Takes so many whole writes, and is full then."""

    def __init__(self, writes: int) -> None:
        self.lines = 0
        self._left = writes

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self._left:
            raise OSError(errno.ENOSPC, "No space left on device", "standard output")
        self._left -= 1
        self.lines += bytes(data).count(b"\n")
        return len(data)


def printed_into(raw: io.RawIOBase, printer: _Printer, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], int]:
    """Print two batches of 50, commit at the end as the command does; what was committed."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw)))
    group = Group()

    async def scenario() -> None:
        committing = _Committing(group, printer)  # type: ignore[arg-type]
        fetched = messages(100)
        try:
            for batch in (fetched[:50], fetched[50:]):
                printer.show(batch)
        finally:
            await committing.all()

    with pytest.raises(OSError, match="No space left on device"):
        asyncio.run(scenario())
    return group.committed


@pytest.mark.parametrize("line", [None, LineFormat("%o %b\\n")])
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_is_committed_when_nothing_can_be_written(as_json: bool, line: LineFormat | None, monkeypatch: pytest.MonkeyPatch) -> None:
    use_json(as_json)
    printer = _Printer(0, line=line)
    with open("/dev/full", "wb") as full:
        assert printed_into(_StandardOutput(full.fileno(), "wb", closefd=False), printer, monkeypatch) == {}
    assert printer.count == 0


def test_a_batch_that_was_not_written_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, printer = SmallDisk(1), _Printer(0)
    assert printed_into(disk, printer, monkeypatch) == {("orders", 0): FIRST + 50}
    assert printer.count == disk.lines == 50


def test_a_commit_that_an_interrupt_ends_is_made_at_the_end(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    class SlowGroup(Group):
        def __init__(self) -> None:
            super().__init__()
            self.began, self.goes_on = asyncio.Event(), asyncio.Event()

        async def commit(self, offsets: dict[tuple[str, int], int], replica_group: str, topic_epoch: str) -> None:
            self.began.set()
            await self.goes_on.wait()
            await super().commit(offsets, replica_group, topic_epoch)

    async def scenario() -> None:
        group, printer = SlowGroup(), _Printer(0)
        committing = _Committing(group, printer)  # type: ignore[arg-type]
        printer.show(messages(5))
        under_way = asyncio.create_task(committing.all(), name="commit")
        await group.began.wait()
        under_way.cancel()
        await asyncio.wait([under_way])
        group.goes_on.set()
        await committing.all()
        assert group.committed == {("orders", 0): FIRST + 5}

    asyncio.run(scenario())


@pytest.mark.parametrize(("start", "offset"), [("first", 100), ("last", 190), ("-5", 185), ("-0", 190), ("-500", 100)])
def test_where_reading_starts(start: str, offset: int) -> None:
    assert _Start.of(start).offset(QueueOffsets(100, 190, 150)) == offset


def test_a_replica_group_that_answers_late_is_read_from_the_time_when_reading_its_end_was_asked_for() -> None:
    began_ms = 1_800_000_000_000

    class Answers:
        group, _router = "", SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: began_ms))

        async def offsets(self, topic: str, timestamp_ms: int | None, *, partial: bool) -> dict[Place, QueueOffsets]:
            assert (topic, timestamp_ms, partial) == ("orders", began_ms, True)
            return {("g1", 0): QueueOffsets(100, 190, 150)}

    async def scenario() -> None:
        places = _Places(cast(Any, Answers()), _Selection("orders", _Start("last"), -1, "*", ""), {"g1"})
        assert await places.of_added({("g1", 0): QueueOffsets(100, 190, 0)}) == {("g1", 0): 150}

    asyncio.run(scenario())


def test_of_json_lines_each_that_was_written_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_json(True)
    disk, printer = SmallDisk(70), _Printer(0)
    assert printed_into(disk, printer, monkeypatch) == {("orders", 0): FIRST + 70}
    assert printer.count == disk.lines == 70
