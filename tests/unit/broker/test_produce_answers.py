"""Answers on a Produce stream are not left until somebody looks again."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from broker.api import produce
from broker.api.produce_request import Request, Slice
from broker.quotas.produce import ProduceQuota
from broker.quotas.quotas import Quotas
from dledger.core.types import EntryId
from dledger_wire._pb import broker_pb2
from dledger_wire.security.principal import ANONYMOUS
from dledger_wire.status import SendStatus
from store.append.prepared import BatchOutcome
from store.state.quotas import QuotaState
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from broker.context import ServiceContext
    from dledger_wire.rpc.transport import ByteStream


class Slow:
    """A stream whose client takes nothing for a while."""

    def __init__(self) -> None:
        self.takes, self.waits, self.whole = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.written: list[broker_pb2.ProduceResponse] = []

    def write_now(self, message: bytes) -> bool:
        if not self.takes.is_set():
            return False
        self._wrote(message)
        return True

    async def write(self, message: bytes) -> None:
        self.waits.set()
        await self.takes.wait()
        self._wrote(message)

    def _wrote(self, message: bytes) -> None:
        self.written.append(broker_pb2.ProduceResponse.FromString(message))
        if self.written[-1].results:
            self.whole.set()


def test_what_is_decided_while_its_client_is_told_what_it_waits_for_is_answered_behind_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "LOOK_S", 1e6)
    monkeypatch.setattr(produce, "waiting_for", lambda _context: (SendStatus.FLUSH_DISK_TIMEOUT, "n0: its disk is full"))

    async def scenario() -> None:
        stream, anything = Slow(), SimpleNamespace(require_topic=print, require_producer=print)
        context: Any = SimpleNamespace(access=anything, is_out_of_disk=False)
        context.measures = SimpleNamespace(stopwatch=time.monotonic, request=lambda *_: None)
        context.settings = SimpleNamespace(cluster=SimpleNamespace(store=SimpleNamespace(syncFlushTimeout=1e9)))
        context.quotas = Quotas(QuotaState(), time.monotonic)
        quota = ProduceQuota(context.quotas, SimpleNamespace(principal=ANONYMOUS, metadata={}, peer=""))
        requests = produce._ProduceStream(cast("ServiceContext", context), cast("ByteStream", stream), ANONYMOUS, quota)
        answering = asyncio.create_task(requests.answer())
        part = Slice([BatchOutcome()])
        part.waiting = requests._decided
        requests._accept(Request(1, 10, memoryview(b""), [], [part], 0.0))
        requests._timeout_s = 0.0  # it is late by now
        requests._needed.set()
        await stream.waits.wait()
        part.set_result(EntryId(1, 1))
        stream.takes.set()
        await stream.whole.wait()
        assert [bool(response.results) for response in stream.written] == [False, True]
        assert stream.written[0].waiting_for == SendStatus.FLUSH_DISK_TIMEOUT.value
        assert stream.written[0].waiting_nodes == "n0: its disk is full"
        requests.finish()
        await answering

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
