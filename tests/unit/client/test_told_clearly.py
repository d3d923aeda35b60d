"""A caller's mistake is told to the caller at once, in one line that says what was expected."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import dledger_client
import dledger_client.aio
import dledger_wire.errors
from dledger_client import Message
from dledger_client.aio import Action, Admin, ConsumeContext, Producer, PullConsumer, PushConsumer
from dledger_client.cluster.channels import parse_bootstrap
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.producer.settings import ProducerOptions
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError, InvalidNameError, OffsetOutOfRangeError
from dledger_wire.frames.compress import MAX_BODY_BYTES, compress, decompress
from dledger_wire.status import Compression
from tests.unit.client.sim_rig import Rig, until


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"topic": None}, "a message's topic is text, not NoneType"),
        ({"tags": ["a"]}, "a message's tag is text, not list"),
        ({"keys": 5}, "a message's keys are text or a list of texts, not int"),
        ({"keys": b"k"}, "a message's keys are text or a list of texts, not bytes"),
        ({"properties": {"a": 1}}, "property 'a': names and values are text, not int"),
        ({"properties": {"a": None}}, "property 'a': names and values are text, not NoneType"),
        ({"properties": {1: "a"}}, "property 1: names and values are text, not int"),
        ({"flag": "1"}, "a message's flag is a whole number, not str"),
        ({"delay_level": 1.5}, "a message's delay_level is a whole number, not float"),
        ({"deliver_at_ms": "soon"}, "a message's deliver_at_ms is a whole number, not str"),
        ({"body": "text"}, "a message body is bytes, not str; encode text first"),
    ],
)
def test_a_message_of_wrong_types_is_refused(how: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, InvalidArgumentError)) as refused:
        Message(**({"topic": "t", "body": b"x"} | how))
    assert str(refused.value) == text


def test_a_bootstrap_may_be_a_list() -> None:
    assert parse_bootstrap(["a:1", "b:2,a:1"]) == ["a:1", "b:2"]
    for wrong in (None, 5, [b"a:1"], {"a:1": 1}):
        with pytest.raises(InvalidArgumentError, match=r"bootstrap .*: expected host:port"):
            parse_bootstrap(wrong)  # type: ignore[arg-type]


def test_a_producer_takes_no_body_that_consumers_would_not_open() -> None:
    """Compressed, one of more than 64 MiB passed the brokers' limit, and was stored for nobody."""
    assert decompress(compress(bytes(MAX_BODY_BYTES), Compression.ZSTD), Compression.ZSTD) == bytes(MAX_BODY_BYTES)
    assert ProducerOptions(max_message_bytes=MAX_BODY_BYTES).max_message_bytes == MAX_BODY_BYTES
    with pytest.raises(InvalidArgumentError, match="max_message_bytes 67108865: expected 1 to 67108864"):
        ProducerOptions(max_message_bytes=MAX_BODY_BYTES + 1)


def test_a_producer_does_not_wait_for_more_messages_until_those_it_has_fail() -> None:
    """They did, one by one, with words of a replica group that is slow."""
    assert ProducerOptions(linger_ms=9_999).linger_ms == 9_999
    endless: tuple[dict[str, Any], ...] = ({"linger_ms": 10_000}, {"linger_ms": 500, "send_timeout_ms": 500})
    for settings in endless:
        with pytest.raises(InvalidArgumentError, match=r"linger_ms \d+: expected less than send_timeout_ms, \d+; messages would wait"):
            ProducerOptions(**settings)


