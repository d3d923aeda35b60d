"""The streams of a fetcher: none is left open, also when a read ends early."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from typing import Any, cast

import pytest

from dledger_client.cluster.router import Router
from dledger_client.fetch.fetcher import Fetcher
from dledger_wire.errors import DledgerError, UnreachableError
from dledger_wire.rpc.transport import ByteStream


class SlowStream:
    """A stream whose end takes a while; ``error`` is what closing it fails with."""

    def __init__(self, error: DledgerError | None = None, *, stuck: bool = False) -> None:
        self.closed, self._error, self._stuck = False, error, stuck

    async def close(self) -> None:
        await (asyncio.Event().wait() if self._stuck else asyncio.sleep(0.01))
        self.closed = True
        if self._error is not None:
            raise self._error


class Routes:
    random = random.Random(1)


def abandoned(stream: SlowStream) -> None:
    async def scenario() -> None:
        fetcher = Fetcher(cast(Router, cast(Any, Routes())), "any", None)
        await fetcher._give_back("h:1", cast(ByteStream, stream), whole=False)
        await fetcher.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [None, UnreachableError("gone")])
def test_close_waits_for_the_streams_of_reads_that_ended_early(error: DledgerError | None) -> None:
    stream = SlowStream(error)
    abandoned(stream)
    assert stream.closed


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_client.fetch.fetcher.CLOSE_TIMEOUT_S", 0.01)
    stream = SlowStream(stuck=True)
    abandoned(stream)
    assert not stream.closed


def test_a_read_that_is_freed_after_its_loop_ended_warns_of_nothing() -> None:
    fetcher = Fetcher(cast(Router, cast(Any, Routes())), "any", None)
    gc.collect()  # what other tests left
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        giving_back = fetcher._give_back("h:1", cast(ByteStream, SlowStream()), whole=False)
        with pytest.raises(StopIteration):
            giving_back.send(None)
        gc.collect()
