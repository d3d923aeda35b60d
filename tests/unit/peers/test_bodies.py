"""Bodies of benchmarks: made from their numbers, and counted distinct when they come back."""

from __future__ import annotations

import zlib
from array import array

import pyarrow as pa
import pytest

from benchmarks.bodies import COMPARED_EVERY, Bodies, Seen, parse_size

COUNT = 3000


def test_a_body_is_a_function_of_its_number_and_no_two_are_alike() -> None:
    bodies = Bodies("512-1536")
    made = bodies.many(0, COUNT)
    assert made == [Bodies("512-1536").body(number) for number in range(COUNT)]
    assert len({body[8:40] for body in made}) == COUNT
    assert [len(body) for body in made] == [bodies.size(number) for number in range(COUNT)]
    assert sum(map(len, made)) == bodies.total_bytes(COUNT)
    assert len(set(map(len, made))) > 900
    assert {len(body) for body in Bodies("100").many(0, 50)} == {100}


def test_bodies_do_not_compress() -> None:
    batch = b"".join(Bodies("1024").many(0, 1000))
    assert len(zlib.compress(batch)) > 0.98 * len(batch)


def test_the_smallest_size_has_room_for_the_number_only() -> None:
    assert Bodies("8").body(77) == (77).to_bytes(8, "big")
    assert parse_size("100") == (100, 100)
    assert parse_size("512-1536") == (512, 1536)
    for wrong in ("7", "9-8", "x", "", "100-", "8-2000000"):
        with pytest.raises(ValueError):  # noqa: PT011  int says it in words of its own
            parse_size(wrong)


def column(bodies: list[bytes]) -> pa.ChunkedArray:
    """In two chunks, the second of which does not begin at the start of its buffers."""
    half = len(bodies) // 2
    return pa.chunked_array([pa.array(bodies[:half], pa.binary()), pa.array([b"other", *bodies[half:]], pa.binary()).slice(1)])


@pytest.mark.parametrize("way", ["objects", "column"])
def test_what_came_is_counted_distinct(way: str) -> None:
    bodies = Bodies("100-300")
    seen = Seen(COUNT, bodies)
    came = bodies.many(10, COUNT)  # ten never come,
    came += [bodies.body(20), bodies.body(20), bodies.body(30)]  # two come again, one of them twice,
    came.append(bodies.body(COUNT))  # and one was never sent.
    count = seen.see(came) if way == "objects" else seen.see_column(column(came))
    assert count == len(came)
    assert (seen.distinct, seen.doubled, seen.strange) == (COUNT - 10, 3, 1)
    assert seen.bytes == sum(map(len, came))
    acknowledged = array("d", [1.0] * 5 + [0.0] * (COUNT - 5))
    assert seen.lost_of(acknowledged) == 5


@pytest.mark.parametrize("way", ["objects", "column"])
def test_a_body_that_was_changed_is_strange(way: str) -> None:
    bodies = Bodies("100")
    seen = Seen(COUNT, bodies)
    came = bodies.many(0, COUNT)
    came[COMPARED_EVERY] = came[COMPARED_EVERY][:-1] + b"\0" if came[COMPARED_EVERY][-1] else came[COMPARED_EVERY][:-1] + b"\1"
    seen.see(came) if way == "objects" else seen.see_column(column(came))
    assert (seen.distinct, seen.doubled, seen.strange) == (COUNT, 0, 1)


def test_an_empty_column_is_nothing() -> None:
    seen = Seen(1, Bodies("100"))
    assert seen.see_column(pa.chunked_array([pa.array([], pa.binary())])) == 0
    assert seen.see_column(pa.chunked_array([], pa.binary())) == 0
    assert (seen.distinct, seen.bytes) == (0, 0)
