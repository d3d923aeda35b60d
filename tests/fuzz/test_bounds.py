"""Inputs that are small and want much: each is taken or refused within the bounds of its target, or within those given here."""

from __future__ import annotations

import struct
import zlib

import lz4.frame
import pytest
import zstandard

from dledger_wire.batches.batch import COMMAND_HEADER, KIND_COMMAND, MAGIC, VERSION, encode_command
from dledger_wire.errors import InvalidArgumentError
from store.queues.sql_filter import SqlFilter
from tests.fuzz.target import Target
from tests.fuzz.targets import ALL

LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (now, now, b", ".join([b"*%c" % (now - 1)] * 9)) for now in range(ord("b"), ord("k"))
)
ZEROS = bytes(30 << 20)
CLAIMS_TOO_MUCH = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 60 << 20) + b"\x01\x00\x00"

SMALL = [
    ("cluster-file", LAUGHS, "nine aliases of nine, ten times: 3 486 784 401 values"),
    ("cluster-file", b"[" * 20_000, "nested sequences"),
    ("cluster-file", b"a: " * 5_000 + b"{" * 5_000, "nested mappings"),
    ("cluster-file", b"x: " + b"9" * 100_000, "a number of 100 000 digits"),
    ("small-file", b"\x00" + b"[" * 1_000_000, "JSON of a million brackets"),
    ("small-file", b"\x00" + b"9" * 1_000_000, "a number of a million digits"),
    ("configuration", b'{"voters":' * 100_000, "nested objects"),
    ("sql", b"(" * 4000, "parentheses"),
    ("sql", b"-" * 4000 + b"1", "signs, or a comment"),
    ("sql", b"NOT " * 1000 + b"a", "negations"),
    ("sql", b"a IN (" + b"'x'," * 800 + b"'x')", "choices"),
    ("sql", b"a = 1" + b"e" * 4000, "no exponent"),
    ("sql", b"/*" * 2000, "comments that do not end"),
    ("sql", b"'" * 4001, "quotes"),
    ("tags", b"||" * 200_000, "a tag many times"),
    ("properties", b"a\x01b\x02" * 8_000, "a block full of pairs"),
    ("properties", b"\x02" * 32_000, "a block full of separators"),
    ("body", bytes([1]) + lz4.frame.compress(ZEROS), "LZ4 of 30 MiB"),
    ("body", bytes([2]) + zstandard.ZstdCompressor().compress(ZEROS), "zstd of 30 MiB"),
    ("body", bytes([3]) + zlib.compress(ZEROS), "zlib of 30 MiB"),
    ("body", bytes([2]) + CLAIMS_TOO_MUCH, "zstd that claims 60 MiB in 16 bytes"),
    ("batch", COMMAND_HEADER.pack(MAGIC, 0xFFFF_FFF8, VERSION, KIND_COMMAND, 0, 0xFFFF_FFFF) + bytes(80), "sizes of 4 GiB"),
    ("batch", encode_command("x", {"a": "b"}) * 20_000, "20 000 records"),
    ("chunk", b"\xff\xff\x01" + bytes(1000), "65 535 messages in 1 000 bytes"),
    ("raft-message", b"\x0d\xff\xff\xff\x7f" + b"\x08\x01" * 100_000, "a header of 2 GiB"),
    ("copy-plan", b"\x62\x00" * 500_000, "500 000 empty segments in a megabyte"),
    ("introduction", b"\x32\x00" * 500_000, "500 000 empty lists in a megabyte"),
    ("produced-line", b'{"body":' * 100_000, "nested objects in a line"),
    ("spark-manifest", zlib.compress(ZEROS + ZEROS + ZEROS), "a manifest of 90 MiB in 90 KiB"),
    ("units", b"9" * 100_000, "digits"),
]


@pytest.mark.parametrize(("name", "data", "what"), SMALL, ids=[f"{name}: {what}" for name, _, what in SMALL])
def test_a_small_input_costs_little(name: str, data: bytes, what: str) -> None:
    target = ALL[name]
    room = 120 << 20 if name in ("spark-manifest", "copy-plan") else target.bounds.memory
    bounds = type(target.bounds)(seconds=6.0, memory=room, memory_factor=target.bounds.memory_factor)
    Target(name, target.run, refusals=target.refusals, bounds=bounds).take_bounded(data)


@pytest.mark.parametrize("hidden", ["/*" + ")" * 1500 + "*/", "a = '" + ")" * 1500 + "' AND ", "--" + ")" * 1500 + "\n"])
def test_parentheses_are_counted_whatever_stands_in_texts_and_comments(hidden: str) -> None:
    """They would end in a RecursionError at each message that is looked at."""
    with pytest.raises(InvalidArgumentError, match="nested deeper than 64"):
        SqlFilter(hidden + "(a=1 OR " * 200 + "a=2" + ")" * 200)


def test_parentheses_in_texts_and_comments_are_none() -> None:
    assert SqlFilter("a = '" + "(" * 200 + "' /*" + "(" * 200 + "*/").matches({"a": "(" * 200})
