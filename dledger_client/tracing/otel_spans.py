"""Spans of OpenTelemetry, by its conventions for messaging.  Imported only while tracing is on.

Owns names and attributes of spans, and the rule that tracing is never a reason for a message to fail: what the application's tracer raises,
a processor of spans say, is logged once.  A span of a send ends when the message is acknowledged or has failed, whatever thread sees that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    TraceState,
)

from dledger_client.fetch.records import ReceivedMessage
from dledger_client.message import Message, traced
from dledger_client.producer.accumulator import no_message
from dledger_client.producer.batches import size_of
from dledger_client.producer.delivery_report import SendFuture
from dledger_client.producer.message_columns import MessageColumns
from dledger_client.producer.send_many import SendManyFuture
from dledger_client.runtime.user_callbacks import FAULTS
from dledger_wire.trace_context import TraceContext
from dledger_wire.version import installed_version

Future = TypeVar("Future", bound=SendFuture)
ManyFuture = TypeVar("ManyFuture", bound=SendManyFuture)
Attributes = dict[str, str | int]

SYSTEM = "dledger"
CHECK = "check"  # the operation on a half message, which has no offset in its topic yet
MAX_LINKS = 128  # what OpenTelemetry keeps of them by default

_logger = logging.getLogger(__name__)


class Spans:
    """Makes the spans of this process's clients with one tracer provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("dledger_client", installed_version())
        self._is_broken = False

    def _start(self, name: str, kind: SpanKind, attributes: Attributes, **how: Any) -> Span:
        try:
            return self._tracer.start_span(name, kind=kind, attributes=attributes, **how)
        except FAULTS as error:
            self._record_error(error)
            return trace.INVALID_SPAN

    def _end(self, span: Span) -> None:
        try:
            span.end()
        except FAULTS as error:
            self._record_error(error)

    def _record_error(self, error: BaseException) -> None:
        if not self._is_broken:
            self._is_broken = True
            _logger.error("what clients do could not be traced; logged once", exc_info=error)

    # Sending

    def send(self, message: Message, send: Callable[[Message], Future]) -> Future:
        """Send one message as part of a trace."""
        if not isinstance(message, Message):
            raise no_message(message)
        span = self._sending([message])
        with self._failing(span):
            future = send(_carrying(message, span))
        waits = message.delay_level or message.deliver_at_ms or message.transaction_group
        self._end_with(span, future, _of_waiting if waits else _of_stored)
        return future

    @contextlib.contextmanager
    def sending_batch(self, messages: Sequence[Message], max_bytes: int) -> Iterator[list[Message]]:
        """The messages of a batch as they are to be sent inside of the block: without a context if they fit only so."""
        span = self._sending(messages)
        with self._failing(span):
            carrying = [_carrying(each, span) for each in messages]
            yield list(messages) if size_of(messages) <= max_bytes < size_of(carrying) else carrying
        self._end(span)

    def send_many(self, columns: MessageColumns, send: Callable[[MessageColumns], ManyFuture]) -> ManyFuture:
        """Send the bodies of one call as part of a trace: one span for all of them."""
        if not len(columns):
            return send(columns)
        span = self._sending(columns)
        context = _context_of(span)
        with self._failing(span):
            future = send(columns if context is None else columns.traced(context))
        self._end_with(span, future, _of_many)
        return future

    def _sending(self, messages: Sequence[Message]) -> Span:
        """A span of messages of one topic, with links to where those came from that bring a context of their own."""
        first = messages[0]
        attributes = _attributes("send", first.topic)
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _of_message(len(first.body), first.keys, first.tags)
        if first.delay_level:
            attributes["messaging.dledger.message.delay_level"] = first.delay_level
        if first.deliver_at_ms:
            attributes["messaging.dledger.message.deliver_at_ms"] = first.deliver_at_ms
        if first.transaction_group:
            attributes["messaging.dledger.transaction.producer_group"] = first.transaction_group
        own = (TraceContext.of(each.properties) for each in messages[:MAX_LINKS] if each.properties)
        links = [Link(_span_context(context)) for context in own if context is not None]
        return self._start(f"send {first.topic}", SpanKind.PRODUCER, attributes, links=links)

    @contextlib.contextmanager
    def _failing(self, span: Span) -> Iterator[None]:
        """End a span with the error that leaves the block."""
        try:
            yield
        except BaseException as error:
            _fail(span, error)
            self._end(span)
            raise

    def _end_with(self, span: Span, future: SendFuture | SendManyFuture, attributes_of: Callable[[Any], Attributes]) -> None:
        """End a span when the result is known, with the attributes of what is stored; at once when it is not recorded."""

        def end(done: Any) -> None:
            error = done.exception()
            if error is not None:
                _fail(span, error)
            else:
                span.set_attributes(attributes_of(done))
            self._end(span)

        if span.is_recording():
            future.add_done_callback(end)
        else:
            self._end(span)

    # Receiving

    def received(self, messages: Sequence[ReceivedMessage], consumer_group: str, began_ms: int) -> None:
        """A fetch that returned messages, begun at a time in milliseconds since 1970."""
        first = messages[0]
        attributes = _attributes("receive", first.topic) | _place(first.replica_group, first.queue_id)
        attributes |= {"messaging.batch.message_count": len(messages)} | _group(consumer_group)
        name, begin_ns = f"receive {first.topic}", began_ms * 1_000_000
        self._end(self._start(name, SpanKind.CLIENT, attributes, links=_links(messages), start_time=begin_ns))

    @contextlib.contextmanager
    def processing(
        self, messages: Sequence[ReceivedMessage], consumer_group: str, *, operation: str = "process", in_callback: bool = False
    ) -> Iterator[Work]:
        """A span that is current inside of the block.  Of one message it continues the trace; of several it begins one.

        ``in_callback``: what a client calls does not belong to the span that was current when that client was started.
        """
        first = messages[0]
        attributes = _attributes(operation, first.topic) | _group(consumer_group)
        is_copy = "RETRY_TOPIC" in first.properties  # stored in another topic than the one that is named
        if not is_copy:
            attributes |= _place(first.replica_group, first.queue_id)
        parent = Context() if in_callback else None
        if len(messages) == 1:
            attributes |= _of_message(len(first.body), first.keys, first.tags) | {"messaging.message.id": first.msg_id}
            if not is_copy and operation != CHECK:
                attributes["messaging.dledger.queue_offset"] = first.queue_offset
            if first.reconsume_times:
                attributes["messaging.dledger.message.reconsume_times"] = first.reconsume_times
            context = first.trace_context
            if context is not None:
                parent = trace.set_span_in_context(NonRecordingSpan(_span_context(context)))
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        span = self._start(f"{operation} {first.topic}", SpanKind.CONSUMER, attributes, context=parent, links=_links(messages))
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield Work(span)
        finally:
            self._end(span)


