"""W3C Trace Context as properties of a message: ``traceparent`` and ``tracestate``.

Owns their two names, the check of what stands in them, and their text.  A message keeps them like every property of the application:
through delays, transactions, redeliveries, dead letters and redrives.  Nodes neither read nor change them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED = 0x01
MAX_STATE_CHARACTERS = 512  # what every participant has to pass on; a longer one is left out, which the standard allows

# A later version may add fields behind a further dash; version ff is forbidden.
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that a message belongs to, as W3C Trace Context has it.

    Attributes:
        trace_id: The trace: 32 hexadecimal digits.
        span_id: The operation that made the message: 16 hexadecimal digits.
        flags: 0 to 255; bit 0: the trace is recorded.
        state: What tracing systems add of their own: the property ``tracestate``.

    Examples:
        >>> context = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
        >>> context.properties()
        {'traceparent': '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'}
    """

    trace_id: str
    span_id: str
    flags: int = SAMPLED
    state: str = ""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> TraceContext | None:
        """The context in the properties of a message.

        Args:
            properties: Names and values.

        Returns:
            The context; None without one, or when ``traceparent`` is not valid.

        Examples:
            >>> TraceContext.of({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}).sampled
            False
        """
        text = properties.get(TRACEPARENT)
        found = _PARENT.fullmatch(text) if text else None
        if found is None or (found[1] == "00" and found[5]):
            return None
        state = properties.get(TRACESTATE, "")
        return cls(found[2], found[3], int(found[4], 16), state if len(state) <= MAX_STATE_CHARACTERS else "")

    @property
    def sampled(self) -> bool:
        """Whether the context's origin records the trace."""
        return bool(self.flags & SAMPLED)

    def properties(self) -> dict[str, str]:
        """The properties that make a message part of the trace.

        Returns:
            ``traceparent``, and ``tracestate`` where there is one.

        Examples:
            >>> answer = Message("answers", b"done", properties=received.trace_context.properties())
        """
        parent = {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"}
        return parent | {TRACESTATE: self.state} if self.state else parent
