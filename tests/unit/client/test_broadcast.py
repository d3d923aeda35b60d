"""Broadcasts against real nodes in virtual time: everybody gets everything, and goes on by a file of its own."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger_client.aio import Action
from dledger_wire.errors import BusyError
from tests.unit.client.push_rig import Group, numbers, send
from tests.unit.client.sim_rig import Rig, until


def test_a_broadcast_gives_everything_to_everybody_and_remembers_in_a_file(tmp_path: Path) -> None:
    """docs/reference/semantics, row G6."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, broadcast=True, offset_folder=str(tmp_path))
        await send(rig, 20, 2)
        await group.start("a", "b")
        await until(lambda: len(group.seen) == 40)
        assert sorted(each.body for each in group.members["a"].seen) == sorted(numbers(20))
        await group.stop()
        await send(rig, 4, 2, first=20)
        again = Group(rig, broadcast=True, offset_folder=str(tmp_path))
        await again.start("a")
        await until(lambda: len(again.seen) == 4)
        assert sorted(again.bodies()) == numbers(4, 20)
        other = Group(rig, broadcast=True, offset_folder=str(tmp_path))
        with pytest.raises(BusyError, match="uses the offset file of a"):
            await other.start("a")
        await again.stop()

    Rig().run(scenario)


@pytest.mark.parametrize("running", [True, False])
def test_a_broadcast_reads_a_topic_made_anew_from_its_start(tmp_path: Path, running: bool) -> None:
    """docs/reference/semantics, row G5: though the new topic goes on beyond the offset in the file."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, broadcast=True, offset_folder=str(tmp_path))
        await send(rig, 5)
        await group.start("a")
        await until(lambda: len(group.seen) == 5)
        await asyncio.sleep(2)  # the offset is in the file
        if not running:
            await group.stop()
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
        await send(rig, 10, first=100)
        if not running:
            await group.start("a")
        await asyncio.sleep(5)
        assert set(group.bodies()[5:]) == set(numbers(10, 100))
        await group.stop()
        again = Group(rig, broadcast=True, offset_folder=str(tmp_path))
        await again.start("a")
        await send(rig, 2, first=200)
        await until(lambda: len(again.seen) == 2)
        assert again.bodies() == numbers(2, 200)  # from the offset in the new topic
        await again.stop()

    Rig().run(scenario)


def test_a_broadcast_goes_on_when_its_file_could_not_be_written_for_a_while(tmp_path: Path) -> None:
    """docs/reference/semantics, row G6."""
    failures: list[OSError] = []

    async def run_in_thread(work: Callable[[], None]) -> None:
        if failures:
            raise failures[0]
        work()

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, broadcast=True, offset_folder=str(tmp_path), run_in_thread=run_in_thread)
        failures.append(OSError(errno.EIO, "broken"))
        await send(rig, 10, 2)
        await group.start("a")
        await asyncio.sleep(3)
        assert group.seen == []  # where it begins is remembered first
        failures.clear()
        await until(lambda: len(group.seen) == 10)
        failures.append(OSError(errno.ENOSPC, "full"))
        await send(rig, 10, 2, first=10)
        await asyncio.sleep(3)
        assert len(group.seen) == 20
        async with rig.admin() as admin:  # a queue is given up while nothing can be written
            await admin.delete_topic("t")
            await asyncio.sleep(3)
            await admin.create_topic("t", queues=2)
        failures.clear()
        await send(rig, 10, 2, first=20)
        await until(lambda: len(group.seen) >= 30)
        await asyncio.sleep(2)
        group.kill("a")
        file = json.loads((tmp_path / "a" / "g" / "offsets.json").read_text())
        assert file["offsets"] == [["t", "g0", 0, 5], ["t", "g0", 1, 5]]

    Rig().run(scenario)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_broadcast_that_cannot_store_where_it_begins_says_so(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It consumed nothing, and said nothing of it."""

    async def run_in_thread(work: Callable[[], None]) -> None:
        raise OSError(number, "broken")

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, broadcast=True, offset_folder=str(tmp_path), run_in_thread=run_in_thread)
        await group.start("a")
        await asyncio.sleep(30)
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"consuming starts once the initial offsets are stored: {tmp_path}/a/g/offsets.json: offsets could not be saved")


def test_what_an_orderly_broadcast_gives_up_is_said_to_be_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There are no dead letters of a broadcast, so nobody is to look for them there."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 2)
        group = Group(rig, broadcast=True, orderly=True, max_reconsume_times=1, offset_folder=str(tmp_path))
        group.answers = [Action.SUSPEND, Action.SUSPEND]
        await group.start("a")
        await until(lambda: group.bodies() == [b"0", b"0", b"1"])
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)
    assert ": 1 messages from offset 0 skipped after 2 attempts" in caplog.text
