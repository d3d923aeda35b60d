"""What a producer says of messages whose answers it never got: refused for certain, or perhaps stored, never one for the other."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message, Producer
from dledger_client.producer.delivery_report import AsyncSendFuture
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import (
    DledgerError,
    MessageTooLargeError,
    NotSentError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    PermissionDeniedError,
    ProducerFencedError,
    TopicPermissionError,
)
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import ByteStream, CallContext
from tests.unit.client.sim_rig import CLIENT_IP, Rig
from tests.unit.client.test_hostile import ADDRESS, ScriptedNode, stored

FENCED = ProducerFencedError("epoch 0 is fenced by epoch 1")


class Node(ScriptedNode):
    """Takes ``ends_after`` requests of each stream, answers the first ones as ``answers`` says, and ends it."""

    def __init__(self, queues: int, *ends_after: int) -> None:
        super().__init__()
        self.metadata = broker_pb2.MetadataResponse(
            cluster="c",
            groups=[
                broker_pb2.GroupInfo(
                    name="g0", term=1, leader_id="n0", leader_address=ADDRESS, nodes=[broker_pb2.NodeInfo(id="n0", address=ADDRESS)]
                )
            ],
            topics=[broker_pb2.TopicInfo(name="t", group="g0", read_queues=queues, write_queues=queues, perm=6, found=True)],
        ).SerializeToString()
        self.ends_after = list(ends_after)
        self.answers: list[list[DledgerError | None]] = []  # of each stream; None: stored
        self.produce_stream = self._serve

    async def _serve(self, stream: ByteStream, _context: CallContext) -> None:
        requests: list[bytes] = []
        limit, answers = self.ends_after.pop(0), self.answers.pop(0)
        while len(requests) < limit and (request := await stream.read()) is not None:
            requests.append(request)
        for request, error in zip(requests, answers, strict=False):
            response = stored(request)
            if error is not None:
                response.results[0].CopyFrom(broker_pb2.BatchResult(error=to_detail(error)))
            await stream.write(response.SerializeToString())


async def error_of(future: AsyncSendFuture) -> DledgerError | None:
    try:
        await future
    except DledgerError as error:
        return error
    return None


def test_a_fenced_producer_whose_stream_breaks_fails_what_was_not_answered() -> None:
    """docs/reference/semantics, row P5: no answer will ever come; the event loop goes on."""
    node = Node(2, 2)
    node.answers = [[FENCED]]

    async def scenario() -> None:
        async with node.producer(producer_id="p", linger_ms=1) as producer:
            await producer._core.resolve("t", 1 << 62)
            first = producer.send_async(Message("t", b"0"), queue_id=0)
            await asyncio.sleep(0.01)
            second = producer.send_async(Message("t", b"1"), queue_id=1)
            assert isinstance(await error_of(first), ProducerFencedError)
            assert isinstance(await error_of(second), OutcomeUnknownError)
            later = await error_of(producer.send_async(Message("t", b"2"), queue_id=1))
            assert isinstance(later, ProducerFencedError)

    node.run(scenario)


def test_what_was_on_a_broken_stream_is_not_said_to_be_refused() -> None:
    """The stream broke with two batches of a queue on it; only the first one is sent again and fenced.

    docs/reference/semantics, row P5.
    """
    node = Node(1, 2, 1)
    node.answers = [[], [FENCED]]

    async def scenario() -> None:
        async with node.producer(producer_id="p", linger_ms=1) as producer:
            errors = await errors_of_two(producer)
            assert [type(error) for error in errors] == [OutcomeUnknownError, OutcomeUnknownError]
            assert all(error is not None and "fenced" in error.message for error in errors)
            assert isinstance(await error_of(producer.send_async(Message("t", b"2"))), ProducerFencedError)

    node.run(scenario)


def test_what_is_behind_a_batch_that_was_refused_at_once_is_refused_for_certain() -> None:
    """docs/reference/semantics, row P5: no second attempt, no doubt: a broker that refused the first one has not stored the second."""
    node = Node(1, 2)
    node.answers = [[FENCED]]

    async def scenario() -> None:
        async with node.producer(producer_id="p", linger_ms=1) as producer:
            assert [type(error) for error in await errors_of_two(producer)] == [ProducerFencedError, ProducerFencedError]

    node.run(scenario)


def test_a_broker_that_forgot_the_producer_cannot_say_whether_it_stored_a_batch() -> None:
    """docs/reference/semantics, row P2: sent again under new numbers it might be there twice."""
    forgotten = OutOfOrderSequenceError("expected 0", expected=0)
    node = Node(1, 2, 2, 1)
    node.answers = [[], [forgotten, forgotten], [None]]

    async def scenario() -> None:
        async with node.producer(linger_ms=1) as producer:
            errors = await errors_of_two(producer)
            assert [type(error) for error in errors] == [OutcomeUnknownError, OutcomeUnknownError]
            assert await error_of(producer.send_async(Message("t", b"2"))) is None

    node.run(scenario)


async def errors_of_two(producer: Producer) -> list[DledgerError | None]:
    """Of two messages that are in flight at once, in requests of their own, to the same queue."""
    await producer._core.resolve("t", 1 << 62)
    first = producer.send_async(Message("t", b"0"), queue_id=0)
    await asyncio.sleep(0.01)
    second = producer.send_async(Message("t", b"1"), queue_id=0)
    return [await error_of(first), await error_of(second)]


@pytest.mark.parametrize(
    "error",
    [PermissionDeniedError("user shop may not write topic t"), MessageTooLargeError("message 0: body over 4 bytes", first_bad=0)],
    ids=["rights", "size"],
)
def test_a_refusal_says_nothing_of_an_attempt_before_that_was_not_acknowledged(error: DledgerError) -> None:
    """A leader refuses by these before it looks for the batch: rights were taken away, or a limit lowered, between the two attempts.

    What follows goes under a new epoch: under the sequence of the first attempt it was acknowledged as that, if that was stored, and lost.
    """

    node = Node(1, 1, 1, 1)
    node.answers = [[], [error], [None]]

    async def scenario() -> None:
        async with node.producer(linger_ms=20) as producer:
            await producer._core.resolve("t", 1 << 62)
            both = [producer.send_async(Message("t", body), queue_id=0) for body in (b"12345", b"1")]
            assert [type(await error_of(each)) for each in both] == [OutcomeUnknownError] * 2
            assert node.registered == 1
            assert await error_of(producer.send_async(Message("t", b"2"), queue_id=0)) is None
            assert node.registered == 2

    node.run(scenario)


def test_a_refusal_behind_a_lost_attempt_takes_no_sequence_for_free() -> None:
    """As above, for a refusal that the leader gives when it has looked: an attempt that is in its log and not committed is not found."""
    node = Node(1, 1, 1, 1)
    node.answers = [[], [TopicPermissionError("topic t: writing is not permitted (perm 4)")], [None]]

    async def scenario() -> None:
        async with node.producer(linger_ms=1) as producer:
            await producer._core.resolve("t", 1 << 62)
            assert isinstance(await error_of(producer.send_async(Message("t", b"1"), queue_id=0)), TopicPermissionError)
            assert await error_of(producer.send_async(Message("t", b"2"), queue_id=0)) is None
            assert node.registered == 2

    node.run(scenario)


def test_what_no_connection_was_made_for_is_not_stored_for_certain() -> None:
    """As with a user that was deleted, whom the leader does not let in any more; it is sent when there is a connection, once."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=3_000) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"before"))
            leader = rig.cluster.hosts[rig.master]
            listener = rig.cluster.net.listeners.pop(leader.address)
            rig.cluster.net.break_connections(CLIENT_IP, leader.ip)
            await asyncio.sleep(1)
            with pytest.raises(NotSentError, match="nothing was stored"):
                await producer.send(Message("t", b"refused"))
            sending = [producer.send_async(Message("t", b"%d" % number)) for number in range(3)]
            await asyncio.sleep(1)
            rig.cluster.net.listeners[leader.address] = listener
            await asyncio.gather(*sending)
            assert [message.body for message in await consumer.fetch("t", 0, 0)] == [b"before", b"0", b"1", b"2"]

    Rig().run(scenario)
