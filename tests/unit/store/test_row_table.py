"""Tables of replicated state: captured as they are, encoded later, and only what changed again."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import store.state.json_pieces
from store.state.consumer_offsets import ConsumerOffsets
from store.state.json_pieces import encode, pieces
from store.state.offset_history import MAX_POINTS, OffsetHistory
from store.state.row_table import RowTable

Table = RowTable[str, list[int]]


def text(value: Any) -> bytes:
    return b"".join(pieces(value))


def made() -> tuple[Table, list[str]]:
    encoded: list[str] = []

    def row(key: str, value: list[int]) -> bytes:
        encoded.append(key)
        return encode({key: value})[1:-1]

    return Table(list, row), encoded


def test_only_rows_that_changed_are_encoded_again() -> None:
    table, encoded = made()
    for key in "abc":
        table.change(key, list).append(1)
    assert text(table.capture()) == b'{"a":[1],"b":[1],"c":[1]}'
    assert encoded == ["a", "b", "c"]
    encoded.clear()
    table.change("b", list).append(2)
    table.change("b", list).append(3)
    assert text(table.capture()) == b'{"a":[1],"b":[1,2,3],"c":[1]}'
    assert encoded == ["b"]
    assert (len(table), list(table), dict(table.items())) == (3, ["a", "b", "c"], {"a": [1], "b": [1, 2, 3], "c": [1]})


@pytest.mark.parametrize("seed", range(10))
def test_what_was_captured_stays_as_it_was(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(store.state.json_pieces, "PIECE_BYTES", 10)
    draw, (table, _) = random.Random(seed), made()
    expected: dict[str, list[int]] = {}
    captured: list[tuple[Any, bytes]] = []
    for number in range(300):
        key = draw.choice("abcdefgh")
        match draw.randrange(8):
            case 0:
                table.pop(key)
                expected.pop(key, None)
            case 1:
                captured.append((table.capture(), encode(expected)))
            case 2 if captured:
                rows, content = captured.pop(draw.randrange(len(captured)))
                assert text({"table": rows}) == b'{"table":' + content + b"}"
            case 3 if number % 50 == 0:
                table.load((name, list(value)) for name, value in expected.items())
            case _:
                table.change(key, list).append(number)
                expected.setdefault(key, []).append(number)
    for rows, content in captured:
        assert text(rows) == content
    assert (table.get("a"), table.get("none")) == (expected.get("a"), None)


def test_sections_capture_what_they_dump() -> None:
    offsets, history = ConsumerOffsets(lambda _topic: 0), OffsetHistory()
    draw = random.Random(1)
    offsets.load({"offsetTable": {f"t@g{n}": {str(q): n + q for q in range(3)} for n in range(9)}, "generationTable": {"t@g1": {"2": 77}}})
    for number in range(3000):
        place = f"g{draw.randrange(5)}", f"t{draw.randrange(2)}", draw.randrange(4)
        if draw.random() < 0.02:
            history.went_to(*place, draw.randrange(number + 1))
        else:
            history.committed(*place, number, 1_700_000_000_000 + number)
    assert max(map(len, history.dump()["commitTable"].values())) == MAX_POINTS
    for section, other in ((offsets, ConsumerOffsets(lambda _topic: 0)), (history, OffsetHistory())):
        content = text(section.capture())
        assert content == encode(section.dump())
        other.load(json.loads(content))
        assert text(other.capture()) == content
