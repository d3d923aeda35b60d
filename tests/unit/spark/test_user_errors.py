"""What Spark prints of an error of ours: the line, not the way to it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger import DefaultSource
from pyspark_dledger.read.stream import StreamReader
from pyspark_dledger.user_errors import concise_errors


@concise_errors
class Faulty:
    """Fails in every way."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def ours(self) -> None:
        try:
            self._deep()
        except ZeroDivisionError as error:
            raise InvalidArgumentError("option x: expected y") from error

    def theirs(self) -> None:
        self._deep()

    def rows(self) -> Iterator[int]:
        yield 1
        self.ours()

    def _deep(self) -> float:
        return 1 / 0


def lines(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_an_error_of_ours_is_short_and_any_other_is_whole() -> None:
    faulty = Faulty()
    with pytest.raises(InvalidArgumentError) as ours:
        faulty.ours()
    assert "ZeroDivisionError" not in "".join(lines(ours.value))
    assert lines(ours.value)[-1] == "dledger_wire.errors.InvalidArgumentError: option x: expected y"
    with pytest.raises(ZeroDivisionError) as theirs:
        faulty.theirs()
    assert "_deep" in "".join(lines(theirs.value))
    rows = faulty.rows()
    assert next(iter(rows)) == 1
    with pytest.raises(InvalidArgumentError) as while_reading:
        list(rows)
    assert not any("_deep" in line for line in lines(while_reading.value))
    assert Faulty.name() == "faulty"


def test_spark_sees_methods_as_they_are() -> None:
    """It counts the parameters of latestOffset."""
    assert list(inspect.signature(StreamReader.latestOffset).parameters) == ["self", "start", "limit"]
    source: Any = DefaultSource({"colums": "x"})
    with pytest.raises(InvalidArgumentError) as caught:
        source.schema()
    assert len(lines(caught.value)) <= 8


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("maxMessagesPerTrigger", "0", "expected a whole number of at least 1"),
        ("startingOffsets", "{bad", "option startingOffsets"),
        ("startingOffsets", "newest", "option startingOffsets"),
        ("minMessagesPerTrigger", "10", "expected at most maxMessagesPerTrigger, 9"),
        ("readTimeoutMs", "soon", "option readTimeoutMs"),
        ("passwordFile", "/no/such/file", "option user: missing"),
    ],
)
def test_a_mistake_in_an_option_of_a_read_is_found_by_load(name: str, value: str, expected: str) -> None:
    source: Any = DefaultSource({"bootstrap": "h:1", "topic": "t", "maxMessagesPerTrigger": "9", name: value})
    with pytest.raises(InvalidArgumentError, match=expected):
        source.schema()


def test_a_stream_whose_options_are_refused_fails_where_spark_asks_it_something() -> None:
    """The schema was given by the user, so that ``load`` asked for none."""
    reader: Any = DefaultSource({"bootstrap": "h:1", "topic": "t", "readFrom": "x"}).streamReader(
        StructType([StructField("body", BinaryType())])
    )
    for ask in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(InvalidArgumentError, match="option readFrom"):
            ask()
    reader.stop()
