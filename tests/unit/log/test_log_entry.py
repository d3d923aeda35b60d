"""The entry header: golden bytes, chaining, and that no bytes at all break the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.types import EntryId, EntryKind, EntryMeta
from dledger.log.entry import Header, RawEntry, chain_crc_of, encode_entry, parse_entries, parse_entry
from dledger_wire.checksum import crc32c
from dledger_wire.errors import CorruptEntryError
from dledger_wire.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, parse_segment_name, segment_name


def whole(entry: RawEntry) -> bytes:
    return b"".join(entry.buffers)


def test_the_header_lies_as_the_format_sheet_says() -> None:
    data = whole(encode_entry(7, 3, EntryKind.CONFIG, 4096, 0xDEADBEEF, [b"bo", b"dy"]))
    assert data[0:4] == b"\0\0\0\x03"
    assert data[4:8] == (52).to_bytes(4, "big")
    assert data[8:16] == (7).to_bytes(8, "big")
    assert data[16:24] == (3).to_bytes(8, "big")
    assert data[24:32] == (4096).to_bytes(8, "big")
    assert data[32:36] == b"\0\0\0\0"
    assert data[36:40] == crc32c(b"\xde\xad\xbe\xef" + data[:36] + data[40:48]).to_bytes(4, "big")
    assert data[40:44] == crc32c(b"body").to_bytes(4, "big")
    assert data[44:48] == (4).to_bytes(4, "big")
    assert data[48:] == b"body"
    assert (ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE) == (48, 32)


def test_crc32c_is_the_castagnoli_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_bodys_buffers_are_kept_not_copied() -> None:
    piece = bytearray(b"x" * 1000)
    entry = encode_entry(1, 1, EntryKind.NORMAL, 0, 0, [piece])
    assert entry.buffers[1] is piece
    assert entry.body() == (piece,)


def test_a_parsed_entry_is_what_was_encoded() -> None:
    first = encode_entry(1, 1, EntryKind.NO_OP, 0, 0, [])
    second = encode_entry(2, 4, EntryKind.NORMAL, first.end_pos, first.chain_crc, [b"text"])
    parsed = parse_entries(whole(first) + whole(second))
    assert [(entry.id, entry.kind, entry.pos, entry.size_bytes, entry.chain_crc, entry.body_bytes()) for entry in parsed] == [
        (EntryId(1, 1), EntryKind.NO_OP, 0, 48, first.chain_crc, b""),
        (EntryId(2, 4), EntryKind.NORMAL, 48, 52, second.chain_crc, b"text"),
    ]
    assert parsed[1].meta() == EntryMeta(4, 52, EntryKind.NORMAL)
    assert parsed[1].header_bytes() == second.header_bytes()


def test_the_chain_holds_everything_before() -> None:
    one = encode_entry(1, 1, EntryKind.NORMAL, 0, 0, [b"a"])
    other = encode_entry(1, 1, EntryKind.NORMAL, 0, 0, [b"b"])
    assert one.chain_crc != other.chain_crc
    after_one = encode_entry(2, 1, EntryKind.NORMAL, 49, one.chain_crc, [b"same"])
    after_other = encode_entry(2, 1, EntryKind.NORMAL, 49, other.chain_crc, [b"same"])
    assert after_one.chain_crc != after_other.chain_crc
    assert chain_crc_of(one.chain_crc, after_one.header_bytes()) == after_one.chain_crc


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    try:
        entries = parse_entries(data)
    except CorruptEntryError:
        return
    assert sum(entry.size_bytes for entry in entries) == len(data)


@given(st.integers(0, 8 * (ENTRY_HEADER_SIZE + 20) - 1))
def test_every_flipped_bit_shows_in_header_body_or_chain(bit: int) -> None:
    entry = encode_entry(5, 2, EntryKind.NORMAL, 777, 12345, [b"t" * 20])
    data = bytearray(whole(entry))
    data[bit // 8] ^= 1 << bit % 8
    try:
        parsed = parse_entry(memoryview(bytes(data)))
    except CorruptEntryError:
        return
    header = Header.unpack(data)
    assert chain_crc_of(12345, data) != header.chain_crc
    assert parsed.size_bytes == len(data)


@pytest.mark.parametrize("cut", [0, 1, 47, 48, 60])
def test_an_entry_cut_short_is_refused(cut: int) -> None:
    data = whole(encode_entry(1, 1, EntryKind.NORMAL, 0, 0, [b"t" * 20]))
    with pytest.raises(CorruptEntryError):
        parse_entry(memoryview(data[:cut]))


def test_segment_names_are_20_digits() -> None:
    assert segment_name(1 << 30) == "00000000001073741824"
    assert parse_segment_name("00000000001073741824") == 1 << 30
    for name in ("1073741824", "0000000000107374182x", "000000000010737418240", "²0000000000000000000"):
        assert parse_segment_name(name) is None
