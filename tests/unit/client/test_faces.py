"""What applications see of messages and of the futures of sends: signatures, subclasses, pickles, what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from dledger_client import Message, SendFuture
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_wire.errors import InvalidArgumentError
from tests.unit.client.sim_rig import Rig
from tests.unit.client.tracing_rig import recorded

FULL = Message("t", b"body", tags="a", keys=["k1", "k2"], flag=7, delay_level=3, properties={"name": "value"})


class Order(Message):
    """A message of an application's own."""

    def __init__(self, number: int, *, tags: str = "order") -> None:
        super().__init__("orders", b"%d" % number, tags=tags, keys=f"o-{number}")
        self.number = number


def held(message: Message) -> list[object]:
    return [getattr(message, name) for name in Message.__slots__]


def test_a_class_of_an_applications_own_is_a_message() -> None:
    order = Order(7)
    assert repr(order) == "Message('orders', b'7' (1 bytes), tags='order', keys='o-7')"
    clone = order.clone()
    assert (type(clone), held(clone)) == (Message, held(order))

    async def scenario(rig: Rig) -> None:
        await rig.topic("orders")
        async with rig.producer() as producer, rig.consumer() as consumer:
            result = await producer.send(order)
            found = await consumer.fetch("orders", result.queue_id, result.queue_offset)
            assert [(each.body, each.keys, each.tags) for each in found] == [(b"7", "o-7", "order")]

    Rig().run(scenario)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_message_is_pickled_with_all_that_it_holds(protocol: int) -> None:
    for message in (FULL, Order(7)):
        again = pickle.loads(pickle.dumps(message, protocol))  # noqa: S301 - our own
        assert (type(again), held(again)) == (type(message), held(message))
    assert pickle.loads(pickle.dumps(Order(7), protocol)).number == 7  # noqa: S301 - our own
    assert held(copy.deepcopy(FULL)) == held(copy.copy(FULL)) == held(FULL)
    assert FULL.__reduce_ex__(2)[2] == (None, {name: getattr(FULL, name) for name in Message.__slots__})


def test_a_message_is_itself_alone_and_has_no_other_attributes() -> None:
    message = Message("t", b"x")
    assert message != Message("t", b"x")
    assert {message: 1}[message] == 1
    with pytest.raises(AttributeError):
        message.other = 1  # type: ignore[attr-defined]
    assert not hasattr(message, "__dict__")


def test_what_python_takes_for_bytes_and_whole_numbers_is_taken() -> None:
    assert [Message("t", body).body for body in (bytearray(b"x"), memoryview(b"x"))] == [b"x", b"x"]  # type: ignore[arg-type]
    assert [Message("t", b"", flag=flag).flag for flag in (np.int32(5), True)] == [5, 1]  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="expected -2147483648 to 2147483647"):
        Message("t", b"", flag=1 << 80)


def test_what_is_no_message_is_refused_by_name() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))
            with pytest.raises(TypeError, match="a message to send is a Message, not str"):
                producer.send_async("text")  # type: ignore[arg-type]
            with recorded() as spans, pytest.raises(TypeError, match="a message to send is a Message, not str"):
                producer.send_async("text")  # type: ignore[arg-type]
            assert not spans.names()

    Rig().run(scenario)


def test_numbers_of_queues_may_be_numpys() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer:
            numbers: list[Any] = [np.int64(1), np.uint8(1)]
            places = [await producer.send(Message("t", b"x"), queue_id=each) for each in numbers]
            places += [(await producer.send_batch([Message("t", b"x")], queue_id=each))[0] for each in numbers]
            assert [place.queue_id for place in places] == [1, 1, 1, 1]

    Rig().run(scenario)


def test_a_future_that_its_own_callback_holds_is_let_go_when_it_is_known() -> None:
    known = weakref.ref(waiting())
    gc.collect()
    assert known() is None


def waiting() -> Mark:
    """What is in a cycle: a future, its report, a callback that holds both the future and this."""
    report, mark = DeliveryReport(threading.Lock(), "t", "g0", 0), Mark()
    mark.future = SendFuture(report, 0)
    mark.future.add_done_callback(lambda _: mark)
    report.settle()
    return mark


class Mark:
    """What a callback holds."""

    future: SendFuture