def test_settings_of_wrong_types_and_names_are_refused() -> None:
    settings: dict[str, Any]
    for settings in ({"group": 5}, {"producer_id": 5}, {"linger_ms": "1"}, {"batch_bytes": None}, {"compress_level": "1"}):
        with pytest.raises(InvalidArgumentError, match=r"expected (text|a whole number)"):
            ProducerOptions(**settings)
    with pytest.raises(InvalidArgumentError, match="latency_max 5: expected Sequence"):
        ProducerOptions(latency_max=5)  # type: ignore[arg-type]
    for times in ("12", (1, None)):
        with pytest.raises(InvalidArgumentError, match=r"latency_max .*: expected Number"):
            ProducerOptions(latency_max=times, not_available_duration=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no setting 'lingr_ms'; did you mean 'linger_ms'"):
        ProducerOptions.of("g", {"lingr_ms": 1})


@pytest.mark.parametrize("timeout_ms", [0, -1, "5000", None, 0.5])
def test_an_admin_without_a_time_is_not_made(timeout_ms: Any) -> None:
    """As the other clients; it failed at its first call, with a TypeError."""
    with pytest.raises(InvalidArgumentError, match=rf"^timeout_ms {timeout_ms!r}: expected"):
        Admin("127.0.0.1:1", timeout_ms=timeout_ms)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"consume_threads": "4"}, "consume_threads '4': expected a whole number"),
        ({"consumeThreadMax": None}, "consumeThreadMax None: expected a whole number"),
        ({"pull_batch_size": 2.5}, "pull_batch_size 2.5: expected a whole number"),
        ({"pullThresholdSizeForQueue": "1"}, "pullThresholdSizeForQueue '1': expected a whole number"),
        ({"persist_offset_interval_ms": float("nan")}, "persist_offset_interval_ms nan: expected a whole number"),
        ({"max_reconsume_times": 1 << 32}, "max_reconsume_times 4294967296: expected -1 to 4294967295"),
        ({"consume_timestamp": 1_790_000_000}, "consume_timestamp 1790000000: expected milliseconds since 1970, of 13 digits"),
        ({"orderly": "no"}, "orderly 'no': expected True or False"),
        ({"broadcast": 1}, "broadcast 1: expected True or False"),
        ({"messageModel": []}, "messageModel []: expected BROADCASTING or CLUSTERING"),
        ({"offset_folder": 5}, "offset_folder 5: expected the path of a folder"),
        ({"allocate_strategy": 5}, "allocate_strategy 5: expected a strategy's name, or a function"),
        ({"allocate_options": "x"}, "allocate_options 'x': expected options by name"),
        (
            {"allocate_strategy": "CONSISTENT_HASH", "allocate_options": {"virtual_nodes": "x"}},
            "virtual_nodes 'x': expected a whole number",
        ),
        ({"client_id": 5}, "client_id 5: expected text"),
        ({"client_id": "a\nb"}, r"client_id 'a\nb': expected at most 255 printable characters"),
        ({"client_id": "c" * 256}, f"client_id {'c' * 40!r}: expected at most 255 printable characters"),
        *(
            (
                {"broadcast": True, "client_id": name},
                f"client_id {name!r}: expected a name of a folder below offset_folder",
            )
            for name in ("../x", "a/../../x", "/x", "..")
        ),
        ({"timeout_ms": 0}, "timeout_ms 0: expected 1 to 4294967295"),
        ({"listener": "print"}, "listener 'print': expected a function of messages and their context"),
    ],
)
def test_a_push_consumer_of_wrong_settings_is_not_made(settings: dict[str, Any], text: str) -> None:
    """Some of these let it start, and consume nothing for ever, or made every message a dead letter."""
    for face in (dledger_client.aio.PushConsumer, dledger_client.PushConsumer):
        with pytest.raises(InvalidArgumentError) as refused:
            face("127.0.0.1:1", "g", **settings)
        assert str(refused.value) == text


def test_what_a_push_consumer_cannot_use_is_told_before_it_starts() -> None:
    async def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        return Action.COMMIT

    class Listener:
        __call__ = staticmethod(listener)

    consumer = PushConsumer("127.0.0.1:1", "g", listener)
    what: dict[str, Any]
    for what, text in (({"expression": ["a"]}, r"tags \['a'\]: expected text"), ({"sql": 5}, "sql 5: expected text")):
        with pytest.raises(InvalidArgumentError, match=text):
            consumer.subscribe("t", **what)
    with pytest.raises(InvalidNameError, match="topic name 5: expected text"):
        consumer.subscribe(5)  # type: ignore[arg-type]
    for each in (listener, partial(listener), Listener()):
        in_threads = dledger_client.PushConsumer("127.0.0.1:1", "g", each)
        in_threads.subscribe("t")
        with pytest.raises(InvalidArgumentError, match=r"is a coroutine function; the PushConsumer of dledger_client.aio takes those"):
            in_threads.start()
        in_threads.shutdown()


def test_a_listener_cannot_be_set_once_the_consumer_runs() -> None:
    """It was taken, and never called."""

    async def scenario(rig: Rig) -> None:
        consumer = member_called(rig, "a")
        async with consumer:
            with pytest.raises(InvalidArgumentError, match="set the listener before the consumer is started"):
                consumer.set_listener(lambda *_: Action.COMMIT)

    Rig().run(scenario)


def test_every_error_is_a_name_of_the_clients() -> None:
    names = {name for name, found in vars(dledger_wire.errors).items() if isinstance(found, type) and issubclass(found, DledgerError)}
    for package in (dledger_client, dledger_client.aio):
        assert names <= set(package.__all__)
        assert all(hasattr(package, name) for name in package.__all__)


