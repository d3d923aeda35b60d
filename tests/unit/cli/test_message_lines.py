"""Messages as lines: what ``produce`` reads and ``consume`` prints."""

from __future__ import annotations

import io
import os
from types import SimpleNamespace
from typing import Any

import pytest

from dledger_cli.commands.consume import _Start
from dledger_cli.message_input import READ_BYTES, GivenMessage, line_chunks, line_reader
from dledger_cli.message_text import LineFormat, consumed_json
from dledger_client.fetch.records import QueueOffsets

MESSAGE: Any = SimpleNamespace(
    topic="orders",
    queue_id=2,
    queue_offset=17,
    msg_id="7F00",
    keys="o-1 o-2",
    tags="paid",
    born_timestamp=1,
    store_timestamp=1_700_000_000_000,
    properties={"a": "ü", "UNIQ_KEY": "7F00"},
    body=b"4 \xff",
)


def test_a_format_names_what_it_prints() -> None:
    assert LineFormat(r"%t/%q:%o %k %g %i %s%%\t%b\n").of(MESSAGE) == b"orders/2:17 o-1 o-2 paid 7F00 1700000000000%\t4 \xff\n"
    assert LineFormat("%p").of(MESSAGE) == '{"a": "ü", "UNIQ_KEY": "7F00"}'.encode()
    assert LineFormat("a\nb").of(MESSAGE) == b"a\nb"


@pytest.mark.parametrize("text", ["%x", "%", "a%"])
def test_an_unknown_letter_is_told_with_those_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="expected one of %t %q %o"):
        LineFormat(text)


def test_json_has_the_properties() -> None:
    assert consumed_json(MESSAGE)["properties"] == {"a": "ü", "UNIQ_KEY": "7F00"}


@pytest.mark.parametrize(
    ("text", "offset"), [("", 10), ("first", 10), ("last", 90), ("-5", 85), ("-1000", 10), ("1700000000000", 40), ("2026-01-31T12:00", 40)]
)
def test_where_reading_begins(text: str, offset: int) -> None:
    assert _Start.of(text).offset(QueueOffsets(10, 90, 40, "")) == offset


def test_a_key_before_the_separator() -> None:
    read = line_reader("::", as_json=False)
    assert read(b"o-1::a::b") == GivenMessage(b"a::b", {"keys": "o-1"}, "o-1")
    with pytest.raises(ValueError, match="got no '::'"):
        read(b"plain")
    assert line_reader("", as_json=False)(b"plain") == GivenMessage(b"plain")
    with pytest.raises(ValueError, match="key 'k 4': expected no spaces; "):  # two keys, of which neither is the one given
        line_reader(":", as_json=False)(b"k 4:v")


def test_what_consume_prints_as_json_can_be_produced_again() -> None:
    read = line_reader("", as_json=True)
    line = b'{"topic": "t", "queue_offset": 3, "body": "x", "keys": "k", "tags": "", "properties": {"a": "1", "UNIQ_KEY": "7F"}}'
    assert read(line) == GivenMessage(b"x", {"keys": "k", "properties": {"a": "1"}})
    assert read(b'{"body_base64": "/w==", "queue_key": "q"}') == GivenMessage(b"\xff", {}, "q")
    assert read(b'{"body": "x", "keys": ["o-1", "c-7"]}') == GivenMessage(b"x", {"keys": "o-1 c-7"})
    assert read(b'{"body": "x", "keys": []}') == GivenMessage(b"x")
    common = {"tags": "t", "keys": "", "properties": {"a": "0", "b": "2"}}
    assert read(line).over(common) == {"tags": "t", "keys": "k", "properties": {"a": "1", "b": "2"}}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "either body or body_base64"),
        (b'{"body": 1}', "body: expected text, got 1"),
        (b'{"body": "x", "tag": "y"}', "'tag': unknown; expected body"),
        (b'{"body": "x", "properties": {"a": 1}}', "an object of texts"),
        (b'{"body_base64": "?"}', "body_base64: "),
        (b'{"body": "x", "keys": 1}', "keys: expected text"),
        (b'{"body": "x", "keys": ["a b"]}', "a list of texts without spaces"),
    ],
)
def test_a_wrong_json_line_says_what_was_expected(line: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match="(?s).*" + expected):
        line_reader("", as_json=True)(line)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n\ntwo\r\n", [b"one", b"", b"two"]),
        (b"a\rb\r\n\r\n" + b"c" * (READ_BYTES - 8) + b"\r\nend\r", [b"a\rb", b"", b"c" * (READ_BYTES - 8), b"end\r"]),
        (b"\n", [b""]),
        (b"a" * (2 * READ_BYTES + 1) + b"\nb\n" + b"c" * READ_BYTES, [b"a" * (2 * READ_BYTES + 1), b"b", b"c" * READ_BYTES]),
    ],
)
def test_lines_are_what_stands_between_newlines(content: bytes, lines: list[bytes]) -> None:
    assert [line for chunk in line_chunks(io.BytesIO(content)) for line in chunk] == lines


def test_a_line_that_arrives_alone_waits_for_no_other() -> None:
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as stream:
        chunks = line_chunks(stream)
        os.write(write_fd, b"one\n")
        assert next(chunks) == [b"one"]
        os.write(write_fd, b"two\nthr")
        assert next(chunks) == [b"two"]
        os.write(write_fd, b"ee\nfour\n")
        assert next(chunks) == [b"three", b"four"]
        os.close(write_fd)
        assert list(chunks) == []
