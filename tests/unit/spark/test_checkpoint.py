"""Offsets of a stream in its checkpoint: the form that earlier releases wrote and read, and what is remembered of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.planning import checkpoint
from pyspark_dledger.planning.checkpoint import KnownOffsets, from_json, to_json
from pyspark_dledger.planning.queue_offsets import QueueId, TopicPart, by_queue, same_offsets
from tests.unit.spark.views import of_queues

GOLDEN = (
    '{"version": 1, "topics": {"a": {"incarnation": "", "queues": {}}, "t": {"incarnation": "g0:7,g1:9", '
    '"queues": {"g0:0": 5, "g0:2": 0, "g0:10": 7, "g1:1": 9007199254740993}}}}'
)
OFFSETS = {QueueId("t", "g0", 0): 5, QueueId("t", "g0", 2): 0, QueueId("t", "g0", 10): 7, QueueId("t", "g1", 1): (1 << 53) + 1}


def test_the_form_is_that_of_every_version() -> None:
    assert json.dumps(to_json(of_queues(OFFSETS), {"t": "g0:7,g1:9", "a": ""})) == GOLDEN
    read = from_json(json.loads(GOLDEN))
    assert by_queue(read.offsets) == OFFSETS
    assert read.topic_epochs == {"a": "", "t": "g0:7,g1:9"}


def test_an_order_that_nobody_writes_is_read_as_well() -> None:
    stored = {"version": 1, "topics": {"t": {"incarnation": "x", "queues": {"g1:1": 4, "g0:2": "3", "a:b:0": 2, "g0:0": 1}}}}
    assert by_queue(from_json(stored).offsets) == {
        QueueId("t", "a:b", 0): 2,
        QueueId("t", "g0", 0): 1,
        QueueId("t", "g0", 2): 3,
        QueueId("t", "g1", 1): 4,
    }


@pytest.mark.parametrize(
    "queues", [{"g0:0": -1}, {"g0:-1": 1}, {"g0:99999999999": 1}, {"g0": 1}, {"g0:0": None}, {"g0:0": [1]}, {"g0:0": 1 << 63}, 7, None]
)
def test_what_are_no_offsets_is_refused(queues: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="are not offsets of this source"):
        from_json({"version": 1, "topics": {"t": {"incarnation": "g0:7", "queues": queues}}})


QUEUES = st.dictionaries(
    st.builds(QueueId, st.sampled_from(["t", "u"]), st.sampled_from(["g0", "g1"]), st.integers(0, 12)), st.integers(0, (1 << 63) - 1)
)


@given(QUEUES)
def test_offsets_are_read_as_they_were_written(offsets: dict[QueueId, int]) -> None:
    stored = json.loads(json.dumps(to_json(of_queues(offsets), {"t": "e", "u": "f"})))
    assert by_queue(from_json(stored).offsets) == offsets == by_queue(of_queues(offsets))


def test_what_was_told_last_is_neither_read_nor_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []
    for name in ("from_json", "to_json"):
        work = getattr(checkpoint, name)
        monkeypatch.setattr(checkpoint, name, lambda *rest, name=name, work=work: worked.append(name) or work(*rest))
    known, epochs = KnownOffsets(), {"t": "g0:7"}
    offsets = {TopicPart("t", "g0"): np.array([1, 2, 3])}
    told = known.write(offsets, epochs)
    assert known.write({TopicPart("t", "g0"): np.array([1, 2, 3])}, dict(epochs)) is told
    assert same_offsets(known.read(json.loads(json.dumps(told))).offsets, offsets)
    assert worked == ["to_json"]
    assert known.write(offsets, {"t": "g0:8"}) != told
    assert known.write({TopicPart("t", "g0"): np.array([1, 2, 4])}, epochs) != told
    assert worked == ["to_json"] * 3
    other = to_json({TopicPart("t", "g0"): np.array([9])}, epochs)
    assert known.read(other) is known.read(json.loads(json.dumps(other)))
    assert worked == [*["to_json"] * 3, "from_json"]