def test_calls_with_wrong_arguments_are_refused_by_name() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            assert repr(producer) == f"<aio.Producer 'tests' at {rig.cluster.bootstrap}>"
            assert repr(consumer) == f"<aio.PullConsumer 'tests' at {rig.cluster.bootstrap}>"
            assert repr(admin) == f"<aio.Admin at {rig.cluster.bootstrap}>"
            await producer.send(Message("t", b"x"))
            with pytest.raises(InvalidArgumentError, match="queue_key 5: expected text, or a function"):
                await producer.send(Message("t", b"x"), queue_key=5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="retry_max"):
                await admin.update_group("g", retry_max=3)  # type: ignore[call-arg]
            with pytest.raises(InvalidArgumentError, match="settings of consumer group 'g'"):
                await admin.update_group("g", retry_max_times="many")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="offset '1': expected a whole number"):
                await consumer.fetch("t", 0, "1")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="group 5: expected"):
                rig.consumer(5)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match=r"tags \['a'\]: expected text"):
                await consumer.fetch("t", 0, 0, tags=["a"])  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="replica_group 5: expected text"):
                await consumer.fetch("t", 0, 0, replica_group=5)  # type: ignore[arg-type]
            with pytest.raises(InvalidNameError, match="topic name 5: expected text"):
                await consumer.fetch(5, 0, 0)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="end '5': expected a whole number"):
                await anext(consumer.read_chunks("t", 0, 0, "5"))  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="offset -1: expected 0 to"):
                await consumer.send_back("t", 0, [-1])
            with pytest.raises(InvalidArgumentError, match="delay_level 19: expected -1 to 18"):
                await consumer.send_back("t", 0, [0], delay_level=19)
            with pytest.raises(InvalidNameError, match="topic name 5: expected text"):
                await consumer.new_queues(5, ())  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match=re.escape("known None: expected queues, (replica group, queue id)")):
                await consumer.new_queues("t", None)  # type: ignore[arg-type]
            for positions, text in (
                (None, "positions None: expected offsets by (topic, queue id)"),
                ([("t", 0, 1)], "positions [('t', 0, 1)]: expected offsets by (topic, queue id)"),
                (5, "positions 5: expected offsets by (topic, queue id)"),
                ({"t": 1}, "positions: 't' is no queue; expected (topic, queue id)"),
                ({("t", "g0", 0): 1}, "positions: ('t', 'g0', 0) is no queue; expected (topic, queue id)"),
                ({("t", 0): None}, "offset None: expected a whole number"),
            ):
                with pytest.raises(InvalidArgumentError, match=re.escape(text)):
                    await consumer.commit(positions)  # type: ignore[arg-type]
            for batch in (["x"], [Message("t", b"x"), "x"]):
                with pytest.raises(TypeError, match="a message to send is a Message, not str"):
                    await producer.send_batch(batch)  # type: ignore[arg-type]

    Rig().run(scenario)


def test_a_position_behind_the_end_of_a_queue_is_refused() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.consumer("g") as consumer:
            await producer.send(Message("t", b"x"))
            for reset in (False, True):
                with pytest.raises(OffsetOutOfRangeError, match=r"group g: t/0: offset 2 to commit; the queue ends at 1"):
                    await consumer.commit({("t", 0): 2}, reset=reset)
                await consumer.commit({("t", 0): 1}, reset=reset)
            assert await consumer.committed("t") == {("g0", 0): 1}

    Rig().run(scenario)


def test_a_client_on_another_loop_than_before_says_so() -> None:
    """As with two calls of ``asyncio.run``: each ended with a text of asyncio about futures, or pretended to run.

    A send waited for ever.
    """
    nowhere = "127.0.0.1:1"
    puller, admin = PullConsumer(nowhere, "g", timeout_ms=200), Admin(nowhere, timeout_ms=200)
    pusher = PushConsumer(nowhere, "g", lambda *_: Action.COMMIT, timeout_ms=200)
    pusher.subscribe("t")
    producer = Producer(nowhere, send_timeout_ms=200)

    async def once(call: Callable[[], Awaitable[object]]) -> object:
        return await call()

    calls: list[Callable[[], Awaitable[object]]] = [lambda: puller.fetch("t", 0, 0), admin.list_topics, pusher.start]
    with asyncio.Runner() as another:
        for first in (*calls, lambda: producer.send(Message("t", b"x"))):
            with contextlib.suppress(DledgerError):
                another.run(once(first))
        sends: list[Callable[[], Awaitable[object]]] = [
            lambda: producer.send(Message("t", b"x")),
            lambda: producer.send_many("t", [b"x"]),
            lambda: producer.send_batch([Message("t", b"x")]),
            producer.flush,
        ]
        for again in (*calls, *sends, puller.close, admin.close, pusher.shutdown, producer.close):
            with pytest.raises(RuntimeError, match=r"an event loop that is not this one; make one in each asyncio.run"):
                asyncio.run(once(again))
            assert not pusher.is_running
        for close in (puller.close, admin.close, pusher.shutdown, producer.close):
            another.run(once(close))


def member_called(rig: Rig, client_id: str) -> PushConsumer:
    with use_environment(**rig.around()):
        consumer = PushConsumer(rig.cluster.bootstrap, "g", lambda *_: Action.COMMIT, client_id=client_id)
    consumer.subscribe("t")
    return consumer


def test_a_second_member_with_the_same_client_id_is_told_at_its_start() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        first, second = member_called(rig, "only-one"), member_called(rig, "only-one")
        async with first:
            with pytest.raises(BusyError, match=r"client id only-one is in use by the member at .*; every member needs its own"):
                await second.start()
        async with member_called(rig, "only-one") as third:  # the first one left
            assert third.is_running

    Rig().run(scenario)


def test_a_start_that_a_shutdown_overtakes_does_not_pretend_to_have_started() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with member_called(rig, "only-one"):
            second = member_called(rig, "only-one")
            starting = asyncio.ensure_future(second.start())  # waits for its admission
            await until(lambda: second.is_running)
            await second.shutdown()
            with pytest.raises(InvalidArgumentError, match="was shut down"):
                await asyncio.wait_for(starting, 0.1)

    Rig().run(scenario)
