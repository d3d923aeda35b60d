"""Text and JSON from outside: what is escaped, what is refused."""

from __future__ import annotations

import json

import pytest

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, encode_properties, pack_host, unpack_host
from dledger_wire.printable import printable, printable_body, printable_json, printable_lines
from dledger_wire.strict_json import NamedTwiceError, parse


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("Bestellung ä 注文", "Bestellung ä 注文"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("one\ntwo\tthree\r", "one\\ntwo\\tthree\\r"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
        ("\ud800", "\\ud800"),
        ("a\u00a0b\u2003c", "a\u00a0b\u2003c"),
    ],
)
def test_what_may_not_be_shown_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_and_tabs_of_a_body_stay() -> None:
    assert printable_lines("one\n\ttwo\x07") == "one\n\ttwo\\x07"
    assert printable_body(b"one\n\xfftwo\x1b") == "one\n\\xfftwo\\x1b"


@pytest.mark.parametrize("text", ["plain", "\x7f", "\u202e\x1b", "\ud800", "a\u00a0b", "\U000e0001"])
def test_json_that_is_shown_means_the_same(text: str) -> None:
    shown = printable_json({"key": text})
    assert json.loads(shown) == {"key": text}
    assert printable(shown) == shown
    assert printable_json({1.5}, default=sorted) == "[1.5]"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[" * 100_000, "nested too deep"),
        ("1e999", "the number 1e999 is too large"),
        ("NaN", "NaN is no number"),
        ('"\\ud800"', "surrogates not allowed"),
        ("{", "Expecting property name"),
    ],
)
def test_json_that_cannot_be_passed_on_is_refused(text: str, error: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(ValueError, match=error):
            parse(data)


def test_json_is_parsed() -> None:
    assert parse(b'\xef\xbb\xbf{"a": [1, 2.5, "\\u00e4"]}') == {"a": [1, 2.5, "ä"]}
    assert parse('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(NamedTwiceError, match=r"^a$"):
        parse('{"a": 1, "a": 2}', unique=True)


def test_properties_that_do_not_fit_their_format_are_refused() -> None:
    for name, value in (("", "x"), ("a\x01", "x"), ("a", "\x02")):
        with pytest.raises(InvalidArgumentError, match="expected a name, and neither"):
            encode_properties({name: value})
    with pytest.raises(InvalidArgumentError, match="not encodable as UTF-8"):
        encode_properties({"a": "\ud800"})
    with pytest.raises(InvalidArgumentError, match=f"expected at most {MAX_PROPERTIES_BYTES}"):
        encode_properties({"a": "x" * MAX_PROPERTIES_BYTES})


def test_addresses_are_packed() -> None:
    for address in ("127.0.0.1:10911", "[::1]:10911"):
        assert unpack_host(pack_host(address)) == address
    assert unpack_host(pack_host("broker.example:10911")) == "0.0.0.0:10911"
    for wrong in ("127.0.0.1", "127.0.0.1:x", f"127.0.0.1:{1 << 40}"):
        with pytest.raises(InvalidArgumentError, match="expected host:port"):
            pack_host(wrong)
