"""Bodies that show whether they have changed."""

from __future__ import annotations

import zlib

import pytest

from dledger_drill.workloads.bodies import CHANGED, LARGE, body_of, value_of

VALUES = [f"keyed-0/{number}" for number in range(5_000)]


def test_a_body_gives_its_value_back_and_is_always_the_same() -> None:
    for value in VALUES[:500]:
        assert value_of(body_of(value)) == value
        assert body_of(value) == body_of(value)


@pytest.mark.parametrize("value", VALUES[:40])
def test_each_flipped_bit_and_each_missing_or_added_end_shows(value: str) -> None:
    body = body_of(value)
    for at in {0, len(body) // 2, len(body) - 1}:
        other = bytes([*body[:at], body[at] ^ 0x10, *body[at + 1 :]])
        assert value_of(other).endswith(CHANGED)
    for other in (body[:-1], body + b"\0", body[1:], b""):
        assert value_of(other).endswith(CHANGED)
    assert value_of(b"\xff\xfe\n").endswith(CHANGED)


def test_sizes_are_mixed_and_some_bodies_can_be_compressed() -> None:
    sizes = sorted(len(body_of(value)) for value in VALUES)
    assert sizes[len(sizes) // 2] < 300
    assert 40_000 < sizes[-1] < LARGE + 100
    assert 500 < sum(sizes) / len(sizes) < 1_500
    large = [body for body in map(body_of, VALUES) if len(body) > 2_000]
    ratios = [len(zlib.compress(body)) / len(body) for body in large]
    assert min(ratios) < 0.1 < 0.9 < max(ratios)
