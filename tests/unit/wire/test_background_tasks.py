"""The tasks of one owner: how they end, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dledger_wire.tasks import BackgroundTasks, let_go


async def fails() -> None:
    raise OSError("no disk")


async def waits() -> None:
    await asyncio.get_running_loop().create_future()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario()

    asyncio.run(whole())


def test_a_task_that_fails_is_logged_and_given_to_its_owner(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        crashes: list[BaseException] = []
        tasks = BackgroundTasks("owner", crashes.append)
        task = tasks.spawn(fails(), "work")
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert [str(error) for error in crashes] == ["no disk"]
        assert (len(tasks), task.get_name()) == (0, "owner.work")

    run(scenario)
    assert "owner.work failed" in caplog.text


def test_stop_ends_all_but_those_that_wait_for_it() -> None:
    async def scenario() -> None:
        tasks = BackgroundTasks("owner")
        first, second = tasks.spawn(waits(), "first"), tasks.spawn(waits(), "second")
        await tasks.stop(waiting=(first,))
        assert (first.done(), second.cancelled(), len(tasks)) == (False, True, 1)
        tasks.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        await tasks.stop()

    run(scenario)


def test_a_task_that_stops_its_owner_is_not_cancelled() -> None:
    async def scenario() -> None:
        tasks = BackgroundTasks("owner")
        other = tasks.spawn(waits(), "other")
        own = tasks.spawn(tasks.stop(), "own")
        await own
        assert (other.cancelled(), own.cancelled()) == (True, False)

    run(scenario)


def test_drain_waits_and_then_cancels() -> None:
    async def scenario() -> None:
        tasks = BackgroundTasks("owner")
        done, endless = tasks.spawn(asyncio.sleep(0), "done"), tasks.spawn(waits(), "endless")
        await tasks.drain(0.01)
        assert (done.cancelled(), endless.cancelled(), len(tasks)) == (False, True, 0)
        await tasks.drain(0.01)

    run(scenario)


def test_a_task_that_is_let_go_says_no_more() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failed, endless = loop.create_task(fails()), loop.create_task(waits())
        await asyncio.wait([failed])
        await let_go(failed)
        await let_go(endless)
        assert endless.cancelled()

    run(scenario)
