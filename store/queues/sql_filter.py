"""SQL filters in use: compiled once, and applied to the property strings of messages.

Owns what is remembered: expressions that were compiled, and what one of them decided.  The language is ``sql92.py``'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dledger_wire.frames.frame_layout import UNIQ_KEY_PREFIX, decode_properties
from store.queues.sql92 import Predicate, Properties, parse, parse_in_slices

MOST_COMPILED = 256
# Messages of one kind differ in their unique id only: what was decided about the rest of their properties is remembered.
REMEMBERED = 1024
REMEMBERED_BYTES = 256


class SqlFilter:
    """One compiled expression."""

    def __init__(self, expression: str, predicate: Predicate | None = None) -> None:
        """Parse ``expression``, unless it was.  Raises InvalidArgumentError that points at the column, also in its detail ``column``."""
        self.expression = expression
        self.cost = 1 + len(expression) // 16  # of looking at one message, in comparisons or so
        self._predicate = parse(expression) if predicate is None else predicate
        self._verdicts: dict[bytes, bool] = {}

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties passes (TAGS and KEYS are among them)."""
        return self._predicate(properties) is True

    def chosen(self, packed: Sequence[bytes]) -> list[int]:
        """The numbers of those property strings whose messages pass."""
        known, any_id = self._verdicts, "UNIQ_KEY" not in self.expression
        found = []
        for number, text in enumerate(packed):
            rest = text[text.find(b"\x02") + 1 :] if any_id and text.startswith(UNIQ_KEY_PREFIX) else text
            verdict = known.get(rest)
            if verdict is None:
                verdict = self.matches(decode_properties(text))
                if len(rest) <= REMEMBERED_BYTES:
                    if len(known) >= REMEMBERED:
                        known.clear()
                    known[rest] = verdict
            if verdict:
                found.append(number)
        return found


async def compiled(expression: str, turn: Callable[[], Awaitable[None]]) -> SqlFilter:
    """The filter of an expression, which requests repeat again and again.  Parsed in slices, each after ``turn``."""
    found = _compiled.pop(expression, None)
    if found is None:
        parsing = parse_in_slices(expression)
        while True:
            await turn()
            try:
                next(parsing)
            except StopIteration as end:
                found = SqlFilter(expression, end.value)
                break
    while len(_compiled) >= MOST_COMPILED:
        del _compiled[next(iter(_compiled))]
    _compiled[expression] = found
    return found


_compiled: dict[str, SqlFilter] = {}  # what was used last stands last
