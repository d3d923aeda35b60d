"""One request does not keep a node busy: what may be asked for is limited, and what is long is worked off in slices."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from google.protobuf.message import Message as Request

from broker.api.produce_request import MAX_BATCHES, SLICE_BATCHES, SLICE_BYTES, slices_of
from broker.api.queue_offsets import MAX_TOPICS_QUEUES, QUEUES_AT_ONCE, SEARCHES_AT_ONCE, QueueOffsetsService
from broker.support.limits import MAX_ITEMS, in_slices
from dledger_client.aio import Message
from dledger_wire._pb import broker_pb2, pop_pb2, query_pb2, retry_pb2, sessions_pb2, transaction_pb2, types_pb2
from dledger_wire.batches.batch import COMMAND_HEADER_SIZE
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import envelope, methods
from tests.unit.client.sim_rig import Rig

if TYPE_CHECKING:
    from broker.context import ServiceContext
    from dledger_wire.rpc.transport import CallContext

TOO_MANY = MAX_ITEMS + 1
CALLS: dict[methods.UnaryMethod[Any, Any], Request] = {
    methods.METADATA: broker_pb2.MetadataRequest(topics=["t"] * TOO_MANY),
    methods.QUEUE_OFFSETS: broker_pb2.OffsetsRequest(queues=[broker_pb2.QueueRef(topic="t")] * TOO_MANY),
    methods.COMMIT_OFFSETS: broker_pb2.CommitOffsetsRequest(group="g", offsets=[broker_pb2.GroupOffset(topic="t")] * TOO_MANY),
    methods.GROUP_OFFSETS: broker_pb2.GroupOffsetsRequest(groups=["g"] * TOO_MANY),
    methods.INIT_PRODUCER: broker_pb2.InitProducerRequest(producer_name="g" * TOO_MANY),
    methods.DEAD_LETTERS: retry_pb2.DeadLettersRequest(groups=["g"] * TOO_MANY),
    methods.SEND_BACK: retry_pb2.SendBackRequest(group="g", topic="t", offsets=range(TOO_MANY)),
    methods.RECEIVE: pop_pb2.ReceiveRequest(group="g", topic="t", max_messages=TOO_MANY, invisible_ms=1_000),
    methods.ACKNOWLEDGE: pop_pb2.ReceiptsRequest(group="g", topic="t", receipts=[pop_pb2.Receipt()] * TOO_MANY),
    methods.CHANGE_INVISIBLE: pop_pb2.ChangeInvisibleRequest(group="g", topic="t", receipts=[pop_pb2.Receipt()] * TOO_MANY),
    methods.MOVE_TO_DEAD_LETTERS: pop_pb2.ReceiptsRequest(group="g", topic="t", receipts=[pop_pb2.Receipt()] * TOO_MANY),
    methods.DESCRIBE_MEMBERS: sessions_pb2.DescribeMembersRequest(groups=["g"] * TOO_MANY),
    methods.END_TRANSACTIONS: transaction_pb2.EndTransactionsRequest(
        producer_group="g", ends=[transaction_pb2.TransactionEnd()] * TOO_MANY
    ),
    methods.QUERY_MESSAGES: query_pb2.QueryMessagesRequest(topic="t", key="k" * 40_000),
}


def test_a_request_for_too_much_is_refused_in_one_line() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        router = rig.router()
        await router.ensure_group("g0", router.clock.monotonic_ms() + 5000)
        for method, request in CALLS.items():
            deadline_ms = router.clock.monotonic_ms() + 5000
            with pytest.raises(InvalidArgumentError, match=r"at most|1 to"):
                await router.call_leader("g0", method, request, deadline_ms=deadline_ms)
        await router.close()

    Rig().run(scenario)


@pytest.mark.parametrize(
    ("join", "text"),
    [
        ({"subscriptions": [sessions_pb2.SessionSubscription()] * TOO_MANY}, "10001 subscriptions of a member"),
        ({"known_members": ["a"] * TOO_MANY}, "10001 members known to a member"),
        ({"queues": [sessions_pb2.QueuePlace()] * 200_001}, "200001 queues consumed by a member"),
        ({"client_id": "a\nb"}, "expected printable characters"),
    ],
)
def test_a_member_that_says_too_much_is_refused(join: dict[str, Any], text: str) -> None:
    async def scenario(rig: Rig) -> None:
        router = rig.router()
        address = rig.cluster.hosts[rig.master].address
        said = sessions_pb2.SessionJoin(**{"group": "g", "client_id": "c", "session_id": "s", **join})
        stream = router.channel(address).open(methods.JOIN_GROUP.path)
        await stream.write(sessions_pb2.MemberMessage(join=said).SerializeToString())
        with pytest.raises(InvalidArgumentError, match=text):
            await stream.read()
        await router.close()

    Rig().run(scenario)


class EveryQueue:
    """A store whose queues all hold offsets 3 to 9, found by time at 5 without a look at a disk."""

    applied_index = 1
    topics = SimpleNamespace(require=lambda name: SimpleNamespace(topic_epoch="1"))
    queues = 4

    @property
    def reader(self) -> EveryQueue:
        return self

    def bounds(self, _topic: str, _queue_id: int) -> tuple[int, int]:
        return 3, 9

    def bounds_of_topic(self, _topic: str) -> tuple[list[int], list[int]]:
        return [3] * self.queues, [9] * self.queues

    async def offset_for_time(self, _topic: str, _queue_id: int, _timestamp_ms: int) -> int:
        return 5


def offsets_of(store: EveryQueue) -> QueueOffsetsService:
    parts = {"store": store, "roles": SimpleNamespace(master_term=1), "answering_replica": types_pb2.AnsweringReplica}
    return QueueOffsetsService(cast("ServiceContext", SimpleNamespace(**parts)))


def test_other_work_goes_on_while_the_queues_of_many_topics_are_told() -> None:
    async def main() -> None:
        service, turns = offsets_of(EveryQueue()), 0
        request = broker_pb2.OffsetsRequest(topics=[f"t{number}" for number in range(MAX_ITEMS)])
        call = asyncio.ensure_future(service.offsets(request, cast("CallContext", None)))
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > EveryQueue.queues * MAX_ITEMS // QUEUES_AT_ONCE
        told = call.result().topics
        assert [each.topic for each in told] == list(request.topics)
        packed = (3).to_bytes(8, "big") * 4, (9).to_bytes(8, "big") * 4
        assert {(each.min_offsets, each.max_offsets, each.incarnation) for each in told} == {(*packed, "1")}
        many = EveryQueue()
        many.queues = MAX_TOPICS_QUEUES // 10 + 1
        with pytest.raises(InvalidArgumentError, match=f"queues of topics in one request; expected at most {MAX_TOPICS_QUEUES}"):
            await offsets_of(many).offsets(broker_pb2.OffsetsRequest(topics=["t"] * 10), cast("CallContext", None))

    asyncio.run(main())


def test_other_work_goes_on_while_many_times_are_searched() -> None:
    async def main() -> None:
        service = offsets_of(EveryQueue())
        refs = [broker_pb2.QueueRef(topic="t", queue_id=number, timestamp_ms=number % 2 - 1) for number in range(MAX_ITEMS)]
        request, turns = broker_pb2.OffsetsRequest(queues=refs), 0
        calls = [asyncio.ensure_future(service.offsets(request, cast("CallContext", None))) for _ in range(3)]
        while not all(call.done() for call in calls):
            await asyncio.sleep(0)
            turns += 1
        assert turns > 3 * MAX_ITEMS // 2 // SEARCHES_AT_ONCE  # the searches of all three came one after the other
        found = calls[0].result().queues
        assert [(each.queue_id, each.min_offset, each.max_offset) for each in found] == [(number, 3, 9) for number in range(MAX_ITEMS)]
        assert [each.offset_for_time for each in found] == [9, 5] * (MAX_ITEMS // 2)

    asyncio.run(main())


def test_items_in_slices_are_all_of_them_in_order() -> None:
    async def main() -> list[int]:
        return [item async for item in in_slices(range(1001), 10)]

    assert asyncio.run(main()) == list(range(1001))


def records(*sizes: int) -> memoryview:
    return memoryview(b"".join(bytes(4) + size.to_bytes(4, "big") + bytes(size - 8) for size in sizes))


def test_a_payload_is_cut_between_its_records() -> None:
    assert slices_of(memoryview(b"")) == [(0, 0, 1)]
    assert slices_of(memoryview(b"x" * 100)) == [(0, 100, 1)]
    many = records(*[32] * (2 * SLICE_BATCHES + 1))
    assert slices_of(many) == [
        (0, 32 * SLICE_BATCHES, SLICE_BATCHES),
        (32 * SLICE_BATCHES, 64 * SLICE_BATCHES, SLICE_BATCHES),
        (64 * SLICE_BATCHES, len(many), 1),
    ]
    large = records(SLICE_BYTES, SLICE_BYTES // 2, SLICE_BYTES // 2, 64)
    assert [count for _, _, count in slices_of(large)] == [1, 2, 1]
    torn = memoryview(bytes(records(64, 64)) + b"rest")
    assert slices_of(torn) == [(0, len(torn), 2)]
    with pytest.raises(InvalidArgumentError, match="10001 batches in one request; expected at most 10000"):
        slices_of(records(*[COMMAND_HEADER_SIZE] * (MAX_BATCHES + 1)))


def test_a_request_of_many_bad_batches_is_answered_for_each_and_does_no_harm() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        router = rig.router()
        stream = router.channel(rig.cluster.hosts[rig.master].address).open(methods.PRODUCE.path)
        bad = records(*[64] * (SLICE_BATCHES + 5))
        await stream.write(envelope.encode(broker_pb2.ProduceRequest(request_id=7), [bad]))
        message = await stream.read()
        assert message is not None
        answer = broker_pb2.ProduceResponse.FromString(message)
        assert (answer.request_id, len(answer.results)) == (7, SLICE_BATCHES + 5)
        assert {result.error.code for result in answer.results} == {"CORRUPT_BATCH"}
        await stream.write(envelope.encode(broker_pb2.ProduceRequest(request_id=8), [records(*[64] * (MAX_BATCHES + 1))]))
        with pytest.raises(DledgerError, match="batches in one request"):
            await stream.read()
        await router.close()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))

    Rig().run(scenario)
