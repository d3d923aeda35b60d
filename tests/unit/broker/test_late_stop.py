"""What a process says that does not stop in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import broker.main
from broker.config.cluster_file import ClusterConfig
from broker.process.service_manager import ServiceManager
from dledger_wire.errors import DeadlineExceededError, StorageFailedError
from tests.unit.dledger.raft_rig import run

NOT_STOPPED = "did not stop within 20 s"


class Served:
    """Fails at once with ``reason``, if there is one."""

    def __init__(self, reason: BaseException | None) -> None:
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._reason = reason

    async def open(self) -> None:
        if self._reason is not None:
            self.failed.set_result(self._reason)


async def stopped(reason: BaseException | None, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A node that fails, or is told to stop after a second."""
    served = Served(reason)
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, told.set_result, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.main, "_stop_signal", lambda: told)
        patch.setattr(broker.main, "lost_folder", lambda _: hangs())  # there is no folder to look at
        await broker.main._until_stopped(served, stop, [], "", ServiceManager.of_environment({}))


async def hangs() -> None:
    await asyncio.Event().wait()


async def ends() -> None:
    pass


def test_the_reason_of_a_failure_is_told_also_when_it_does_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StorageFailedError, match="the disk is gone"):
        run(stopped(StorageFailedError("the disk is gone"), hangs))
    assert [(record.levelno, record.getMessage()) for record in caplog.records if record.levelno > logging.INFO] == [
        (logging.ERROR, NOT_STOPPED)
    ]


def test_a_stop_that_takes_too_long_is_an_error_with_a_text() -> None:
    with pytest.raises(DeadlineExceededError, match=f"^{NOT_STOPPED}$"):
        run(stopped(None, hangs))
    run(stopped(None, ends))


@pytest.mark.parametrize("error", [TimeoutError(), OSError("disk is gone"), DeadlineExceededError(NOT_STOPPED)])
def test_the_last_line_is_never_empty(tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    text = "cluster: c\ngroups:\n  - name: g0\n    nodes:\n      - {id: n0, address: 127.0.0.1:20001}\n"
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def work(*_: object) -> None:
        raise error

    try:
        status = broker.main._with_folder(str(tmp_path / "n0"), ClusterConfig.parse(text, "c.yaml"), "g0", "n0", "", work)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert status == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"dledger: {str(error) or 'TimeoutError'}"