class Work:
    """A span of work on messages."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def failed(self, error: BaseException) -> None:
        """The application raised an error."""
        self._span.record_exception(error)
        _fail(self._span, error)

    def redelivered(self, count: int) -> None:
        """So many messages were not consumed, and come again."""
        self._span.set_attribute("messaging.dledger.redelivered_count", count)
        self._span.set_status(Status(StatusCode.ERROR, f"{count} messages were not consumed"))


def _attributes(operation: str, topic: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": "process" if operation == CHECK else operation,
        "messaging.destination.name": topic,
    }


def _of_message(body_bytes: int, keys: str, tags: str) -> Attributes:
    found: Attributes = {"messaging.message.body.size": body_bytes}
    if keys:
        found["messaging.dledger.message.keys"] = keys
    if tags:
        found["messaging.dledger.message.tag"] = tags
    return found


def _place(replica_group: str, queue_id: int) -> Attributes:
    """A queue by its group and number: every replica group of a topic counts its queues from 0."""
    return {"messaging.destination.partition.id": f"{replica_group}/{queue_id}"}


def _group(consumer_group: str) -> Attributes:
    return {"messaging.consumer.group.name": consumer_group} if consumer_group else {}


def _of_stored(future: Any) -> Attributes:
    result = future.result()
    place = _place(result.replica_group, result.queue_id)
    return place | {"messaging.message.id": result.msg_id, "messaging.dledger.queue_offset": result.queue_offset}


def _of_waiting(future: Any) -> Attributes:
    """Of a delayed or a half message: where it is stored is no place in its topic, which it gets when it is delivered."""
    return {"messaging.message.id": future.result().msg_id}


def _of_many(_future: Any) -> Attributes:
    """None: each body has a place and an id of its own."""
    return {}


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _carrying(message: Message, span: Span) -> Message:
    """The message with the context of the span, unless it has one of its own."""
    context = _context_of(span)
    return message if context is None else traced(message, context)


def _context_of(span: Span) -> TraceContext | None:
    """The context that messages of a span carry."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    ids = trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    return TraceContext(*ids, int(context.trace_flags), context.trace_state.to_header())


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )


def _links(messages: Sequence[ReceivedMessage]) -> list[Link]:
    contexts = (message.trace_context for message in messages[:MAX_LINKS])
    return [Link(_span_context(context)) for context in contexts if context is not None]
