"""Numbers and texts that go into requests: what fits their fields, checked by name before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral

from dledger_wire.errors import InvalidArgumentError

MAX_U32 = (1 << 32) - 1
MAX_OFFSET = (1 << 63) - 1  # of queues and of times, as RocketMQ's tools count
FIRST_TIME_MS = 10**12  # in 2001: an earlier time is a number of seconds, or an offset, and would bring all messages again


def within(low: int, high: int, **values: int) -> None:
    """InvalidArgumentError that names the first value outside ``low`` to ``high``."""
    for name, value in values.items():
        if not isinstance(value, Integral):
            raise InvalidArgumentError(f"{name} {value!r}: expected a whole number")
        if not low <= value <= high:
            raise InvalidArgumentError(f"{name} {value}: expected {low} to {high}")


def check_positions(positions: object) -> None:
    """InvalidArgumentError for what are no offsets by (topic, queue id)."""
    if not isinstance(positions, Mapping):
        raise InvalidArgumentError(f"positions {positions!r}: expected offsets by (topic, queue id)")
    for queue, offset in positions.items():
        if not (isinstance(queue, tuple) and len(queue) == 2):
            raise InvalidArgumentError(f"positions: {queue!r} is no queue; expected (topic, queue id)")
        within(0, MAX_OFFSET, offset=offset)


def check_text(**values: str) -> None:
    """InvalidArgumentError that names the first value that is no text."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} {value!r}: expected text")


def check_encodable(**values: str) -> None:
    """InvalidArgumentError that names the first value that is no text, or has surrogates, which no request can hold."""
    check_text(**values)
    for name, value in values.items():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"{name} {value!r}: not encodable as UTF-8 ({error.reason})") from None


def texts(name: str, values: Iterable[str]) -> list[str]:
    """The texts of a list; InvalidArgumentError for anything else, such as one text, which would be taken for its letters."""
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else None
    if found is None or not all(isinstance(each, str) for each in found):
        raise InvalidArgumentError(f"{name} {values!r}: expected a list of texts")
    return found


def check_kind(kind: type, name: str, *values: object) -> None:
    """InvalidArgumentError for the first value that is something else."""
    for value in values:
        if not isinstance(value, kind):
            raise InvalidArgumentError(f"{name} {value!r}: expected {kind.__name__}")
