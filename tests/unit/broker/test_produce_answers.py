"""Answers on a Produce stream are not left until somebody looks again."""

from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from broker.api import produce
from broker.api.produce_request import Request, Slice
from broker.quotas.produce import ProduceQuota
from broker.quotas.quotas import Quotas
from dledger.core.types import EntryId, NodeId
from dledger.replica.room import Window
from dledger.settings import PeerStatus
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import BusyError, TopicNotFoundError
from dledger_wire.rpc import envelope
from dledger_wire.security.principal import ANONYMOUS
from dledger_wire.status import SendStatus
from store.append.prepared import BatchOutcome
from store.state.quotas import QuotaState
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from broker.context import ServiceContext
    from dledger_wire.rpc.transport import ByteStream


class Slow:
    """A stream whose client takes nothing for a while."""

    def __init__(self) -> None:
        self.since_s = 0.0
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


def stream_of(stream: Slow) -> produce._ProduceStream:
    """Its requests, at a leader that has no room for more."""
    anything = SimpleNamespace(require_topic=print, require_producer=print)
    context: Any = SimpleNamespace(
        access=anything, is_out_of_disk=False, raft=SimpleNamespace(room=SimpleNamespace(enters=lambda *_: False))
    )
    context.measures = SimpleNamespace(stopwatch=time.monotonic, request=lambda *_: None)
    context.settings = SimpleNamespace(cluster=SimpleNamespace(store=SimpleNamespace(syncFlushTimeout=1e9)))
    context.quotas = Quotas(QuotaState(), time.monotonic)
    quota = ProduceQuota(context.quotas, SimpleNamespace(principal=ANONYMOUS, metadata={}, peer=""))
    return produce._ProduceStream(cast("ServiceContext", context), cast("ByteStream", stream), ANONYMOUS, quota)


def test_what_is_decided_while_its_client_is_told_what_it_waits_for_is_answered_behind_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "LOOK_S", 1e6)
    monkeypatch.setattr(produce, "waiting_for", lambda _context: (SendStatus.FLUSH_DISK_TIMEOUT, "n0: its disk is full"))

    async def scenario() -> None:
        requests = stream_of(stream := Slow())
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


class Seen(bytes):
    """A message whose end shows."""

    freed = 0

    def __del__(self) -> None:
        Seen.freed += 1


def test_the_time_that_a_request_waited_to_be_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one that waited for credit for as long as its client waits for an answer is refused: else it would be left in doubt."""

    async def scenario() -> None:
        loop, requests = asyncio.get_running_loop(), stream_of(stream := Slow())
        message = envelope.encode(broker_pb2.ProduceRequest(request_id=1, timeout_ms=3000), [b"record"])
        for waited_s in (0.0, 2.0):
            stream.since_s = loop.time() - waited_s if waited_s else 0.0
            assert not requests.take(message)
            held, requests._held = requests._held, None
            assert held is not None
            assert 2.7 - waited_s - LIMIT_S < held.left_s(time.monotonic()) <= 2.7 - waited_s

    asyncio.run(scenario())


def test_a_batch_that_is_refused_is_freed_without_the_collector() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        freed_before, record = Seen.freed, Seen(batch_of("no topic of that name", 0, [b"x"]))
        prepared = rig.store.prepare(record)
        assert [type(outcome.error) for outcome in prepared.outcomes] == [TopicNotFoundError]
        del record
        assert Seen.freed == freed_before + 1

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


@pytest.mark.parametrize("refuses", ["require_room", "propose_for"])
def test_the_bytes_of_a_request_that_is_refused_are_freed_without_the_collector(refuses: str) -> None:
    """Else a node that refuses for want of memory would take more of it with each request."""

    async def scenario() -> None:
        def refuse(*_arguments: object) -> None:
            raise BusyError("no room")

        stream, anything = Slow(), SimpleNamespace(require_topic=print, require_producer=print)
        stream.takes.set()
        raft = SimpleNamespace(room=SimpleNamespace(enters=lambda *_: True), window=Window(1 << 20), propose_for=refuse)
        context: Any = SimpleNamespace(access=anything, raft=raft, require_master=int, require_room=int, is_out_of_disk=False)
        context.measures = SimpleNamespace(stopwatch=time.monotonic, request=lambda *_: None)
        context.settings = SimpleNamespace(cluster=SimpleNamespace(store=SimpleNamespace(syncFlushTimeout=1e9)))
        context.quotas = Quotas(QuotaState(), time.monotonic)
        quota = ProduceQuota(context.quotas, SimpleNamespace(peer="", metadata={}, principal=ANONYMOUS))
        context.store = SimpleNamespace(prepare=lambda payload, **_: SimpleNamespace(outcomes=[BatchOutcome()], size_bytes=len(payload)))
        if refuses == "require_room":
            context.require_room = refuse
        requests = produce._ProduceStream(cast("ServiceContext", context), cast("ByteStream", stream), ANONYMOUS, quota)
        message = Seen(envelope.encode(broker_pb2.ProduceRequest(request_id=1), [batch_of("t", 0, [b"x"])]))
        freed_before = Seen.freed
        assert requests.take(message)
        del message
        assert [response.results[0].error.code for response in stream.written] == ["BUSY"]
        assert Seen.freed == freed_before + 1
        requests.end()

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("sync_ms", "silent_ms", "text"),
    [
        (2100, 10, "a write takes 2.1 s to be on its disk"),
        (300, 10, "connected, does not confirm"),
        (2100, 5000, "does not answer"),
    ],
)
def test_a_follower_that_is_waited_for_comes_with_its_disk(sync_ms: int, silent_ms: int, text: str) -> None:
    peer = PeerStatus(node_id=NodeId("n1"), address="n1:1", connected=True, voter=True, match_index=3, silent_ms=silent_ms, sync_ms=sync_ms)
    assert produce._peer(peer, 600) == text
