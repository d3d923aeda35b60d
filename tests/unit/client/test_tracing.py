"""Trace context in messages and spans of clients, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from dledger_client.aio import Action, ConsumeContext, Message, Producer, PushConsumer, ReceivedMessage, TransactionState
from dledger_client.message import ROOM_BYTES
from dledger_client.producer.batches import size_of
from dledger_client.runtime.environment import use_environment
from dledger_client.tracing import TraceContext, processing
from dledger_wire.errors import TopicNotFoundError
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.tracing_rig import Recorded, ids, links, of, parent, recorded

OWN = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", state="vendor=1")
GROUP = "billing"
PLACE = {"messaging.destination.partition.id", "messaging.dledger.queue_offset"}


async def read(rig: Rig, topic: str, offset: int = 0, count: int = 1) -> list[ReceivedMessage]:
    async with rig.consumer() as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < count:
            found += await consumer.fetch(topic, 0, offset + len(found), wait_ms=5_000)
        return found


def push(rig: Rig, listener: Any, **settings: Any) -> PushConsumer:
    with use_environment(**rig.around()):
        consumer = PushConsumer(rig.cluster.bootstrap, GROUP, listener, **settings)
    consumer.subscribe("t")
    return consumer


def test_without_a_tracer_a_message_carries_what_the_application_says_and_nothing_else() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"plain"))
            await producer.send(Message("t", b"told", properties=OWN.properties()))
        plain, told = await read(rig, "t", count=2)
        assert plain.properties.keys() == {"UNIQ_KEY"}
        assert plain.trace_context is None
        assert told.trace_context == OWN

    Rig().run(scenario)


def test_a_batch_that_has_no_room_for_the_context_is_sent_without_it() -> None:
    """Whoever cuts batches at ``max_message_bytes`` loses none because somebody traces."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        batch = [Message("t", b"x" * 100) for _ in range(10)]
        async with rig.producer(max_message_bytes=size_of(batch)) as producer:
            await producer.send_batch(batch)
            with recorded() as spans:
                await producer.send_batch(batch)
                await producer.send_batch(batch[:2])
        found = await read(rig, "t", count=22)
        assert [each.trace_context is None for each in found] == [True] * 20 + [False] * 2
        assert spans.names() == ["send t"] * 2

    Rig().run(scenario)


def test_a_send_is_a_span_whose_context_the_message_carries() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded() as spans:
            async with rig.producer() as producer:
                with spans.tracer.start_as_current_span("shop"):
                    message = Message("t", b"one", keys="o-1", tags="paid")
                    result = await producer.send(message)
                    assert message.properties is None  # the application's message is as it was
            (got,) = await read(rig, "t")
        sent = spans.one("send t")
        assert of(got.trace_context) == ids(sent)
        assert (got.keys, got.tags) == ("o-1", "paid")
        assert parent(sent) == ids(spans.one("shop"))
        assert sent.kind is SpanKind.PRODUCER
        assert dict(sent.attributes or {}) == {
            "messaging.system": "dledger",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "t",
            "messaging.destination.partition.id": "g0/0",
            "messaging.message.id": result.msg_id,
            "messaging.message.body.size": 3,
            "messaging.dledger.message.keys": "o-1",
            "messaging.dledger.message.tag": "paid",
            "messaging.dledger.queue_offset": 0,
        }
        received = spans.one("receive t")
        assert (received.kind, links(received)) == (SpanKind.CLIENT, [ids(sent)])

    Rig().run(scenario)


def test_what_fails_is_an_error_of_its_span() -> None:
    async def scenario(rig: Rig) -> None:
        with recorded() as spans:
            async with rig.producer(create_topic_key="") as producer:
                with pytest.raises(TopicNotFoundError):
                    await producer.send(Message("nowhere", b"x"))
                with pytest.raises(TopicNotFoundError):
                    await producer.send_batch([Message("nowhere", b"x"), Message("nowhere", b"y")])
        for span in spans.named("send nowhere"):
            assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "TopicNotFoundError")
        assert len(spans.named("send nowhere")) == 2

    Rig().run(scenario)


def test_the_messages_of_a_batch_share_a_span_and_one_with_a_context_keeps_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded() as spans:
            async with rig.producer() as producer:
                await producer.send_batch([Message("t", b"one"), Message("t", b"two", properties=OWN.properties()), Message("t", b"three")])
        found = await read(rig, "t", count=3)
        sent = spans.one("send t")
        assert [of(each.trace_context) for each in found] == [ids(sent), of(OWN), ids(sent)]
        assert links(sent) == [of(OWN)]
        assert (sent.attributes or {})["messaging.batch.message_count"] == 3

    Rig().run(scenario)


def test_who_is_not_sampled_is_carried_all_the_same_and_what_has_no_room_is_sent_without() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        full = {"p": "x" * (MAX_PROPERTIES_BYTES - ROOM_BYTES - 60)}
        with recorded(ALWAYS_OFF) as spans:
            async with rig.producer() as producer:
                await producer.send(Message("t", b"one"))
                await producer.send(Message("t", b"full", properties=full))
        one, large = await read(rig, "t", count=2)
        assert spans.names() == []
        assert one.trace_context is not None
        assert not one.trace_context.sampled
        assert (large.trace_context, large.properties["p"]) == (None, full["p"])

    Rig().run(scenario)


