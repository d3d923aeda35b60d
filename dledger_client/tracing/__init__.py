"""Traces over messages: the context they carry, and spans of OpenTelemetry where the application uses it.

Owns the question whether anybody traces.  ``otel_spans`` is the only module that imports OpenTelemetry, and it is
imported when the application has set a tracer provider; without one a message costs a look into ``sys.modules``.

    send          a span from ``send`` to the acknowledgement; the message carries its context, unless it brought one of its own
    receive       a span of ``PullConsumer.fetch``, with links to what it returned
    process       a span of a listener call, or of a ``processing`` block; what is sent inside belongs to the same trace
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from dledger_client.tracing.otel_spans import Spans

__all__ = ["TraceContext", "processing", "use_tracer_provider"]

API = "opentelemetry.trace"  # not among sys.modules: tracing is off
_spans: Spans | None = None  # once there is a provider
_has_asked = False


def spans() -> Spans | None:
    """The maker of spans; None while there is neither a tracer provider nor a current span."""
    if _spans is not None:
        return _spans
    api = sys.modules.get(API)
    return None if api is None else _found(api)


def _found(api: Any) -> Spans | None:
    global _spans
    if not hasattr(api, "get_tracer_provider"):
        return None  # another thread is importing it
    provider = _provider(api)
    if provider is None and not api.get_current_span().get_span_context().is_valid:
        return None
    from dledger_client.tracing.otel_spans import Spans

    if provider is None:
        return Spans(api.get_tracer_provider())
    _spans = Spans(provider)
    return _spans


def _provider(api: Any) -> TracerProvider | None:
    """The provider that the application has set.

    ``get_tracer_provider`` reads the environment each time while there is none, which costs as much as sending a message.  So it is called
    once, and then only when the module's variable is no longer None, or is not there.
    """
    global _has_asked
    if _has_asked and vars(api).get("_TRACER_PROVIDER", api) is None:
        return None
    _has_asked = True
    provider: TracerProvider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else provider


def use_tracer_provider(provider: TracerProvider | None) -> None:
    """Let the spans of this process's clients go to a tracer provider of their own.

    Args:
        provider: The provider; None: the global one of OpenTelemetry, which is the default.

    Examples:
        >>> use_tracer_provider(TracerProvider(sampler=TraceIdRatioBased(0.01)))
    """
    global _spans
    if provider is None:
        _spans = None
        return
    from dledger_client.tracing.otel_spans import Spans

    _spans = Spans(provider)


@contextlib.contextmanager
def processing(messages: ReceivedMessage | Sequence[ReceivedMessage], consumer_group: str = "") -> Iterator[None]:
    """A span of work on messages that were fetched: what is sent inside of the block belongs to it. Listeners have such a span already.

    Does nothing while tracing is off.

    Args:
        messages: One message, whose trace the span continues; or several, which the span links to.
        consumer_group: The consumer group, for the span.

    Examples:
        >>> for message in consumer.fetch("orders", 0, 0):
        ...     with processing(message, "billing"):
        ...         producer.send(Message("invoices", message.body))
    """
    batch = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
    makes = spans() if batch else None
    if makes is None:
        yield
        return
    with makes.processing(batch, consumer_group) as work:
        try:
            yield
        except BaseException as error:
            work.failed(error)
            raise
