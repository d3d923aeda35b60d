"""W3C Trace Context as properties: read by the standard's rules, written as it is read."""

from __future__ import annotations

import pytest

from dledger_wire.trace_context import TraceContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def parsed(parent: str, state: str = "") -> TraceContext | None:
    return TraceContext.of({"traceparent": parent, "tracestate": state})


def test_what_is_written_is_read() -> None:
    for context in (TraceContext(TRACE, SPAN), TraceContext(TRACE, SPAN, 0), TraceContext(TRACE, SPAN, 3, "a=1,b=2")):
        assert TraceContext.of(context.properties()) == context
    assert TraceContext(TRACE, SPAN).properties() == {"traceparent": GOOD}


def test_a_later_version_may_say_more_and_a_long_state_is_left_out() -> None:
    assert parsed(f"cc-{TRACE}-{SPAN}-01-what-comes") == TraceContext(TRACE, SPAN)
    assert parsed(GOOD, "a=" + "x" * 510) == TraceContext(TRACE, SPAN, state="a=" + "x" * 510)
    assert parsed(GOOD, "a=" + "x" * 511) == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "hello",
        GOOD + "-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}\x1b-{SPAN}-01",
    ],
)
def test_what_is_not_valid_counts_as_none(parent: str) -> None:
    assert parsed(parent) is None


def test_no_property_is_no_context() -> None:
    assert TraceContext.of({}) is None
    assert TraceContext.of({"tracestate": "a=1"}) is None
