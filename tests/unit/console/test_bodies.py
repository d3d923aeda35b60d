"""Bodies as pages show them: no control character comes through, every form is bounded, a cut never breaks a character."""

from __future__ import annotations

import json
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_console.data.bodies import HEX_BYTES, JSON_BYTES, TEXT_BYTES, best_form, hex_dump, preview, view


def test_the_form_that_fits() -> None:
    assert best_form(b'{"id": 7}') == "json"
    assert best_form(b" [1, 2]\n") == "json"
    assert best_form(b"7") == "text"
    assert best_form(b"{not json}") == "text"
    assert best_form("größe".encode()) == "text"
    assert best_form(b"\xff\xfe\x00\x01") == "hex"
    assert best_form(b"") == "text"
    assert best_form(b"[" * 100_000) == "text"
    assert best_form(b"x" * (TEXT_BYTES - 1) + "ö".encode()) == "text"


def test_json_is_indented_and_escapes_what_cannot_be_shown() -> None:
    body = json.dumps({"a": "<script>alert(1)</script>", "b": "\x1b[31m\u202e"}, ensure_ascii=False).encode()
    shown = view(body, "json")
    assert shown.form == "json"
    assert '  "a": "<script>alert(1)</script>"' in shown.text
    assert "\x1b" not in shown.text
    assert "\u202e" not in shown.text
    assert not shown.cut
    assert view(b"{" + b" " * JSON_BYTES + b"}", "json").form == "text"


@pytest.mark.parametrize("depth", [400, 900, 5_000])
def test_json_of_deep_nesting_is_shown_as_text_before_it_fills_the_memory(depth: int) -> None:
    """Each of its lines is indented by twice its depth: 256 KiB of it made hundreds of megabytes."""
    body = b"[" * depth + b",".join([b"1"] * 60_000) + b"]" * depth
    tracemalloc.start()
    shown = view(body, "json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (shown.form, shown.shown_bytes) == ("text", TEXT_BYTES)
    assert peak < 32 << 20


def test_large_bodies_are_cut_and_say_so() -> None:
    body = b"x" * (4 << 20)
    assert (view(body, "text").shown_bytes, view(body, "text").cut) == (TEXT_BYTES, True)
    assert len(view(body, "text").text) == TEXT_BYTES
    shown = view(body, "hex")
    assert (shown.shown_bytes, shown.size_bytes) == (HEX_BYTES, 4 << 20)
    assert len(shown.text) < 5 * HEX_BYTES


def test_a_hex_dump_has_offsets_bytes_and_characters() -> None:
    assert hex_dump(b"hello, world\x00\xff12345") == (
        "00000000  68 65 6c 6c 6f 2c 20 77 6f 72 6c 64 00 ff 31 32  hello, world..12\n"
        "00000010  33 34 35                                         345"
    )


def test_a_cut_goes_around_a_character() -> None:
    text = "ab" + "ö€😀" * 40_000
    shown = view(text.encode(), "text").text
    assert "\\x" not in shown
    assert text.startswith(shown)


@given(st.binary(max_size=2000) | st.text(max_size=600).map(str.encode))
def test_no_control_character_reaches_a_page(body: bytes) -> None:
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, marks that turn the direction of writing around, line ends
    assert not {unicodedata.category(character) for character in preview(body)} & hidden
    assert len(preview(body)) <= 120
    for form in ("text", "json", "hex"):
        shown = view(body, form)
        assert not {unicodedata.category(character) for character in shown.text if character not in "\n\t"} & hidden
        assert not shown.cut


def test_json_is_shown_as_it_was_sent() -> None:
    """Money keeps its last digit, a name that comes twice is there twice, and no number becomes another one."""
    body = (
        b'{"price": 1.10, "price":1E2,"id": 1234567890123456789012, "far": 1e400, "none": {}, "few": [ ],"who":"\\u00e9 \\" {a: [b, c]}"}'
    )
    shown = view(body, "json")
    assert (shown.form, shown.text.split("\n")) == (
        "json",
        [
            "{",
            '  "price": 1.10,',
            '  "price": 1E2,',
            '  "id": 1234567890123456789012,',
            '  "far": 1e400,',
            '  "none": {},',
            '  "few": [],',
            '  "who": "é \\" {a: [b, c]}"',
            "}",
        ],
    )
    assert view('[{"a": [1]}]'.encode("utf-16-le"), "json").text == '[\n  {\n    "a": [\n      1\n    ]\n  }\n]'


def test_json_with_halves_of_a_surrogate_pair_is_shown() -> None:
    """Writers that take UTF-16 apart send them, and Python's parser takes them."""
    shown = view(b'{"who": "\xed\xa0\xbd\xed\xb8\x80"}', "json")
    assert (shown.form, shown.text) == ("json", '{\n  "who": "\\ud83d\\ude00"\n}')


def test_what_is_shown_of_json_is_limited_by_what_is_shown() -> None:
    """Short values in several levels do not count for more than their lines have."""
    found = {"items": [{"a": number % 10, "b": [2, 3]} for number in range(7000)]}
    shown = view(json.dumps(found, separators=(",", ":")).encode(), "json")
    assert (shown.form, shown.text) == ("json", json.dumps(found, indent=2))
