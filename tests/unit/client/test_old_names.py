"""Old names of public parameters and attributes: each works for one version and warns with the new name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dledger_client import Chunk, ConsumeContext, MessageQueue, QueueOffsets, SendResult, SendStatus, TopicQueues, aio
from dledger_client.deprecation import renamed_arguments
from dledger_client.fetch.records import ReceivedMessage
from tests.unit.client.sim_rig import Rig

CHUNK = Chunk("t", "g0", 0, "n0", np.array([], np.int64), np.array([], np.int64), b"")

ATTRIBUTES: list[tuple[object, str, str]] = [
    (TopicQueues("t", "g0", 1, 1, 6, "7"), "group", "replica_group"),
    (TopicQueues("t", "g0", 1, 1, 6, "7"), "incarnation", "topic_epoch"),
    (QueueOffsets(0, 1, 0, "7"), "incarnation", "topic_epoch"),
    (MessageQueue("t", "g0", 0), "group", "replica_group"),
    (ConsumeContext("t", "g0", 0), "group", "replica_group"),
    (SendResult(SendStatus.SEND_OK, "id", "t", "g0", 0, 0, 0), "group", "replica_group"),
    (CHUNK, "group", "replica_group"),
]


@pytest.mark.parametrize(("value", "old", "new"), ATTRIBUTES, ids=lambda each: each if isinstance(each, str) else type(each).__name__)
def test_an_attribute_has_its_old_name(value: object, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{type(value).__name__}.{old} is deprecated, use {new}"):
        assert getattr(value, old) == getattr(value, new) != ""


async def _read(consumer: aio.PullConsumer, **named: Any) -> list[ReceivedMessage]:
    return [message async for chunk in consumer.read_chunks("t", 0, 0, **named) for message in chunk.messages()]


CALLS: dict[str, Callable[[aio.PullConsumer], Any]] = {
    "commit(group_name=) replica_group=": lambda consumer: consumer.commit({("t", 0): 1}, group_name="g0"),  # type: ignore[call-arg]
    "send_back(group_name=) replica_group=": lambda consumer: consumer.send_back("t", 0, [0], group_name="g0"),  # type: ignore[call-arg]
    "fetch(group_name=) replica_group=": lambda consumer: consumer.fetch("t", 0, 0, group_name="g0"),  # type: ignore[call-arg]
    "fetch_chunks(group_name=) replica_group=": lambda consumer: consumer.fetch_chunks("t", 0, 0, group_name="g0"),  # type: ignore[call-arg]
    "read_chunks(group_name=) replica_group=": lambda consumer: _read(consumer, end=1, group_name="g0"),
    "read_chunks(upto=) end=": lambda consumer: _read(consumer, upto=1),
    "read_chunks(incarnation=) topic_epoch=": lambda consumer: _read(consumer, end=1, incarnation=""),
}


def test_a_parameter_has_its_old_name() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        async with rig.producer() as producer:
            result = await producer.send(aio.Message("t", b"one"))
        async with rig.consumer() as consumer:
            for text, call in CALLS.items():
                old, new = text.split()
                with pytest.warns(DeprecationWarning, match="is deprecated") as warned:
                    await call(consumer)
                assert [str(each.message) for each in warned] == [
                    f"PullConsumer.{old} is deprecated, use {new}; the old name will be removed in the next version"
                ]
                assert warned[0].filename == __file__
            (message,) = await consumer.fetch("t", 0, 0)
            with pytest.warns(DeprecationWarning, match="ReceivedMessage.group is deprecated, use replica_group"):
                assert message.group == result.replica_group == "g0"

    Rig().run(scenario)


def test_settings_of_a_consumer_have_their_old_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"PullConsumer.__init__\(mend=\) is deprecated, use repair="):
        asyncio.run(aio.PullConsumer("127.0.0.1:1", mend=False).close())  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["network", "clock", "random"])
def test_what_a_client_takes_from_its_machine_has_its_old_parameters(name: str) -> None:
    for make in (aio.Admin, aio.Producer, aio.PullConsumer, aio.PushConsumer, aio.LogicalQueueReader):
        arguments = ("127.0.0.1:1",) if make is aio.Admin else ("127.0.0.1:1", "g")
        with pytest.warns(DeprecationWarning, match=rf"{name}=\) is deprecated, use dledger_client.runtime.environment.use_environment"):
            make(*arguments, **{name: None})
    with pytest.warns(DeprecationWarning, match="around="):
        aio.LogicalQueueWriter("127.0.0.1:1", "t", around={name: None})  # type: ignore[call-arg]


def test_one_argument_by_both_names_is_refused() -> None:
    class Base:
        @renamed_arguments(old="new")
        def method(self, new: int) -> int:
            return new

    class Used(Base): ...

    with pytest.raises(TypeError, match=r"Used\.method\(\) got 'old' and 'new', which are the same argument"):
        Used().method(old=1, new=2)  # type: ignore[call-arg]