@pytest.mark.parametrize("how", ["level", "time"])
def test_a_delayed_message_keeps_its_trace(how: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded() as spans:
            async with rig.producer() as producer:
                later: dict[str, Any] = (
                    {"delay_level": 2} if how == "level" else {"deliver_at_ms": producer._environment.clock.wall_ms() + 4_000}
                )
                await producer.send(Message("t", b"later", **later))
            (got,) = await read(rig, "t")
        sent = spans.one("send t")
        assert of(got.trace_context) == ids(sent)
        assert not PLACE & set(sent.attributes or {}), "it has no place in its topic before it is delivered"

    Rig().run(scenario)


def test_a_transaction_keeps_its_trace_also_when_a_check_ends_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        checked: list[trace.SpanContext] = []

        def check(_message: ReceivedMessage) -> TransactionState:
            checked.append(trace.get_current_span().get_span_context())
            return TransactionState.COMMIT

        with recorded() as spans:
            async with rig.transactions(check) as producer:
                await producer.send_in_transaction(Message("t", b"at once"), lambda _message, _argument: TransactionState.COMMIT)
                await producer.send_in_transaction(Message("t", b"asked"), lambda _message, _argument: TransactionState.UNKNOWN)
                at_once, asked = await read(rig, "t", count=2)
        halves = spans.named("send t")
        assert [of(at_once.trace_context), of(asked.trace_context)] == [ids(half) for half in halves]
        assert all((half.attributes or {})["messaging.dledger.transaction.producer_group"] == "tests" for half in halves)
        (check_span,) = [span for span in spans.named("check t") if span.get_span_context() == checked[-1]]
        assert parent(check_span) == ids(halves[1])
        assert not any(PLACE & set(half.attributes or {}) for half in halves)
        assert "messaging.dledger.queue_offset" not in (check_span.attributes or {})

    Rig().run(scenario)


def test_a_listener_works_inside_of_the_trace_and_what_it_sends_belongs_to_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("invoices")
        with recorded() as spans:
            async with rig.producer() as producer:

                async def listener(messages: list[ReceivedMessage], _context: ConsumeContext) -> Action:
                    await producer.send(Message("invoices", messages[0].body))
                    return Action.COMMIT

                await producer.send(Message("t", b"order"))
                async with push(rig, listener):
                    (invoice,) = await read(rig, "invoices")
                    await until(lambda: "process t" in spans.names())
        sent, processed, next_sent = spans.one("send t"), spans.one("process t"), spans.one("send invoices")
        assert (parent(processed), links(processed)) == (ids(sent), [ids(sent)])
        assert parent(next_sent) == ids(processed)
        assert of(invoice.trace_context) == ids(next_sent)
        assert processed.kind is SpanKind.CONSUMER
        assert (processed.attributes or {})["messaging.consumer.group.name"] == GROUP
        assert ids(sent)[0] == ids(next_sent)[0]

    Rig().run(scenario)


class Faulty(SpanProcessor):
    """An application's own, with a mistake in it."""

    def __init__(self, when: str) -> None:
        self._when = when

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._fail("start")

    def on_end(self, span: ReadableSpan) -> None:
        self._fail("end")

    def _fail(self, when: str) -> None:
        if when == self._when:
            raise ZeroDivisionError("for the test")


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_tracer_that_fails_keeps_no_message_back(when: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each listener call that it failed in ended a worker, and its messages were never committed; checks were answered no more."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        seen: list[bytes] = []

        def listener(messages: list[ReceivedMessage], _context: ConsumeContext) -> Action:
            seen.extend(each.body for each in messages)
            return Action.COMMIT

        with recorded() as spans:
            spans.provider.add_span_processor(Faulty(when))
            async with (
                rig.producer() as producer,
                rig.transactions(lambda _: TransactionState.COMMIT) as transactions,
                push(rig, listener, consume_threads=1),
                rig.consumer(GROUP) as consumer,
            ):
                await producer.send(Message("t", b"0"))
                await producer.send_batch([Message("t", b"1"), Message("t", b"2")])
                await producer.send_many("t", [b"3"])
                for number in (4, 5):
                    await transactions.prepare(Message("t", b"%d" % number))
                await until(lambda: len(seen) == 6)
                await asyncio.sleep(10)  # offsets are committed
                assert await consumer.committed("t") == {("g0", 0): 6}
                assert len(await consumer.fetch("t", 0, 0)) == 6
        assert sorted(seen) == [b"%d" % number for number in range(6)]

    Rig().run(scenario)
    assert [record.levelname for record in caplog.records if "ZeroDivisionError" in (record.exc_text or "")] == ["ERROR"]


def test_retries_the_dead_letter_and_a_redrive_stay_in_the_trace() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        attempts: list[int] = []

        def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
            attempts.append(messages[0].reconsume_times)
            if len(attempts) > 3:
                return Action.COMMIT
            context.delay_level = 1 if len(attempts) < 3 else -1
            if len(attempts) == 1:
                raise ValueError("no such customer")
            return Action.RECONSUME_LATER

        with recorded() as spans:
            async with rig.producer() as producer:
                result = await producer.send(Message("t", b"order"))
            async with push(rig, listener), rig.admin() as admin:
                await until(lambda: len(attempts) == 3)
                while not (letters := await admin.dead_letters(GROUP)) or not letters[0].waiting:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.1)
                await admin.open_dead_letters(GROUP)
                (letter,) = await read(rig, "%DLQ%billing")
                assert await admin.redrive(letters[0]) == 1
                await until(lambda: len(attempts) == 4 and len(spans.named("process t")) == 4)
                traced = await admin.trace(msg_id=result.msg_id)
        sent, processed = spans.one("send t"), spans.named("process t")
        assert of(letter.trace_context) == ids(sent)
        assert {of(copy.message.trace_context) for copy in traced.copies} == {ids(sent)}
        assert [parent(span) for span in processed] == [ids(sent)] * 4
        assert [span.status.status_code for span in processed] == [StatusCode.ERROR] * 3 + [StatusCode.UNSET]
        assert [(span.attributes or {}).get("messaging.dledger.message.reconsume_times", 0) for span in processed[:3]] == [0, 1, 2]
        assert (processed[0].attributes or {})["error.type"] == "ValueError"
        assert [PLACE & set(span.attributes or {}) for span in processed[:3]] == [PLACE, set(), set()], "copies are in the retry topic"
        assert [event.name for event in processed[0].events] == ["exception"]

    Rig().run(scenario)


def test_a_call_with_several_messages_begins_a_trace_and_links_to_theirs() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded() as spans:
            async with rig.producer() as producer:
                await producer.send_batch([Message("t", b"one"), Message("t", b"two", properties=OWN.properties())])
            async with push(rig, lambda _messages, _context: Action.COMMIT, consume_message_batch_max_size=8, orderly=True):
                await until(lambda: "process t" in spans.names())
        processed = spans.one("process t")
        assert (parent(processed), links(processed)) == (None, [ids(spans.one("send t")), of(OWN)])

    Rig().run(scenario)


def test_the_span_in_which_clients_were_started_is_not_the_parent_of_what_they_call_later() -> None:
    """With asyncio their tasks keep the context of the start, maybe a request's or a start-up's, long after it ended."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:  # before anybody traces: without a context
            await producer.send_batch([Message("t", b"one"), Message("t", b"two")])
        async with rig.transactions(lambda _message: TransactionState.UNKNOWN) as producer:
            await producer.prepare(Message("t", b"half"))
        with recorded() as spans:
            with spans.tracer.start_as_current_span("start"):
                consumer = push(rig, lambda _messages, _context: Action.COMMIT, consume_message_batch_max_size=2)
                await consumer.start()
                producer = rig.transactions(lambda _message: TransactionState.COMMIT)
                producer.start()
            await until(lambda: spans.names().count("process t") == 2 and "check t" in spans.names())
            await consumer.shutdown()
            await producer.close()
        assert [parent(span) for span in spans.named("process t")] == [None] * 2
        assert parent(spans.one("check t")) is None

    Rig().run(scenario)


def test_a_program_that_fetches_puts_its_work_into_the_trace() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with processing([]):  # nobody traces, and nothing is there
            pass
        with recorded() as spans:
            async with rig.producer() as producer:
                await producer.send(Message("t", b"order"))
                (got,) = await read(rig, "t")
                with processing(got, GROUP):
                    assert trace.get_current_span().get_span_context().is_valid
                with pytest.raises(ValueError, match="bad"), processing([got]):
                    raise ValueError("bad")
        good, bad = spans.named("process t")
        assert parent(good) == parent(bad) == ids(spans.one("send t"))
        assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)

    Rig().run(scenario)


def test_messages_that_wait_for_their_topic_keep_the_trace_of_their_own_caller() -> None:
    """Those that wait are added by one task, which began in the context of the first."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded() as spans:
            producer: Producer = rig.producer()
            futures = []
            for name in ("first", "second"):
                with spans.tracer.start_as_current_span(name):
                    futures.append(producer.send_async(Message("t", name.encode())))
            for future in futures:
                await future
            await producer.close()
        sent = {ids(span): parent(span) for span in spans.named("send t")}
        for message in await read(rig, "t", count=2):
            assert sent[of(message.trace_context)] == ids(spans.one(message.body.decode()))

    Rig().run(scenario)


def test_a_current_span_is_carried_also_without_a_provider() -> None:
    """The application uses the API of OpenTelemetry alone: there are no spans of ours, and its context travels."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        spans = Recorded()
        async with rig.producer() as producer:
            with spans.tracer.start_as_current_span("shop") as shop:
                await producer.send(Message("t", b"one"))
        (got,) = await read(rig, "t")
        assert spans.names() == ["shop"]
        assert got.trace_context is not None
        assert int(got.trace_context.span_id, 16) == shop.get_span_context().span_id
        spans.provider.shutdown()

    Rig().run(scenario)
