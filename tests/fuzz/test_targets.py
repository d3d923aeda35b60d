"""Every target holds for what was found before, for its seeds, and for inputs drawn from them: the same ones in each run.

The search for more is ``scripts/fuzz``.  Each finding is a file under ``corpus/TARGET/``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.target import Target
from tests.fuzz.targets import ALL

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = 40
FINDINGS = sorted(file for file in CORPUS.glob("*/*") if file.is_file())


@pytest.mark.parametrize("file", FINDINGS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_was_found_stays_mended(file: Path) -> None:
    ALL[file.parent.name].take_bounded(file.read_bytes())


def test_every_finding_has_its_target() -> None:
    assert {file.parent.name for file in FINDINGS} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_good_inputs_are_taken_and_all_their_beginnings_are_bounded(name: str) -> None:
    target = ALL[name]
    for good in target.seeds:
        assert target.take_bounded(good), f"{name}: a good input was refused"
        step = max(1, len(good) // 12)
        for end in range(0, len(good), step):
            target.take_bounded(good[:end])


@pytest.mark.parametrize("name", ALL)
def test_inputs_drawn_from_good_ones(name: str) -> None:
    target = ALL[name]

    @seed(13)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs(target))
    def drawn(data: bytes) -> None:
        target.take_bounded(data)

    drawn()


@st.composite
def inputs(draw: st.DrawFn, target: Target) -> bytes:
    """Bytes at random, words in a row, or a good input with some of its bytes changed, cut out, put in or repeated."""
    how = draw(st.integers(0, 9))
    if how == 0 or not (target.seeds or target.words):
        return draw(st.binary(max_size=200))
    if target.words and (how < 4 or not target.seeds):
        return b"".join(draw(st.lists(st.sampled_from(target.words) | st.binary(max_size=4), max_size=30)))
    data = bytearray(draw(st.sampled_from(target.seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 12))
        match draw(st.integers(0, 4)):
            case 0 if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                data[at : at + size] = draw(st.binary(min_size=size, max_size=size))
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = draw(st.sampled_from(target.words) if target.words else st.binary(max_size=8))
            case _:
                data[at:at] = data[at : at + size] * draw(st.sampled_from((1, 2, 100)))
    return bytes(data)
