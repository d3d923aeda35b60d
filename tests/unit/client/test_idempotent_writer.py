"""IdempotentWriter: responses that only report progress, and records sent again after a broken stream."""

from __future__ import annotations

import random

from dledger_client.message import Message
from dledger_client.producer.idempotent_writer import IdempotentWriter, SequencedRecord, sequenced
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import Sequence64
from dledger_wire.errors import OutcomeUnknownError
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.status import SendStatus
from tests.sim.clock import SimClock
from tests.unit.client.test_hostile import ScriptedNode, stored


def record(node: ScriptedNode, number: int) -> SequencedRecord:
    ids = UniqueIds(SimClock(node.loop), random.Random(1)).take(1)
    parts = encode_messages("t", 0, [Message("t", b"%d" % number)], ids, born_ms=1, born_host=b"\x7f\0\0\x01\0\0\0\0")
    return sequenced(b"".join(parts), Sequence64(7, 0, number))


def test_a_response_that_only_reports_a_wait_does_not_break_the_stream() -> None:
    """A leader that waits for a majority says so from time to time; the acknowledgement comes later, on the same stream."""
    node, streams = ScriptedNode(), []

    async def serve(stream: ByteStream, _context: CallContext) -> None:
        streams.append(stream)
        while (request := await stream.read()) is not None:
            response = stored(request, 7)
            waiting = broker_pb2.ProduceResponse(request_id=response.request_id, waiting_for=SendStatus.FLUSH_SLAVE_TIMEOUT.value)
            await stream.write(waiting.SerializeToString())
            await stream.write(response.SerializeToString())

    node.produce_stream = serve

    async def scenario() -> None:
        sent = record(node, 0)
        async with IdempotentWriter(node.router(), timeout_ms=5000) as writer:
            await writer.send("g0", sent)
            await writer.flush()
        assert sent.first_offset == 7
        assert len(streams) == 1

    node.run(scenario)


def test_everything_unacknowledged_is_sent_again_in_order() -> None:
    """The first stream refuses its first record with an unknown outcome; the second one takes all of them."""
    node, seen = ScriptedNode(), list[list[bytes]]()

    async def serve(stream: ByteStream, _context: CallContext) -> None:
        seen.append([])
        while (request := await stream.read()) is not None:
            seen[-1].append(request[-1:])
            response = stored(request, len(seen[-1]))
            if len(seen) == 1:
                response.results[0].CopyFrom(broker_pb2.BatchResult(error=to_detail(OutcomeUnknownError("for the test"))))
            await stream.write(response.SerializeToString())

    node.produce_stream = serve

    async def scenario() -> None:
        records = [record(node, number) for number in range(3)]
        async with IdempotentWriter(node.router(), timeout_ms=5000) as writer:
            for each in records:
                await writer.send("g0", each)
            await writer.flush()
        assert [each.first_offset for each in records] == [1, 2, 3]
        assert len(seen) == 2

    node.run(scenario)
