"""docs/reference/formats.md against the code: every size and place it names is the one that is written."""

from __future__ import annotations

import re
from pathlib import Path

from dledger.log.hard_state import COPY_BYTES, MAGIC
from dledger_wire import dtypes, layout, store_layout
from dledger_wire.batches import batch
from dledger_wire.feature_levels import LEVELS
from dledger_wire.formats import FORMATS
from dledger_wire.frames import frame_layout
from dledger_wire.frames.frame_head import head_dtype
from store.key_index.index_file import Geometry

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")


def table(heading: str) -> list[tuple[int, int]]:
    """(place, size) of every row of the table behind a heading."""
    section = TEXT.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", section, re.MULTILINE)]


def assert_is(rows: list[tuple[int, int]], format_text: str, size: int) -> None:
    codes = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}
    sizes = [codes[code] for code in format_text if code in codes]
    places = [sum(sizes[:number]) for number in range(len(sizes))]
    assert rows == list(zip(places, sizes, strict=True))
    assert sum(sizes) == size


def test_entry_header_and_index_unit() -> None:
    assert_is(table("Log entry (48-byte header)"), layout.ENTRY_HEADER.format, layout.ENTRY_HEADER_SIZE)
    assert_is(table("Index unit (32 bytes)"), layout.INDEX_UNIT.format, layout.INDEX_UNIT_SIZE)


def test_batch_record() -> None:
    assert_is(table("Records in an entry's body"), batch.HEADER.format, batch.HEADER_SIZE)
    assert batch.MAGIC.to_bytes(4, "big") == b"DLBR"


def test_frame() -> None:
    head = head_dtype()
    assert head.itemsize == frame_layout.HEAD_SIZE == 88
    assert head.fields is not None
    places = [head.fields[name][1] for name in ("queue_offset", "physical_offset", "sys_flag", "born_host")]
    assert places == [20, 28, 36, 48]
    assert (frame_layout.MAGIC_V1 & 0xFFFFFFFF, frame_layout.MAGIC_V2 & 0xFFFFFFFF) == (0xDAA320A7, 0xDAA320AB)


def test_store_files() -> None:
    assert [dtypes.QUEUE_UNIT_DTYPE.fields[name][1] for name in ("pos", "size", "tag_hash")] == [0, 8, 12]  # type: ignore[index]
    assert (store_layout.QUEUE_UNIT_SIZE, store_layout.QUEUE_UNITS_PER_FILE) == (20, 300_000)
    assert (store_layout.INDEX_HEADER_SIZE, store_layout.INDEX_SLOTS, store_layout.INDEX_ENTRIES) == (40, 5_000_000, 20_000_000)
    assert store_layout.CHECKPOINT_FILE_SIZE == 4096


def test_index_file() -> None:
    assert_is(table("Index file header (40 bytes)"), store_layout.INDEX_HEADER.format, store_layout.INDEX_HEADER_SIZE)
    fields = dtypes.INDEX_ENTRY_DTYPE.fields
    assert fields is not None
    places = [(fields[name][1], fields[name][0].itemsize) for name in ("key_hash", "pos", "seconds", "previous")]
    assert table("Index file entry (20 bytes)") == places
    assert Geometry(store_layout.INDEX_SLOTS, store_layout.INDEX_ENTRIES).file_bytes == 420_000_040
    assert "420 000 040" in TEXT
    assert store_layout.INDEX_ENTRY_SIZE == 20


def test_hard_state() -> None:
    assert MAGIC.to_bytes(4, "big") == b"DLHS"
    assert COPY_BYTES == 4096


def test_the_table_of_versions_is_the_one_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\d+) \| ([^|]+) \|$", TEXT.split("## Versions", 1)[1].split("\n## ", 1)[0], re.MULTILINE)
    assert rows == [(known.name, known.file, str(known.current), known.reads) for known in FORMATS]


def test_the_guide_names_every_feature_level() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "operate" / "upgrade.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", guide, re.MULTILINE)
    assert rows == [(str(level.number), level.release, level.switches_on) for level in LEVELS]
