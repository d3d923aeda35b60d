"""Spans of clients in tests: a provider of OpenTelemetry of the test's own, and what it was given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from dledger_client.tracing import use_tracer_provider
from dledger_wire.trace_context import TraceContext


class Recorded:
    """The spans that ended, oldest first."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracer = self.provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._memory.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self._memory.get_finished_spans()]


@contextlib.contextmanager
def recorded(sampler: Sampler = ALWAYS_ON) -> Iterator[Recorded]:
    """Spans of clients go to a provider of this block."""
    spans = Recorded(sampler)
    use_tracer_provider(spans.provider)
    try:
        yield spans
    finally:
        use_tracer_provider(None)
        spans.provider.shutdown()


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Its trace and its own id, as they stand in messages."""
    context = span.get_span_context()
    assert context is not None
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


def of(context: TraceContext | None) -> tuple[str, str]:
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> tuple[str, str] | None:
    return None if span.parent is None else _ids(span.parent)


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    return [_ids(link.context) for link in span.links]


def _ids(context: SpanContext) -> tuple[str, str]:
    return format_trace_id(context.trace_id), format_span_id(context.span_id)
