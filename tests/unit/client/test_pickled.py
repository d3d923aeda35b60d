"""What clients return, handed to other processes: a pool of workers gets messages and chunks, and gives results back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from dledger_client.aio import Message
from dledger_client.fetch.records import Chunk, ReceivedMessage, RetriedMessage
from tests.unit.client.sim_rig import Rig

FIELDS = (
    *("topic", "replica_group", "queue_id", "queue_offset", "replica", "body", "properties", "tags", "keys", "trace_context", "msg_id"),
    *("offset_msg_id", "physical_offset", "born_timestamp", "store_timestamp", "born_host", "flag", "reconsume_times"),
)


def fields(message: ReceivedMessage) -> list[Any]:
    return [getattr(message, name) for name in FIELDS]


def both_ways(value: Any) -> list[Any]:
    return [*(pickle.loads(pickle.dumps(value, protocol)) for protocol in (2, pickle.HIGHEST_PROTOCOL)), copy.deepcopy(value)]  # noqa: S301 - our own


@pytest.mark.parametrize("kind", [ReceivedMessage, RetriedMessage])
@pytest.mark.parametrize("without_body", [False, True])
def test_messages_and_chunks_are_pickled_with_all_that_they_hold(kind: type[ReceivedMessage], without_body: bool) -> None:
    """Their bytes are views of what the connection received, which cannot be pickled."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            for body in (b"first", b"compressed " * 4096, b""):
                await producer.send(Message("t", body, tags="paid", keys="o-1 o-2", properties={"a": "ä"}, flag=7))
            (chunk,) = [each async for each in consumer.scan_chunks("t", without_body=without_body) if each.count]
            messages = chunk.messages(kind)
            for message in messages:
                for again in both_ways(message):
                    assert (type(again), fields(again)) == (type(message), fields(message))
            assert len(pickle.dumps(messages[0])) < 2048, "no other message of its chunk comes along"
            for other in both_ways(chunk):
                assert isinstance(other, Chunk)
                assert [fields(message) for message in other.messages(kind)] == [fields(message) for message in messages]
                assert (other.next_offset, other.max_offset, other.lag) == (chunk.next_offset, chunk.max_offset, chunk.lag)
                assert other.damaged_offset() is None

    Rig().run(scenario)


def test_the_result_of_many_bodies_is_pickled() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer:
            result = await producer.send_many("t", [b"%d" % number for number in range(100)])
            for again in both_ways(result):
                assert (again.topic, again.count, again.ranges, again.msg_ids()) == ("t", 100, result.ranges, result.msg_ids())

    Rig().run(scenario)


def test_messages_hold_on_to_what_is_cut_from_their_chunk_later() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"first", b"second"], keys=["o-1", "o-2"])
            whole, chunk = [(await consumer.fetch_chunks("t", 0, 0))[0] for _ in range(2)]
            expected, messages = whole.messages(), chunk.messages()
            chunk.cut(1)
            assert [each.body for each in chunk.messages()] == [b"first"]
            assert [fields(message) for message in pickle.loads(pickle.dumps(messages))] == [fields(each) for each in expected]  # noqa: S301
            assert [fields(message) for message in messages] == [fields(each) for each in expected]

    Rig().run(scenario)
