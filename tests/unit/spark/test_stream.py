"""The stream's offsets against a view of the cluster that the test sets: limits, new queues, ends, loss, PySpark 4.1."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dledger_client.fetch.records import Chunk
from dledger_wire.errors import DledgerError, InvalidArgumentError, OffsetOutOfRangeError, UnreachableError
from dledger_wire.frames.frame import Frame, encode_frame
from pyspark_dledger.options.model import ReadOptions, parse_read_options
from pyspark_dledger.planning import checkpoint, cluster_queries
from pyspark_dledger.planning.cluster_view import ClusterView
from pyspark_dledger.planning.partitions import OffsetRange
from pyspark_dledger.planning.queue_offsets import QueueId, by_queue
from pyspark_dledger.read import stream
from pyspark_dledger.read.stream import StreamReader
from tests.unit.spark.views import Held, bounds_of, of_queues

WHOLE = encode_frame(Frame(0, 0, 0, b"seven..", "t"))
Q = [QueueId("t", "g0", number) for number in range(3)]


@dataclass
class Seen:
    """What the cluster holds; the test changes it."""

    bounds: dict[QueueId, Held]
    topic_epochs: dict[str, str]
    unreachable: dict[str, DledgerError] = field(default_factory=dict)
    leaderless: set[str] = field(default_factory=set)

    def view(self) -> ClusterView:
        return ClusterView(bounds_of(self.bounds), dict(self.topic_epochs), dict(self.unreachable), set(self.leaderless))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    cluster = Seen({Q[0]: (0, 100), Q[1]: (0, 50)}, {"t": "g0:7"})
    monkeypatch.setattr(cluster_queries, "read_cluster_view", lambda _options, _may_lack=(), **_how: cluster.view())
    monkeypatch.setattr(cluster_queries, "min_offset_on_replicas", lambda _options, queue, _offset: cluster.bounds[queue][0])
    return cluster


def reader(**options: str) -> StreamReader:
    return StreamReader(parse_read_options({"bootstrap": "h:1", "topic": "t", **options}, stream=True))


def to_json(offsets: Mapping[QueueId, int], topic_epochs: Mapping[str, str]) -> dict[str, Any]:
    return checkpoint.to_json(of_queues(offsets), topic_epochs)


def from_json(stored: dict[str, Any]) -> tuple[dict[QueueId, int], dict[str, str]]:
    found = checkpoint.from_json(stored)
    return by_queue(found.offsets), dict(found.topic_epochs)


def offsets(stored: dict[str, Any] | None) -> dict[QueueId, int]:
    assert stored is not None
    return from_json(stored)[0]


def ranges(found: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
    return [piece for partition in found.partitions(start, end) for piece in cast(Any, partition).pieces]


def test_offsets_survive_the_checkpoint_and_others_are_refused() -> None:
    stored = to_json({Q[0]: 5, Q[2]: 0}, {"t": "g0:7"})
    assert from_json(stored) == ({Q[0]: 5, Q[2]: 0}, {"t": "g0:7"})
    for other in ({}, {"version": 2, "topics": {}}, {"version": 1, "topics": {"t": {"queues": {"x": 1}, "incarnation": ""}}}):
        with pytest.raises(InvalidArgumentError, match="checkpoint"):
            from_json(other)


def test_a_trigger_goes_as_far_as_its_limit_and_never_back(seen: Seen) -> None:
    found = reader(maxMessagesPerTrigger="30")
    start = found.initialOffset()
    assert offsets(start) == {Q[0]: 0, Q[1]: 0}
    first = found.latestOffset(start, found.getDefaultReadLimit())
    assert offsets(first) == {Q[0]: 20, Q[1]: 10}
    assert offsets(found.latestOffset(first, ReadAllAvailable())) == {Q[0]: 100, Q[1]: 50}
    seen.bounds[Q[0]], seen.leaderless = (0, 10), {"g0"}  # of a follower that knows less
    assert offsets(found.latestOffset(first, ReadMaxRows(1000))) == {Q[0]: 20, Q[1]: 50}


def test_a_new_queue_is_read_from_its_first_message(seen: Seen) -> None:
    found = reader()
    start = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    seen.bounds[Q[2]] = (3, 9)
    end = found.latestOffset(start, ReadAllAvailable())
    assert ranges(found, start, end) == [OffsetRange(Q[2], 3, 9)]
    assert ranges(found, end, end) == []


def test_an_available_now_query_asks_leaders_where_it_ends(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    look = cluster_queries.read_cluster_view

    def noted(*rest: Any, **how: Any) -> ClusterView:
        asked.append(how.get("from_leaders", False))
        return look(*rest, **how)

    monkeypatch.setattr(cluster_queries, "read_cluster_view", noted)
    found = reader()
    found.prepareForTriggerAvailableNow()
    found.latestOffset(found.initialOffset(), ReadAllAvailable())
    assert asked == [True, False, False]


def test_an_available_now_trigger_ends_where_it_began_to_look(seen: Seen) -> None:
    found = reader(minMessagesPerTrigger="1000")
    found.prepareForTriggerAvailableNow()
    seen.bounds[Q[0]] = (0, 500)
    assert offsets(found.latestOffset(found.initialOffset(), ReadAllAvailable())) == {Q[0]: 100, Q[1]: 50}
    assert offsets(found.reportLatestOffset()) == {Q[0]: 500, Q[1]: 50}


def test_too_few_messages_wait_for_more_but_not_for_ever(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000]
    monkeypatch.setattr(stream, "_now_ms", lambda: now[0])
    found = reader(minMessagesPerTrigger="200", maxTriggerDelayMs="5000")
    start, limit = found.initialOffset(), found.getDefaultReadLimit()
    assert found.latestOffset(start, limit) == start
    now[0] += 5000
    end = found.latestOffset(start, limit)
    assert offsets(end) == {Q[0]: 100, Q[1]: 50}
    seen.bounds[Q[0]] = (0, 300)
    assert offsets(found.latestOffset(end, limit)) == {Q[0]: 300, Q[1]: 50}


def test_a_limit_in_bytes_goes_by_the_sizes_of_what_waits(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_queries, "mean_message_sizes", lambda _options, spans: {queue: 10.0 for queue in spans})
    found = reader(maxBytesPerTrigger="300")
    assert offsets(found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())) == {Q[0]: 20, Q[1]: 10}


@pytest.mark.parametrize("limits", [{"maxBytesPerTrigger": "300"}, {"minMessagesPerTrigger": "200"}, {"maxMessagesPerTrigger": "30"}])
def test_a_trigger_once_takes_all_that_there_is(seen: Seen, limits: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks with no limit then, instead of the source's own: nothing would come back for the rest."""
    monkeypatch.setattr(cluster_queries, "mean_message_sizes", lambda _options, spans: {queue: 10.0 for queue in spans})
    found = reader(**limits)
    assert found.getDefaultReadLimit() != ReadAllAvailable()
    start = found.initialOffset()
    assert offsets(found.latestOffset(start, found.getDefaultReadLimit())) != {Q[0]: 100, Q[1]: 50}
    assert offsets(found.latestOffset(start, ReadAllAvailable())) == {Q[0]: 100, Q[1]: 50}


def test_sizes_are_taken_from_what_is_left_of_all_queues_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    all_asked = asyncio.Event()

    class Expired:
        """Queues that begin at 40; none answers before all were asked."""

        asked = 0

        def __init__(self, *_rest: Any, **_how: Any) -> None: ...

        async def __aenter__(self) -> Expired:
            return self

        async def __aexit__(self, *_rest: Any) -> None: ...

        async def read_chunks(self, topic: str, queue_id: int, offset: int, upto: int, **how: Any) -> AsyncGenerator[Chunk]:
            Expired.asked += 1
            if Expired.asked == 3:
                all_asked.set()
            await all_asked.wait()
            if offset < 40:
                raise OffsetOutOfRangeError("gone", min_offset=40, max_offset=100)
            assert how["without_body"]
            cut, count = WHOLE.replace(b"seven..", b""), upto - offset
            yield Chunk(topic, "g0", queue_id, "n0", np.arange(offset, upto), np.full(count, len(cut)), cut * count, bodiless=True)

    monkeypatch.setattr(cluster_queries, "AsyncPullConsumer", Expired)
    options = parse_read_options({"bootstrap": "h:1", "topic": "t"}, stream=True)
    size = float(len(WHOLE))
    assert cluster_queries.mean_message_sizes(options, {Q[0]: (2, 90), Q[1]: (2, 30), Q[2]: (50, 60)}) == {Q[0]: size, Q[2]: size}


def test_a_stream_that_is_told_where_to_stop_stops(seen: Seen) -> None:
    found = reader(endingOffsets='{"t":{"g0:0":40}}')
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    assert offsets(end) == {Q[0]: 40, Q[1]: 50}
    assert found.latestOffset(end, ReadAllAvailable()) == end


def test_loss_is_an_error_or_left_out(seen: Seen) -> None:
    strict, loose = reader(), reader(failOnDataLoss="false")
    start, end = to_json({Q[0]: 2, Q[1]: 0}, {"t": "g0:7"}), to_json({Q[0]: 90, Q[1]: 0}, {"t": "g0:7"})
    seen.bounds[Q[0]] = (60, 100)
    with pytest.raises(OffsetOutOfRangeError, match="messages 2 to 60 no longer exist"):
        strict.partitions(start, end)
    assert ranges(loose, start, end) == [OffsetRange(Q[0], 60, 90)]
    seen.topic_epochs["t"] = "g0:8"
    with pytest.raises(OffsetOutOfRangeError, match="deleted and recreated"):
        strict.latestOffset(start, ReadAllAvailable())
    seen.topic_epochs["t"] = "g0:7,g1:9"  # another group holds queues of it too
    strict.latestOffset(start, ReadAllAvailable())
    del seen.topic_epochs["t"]
    seen.bounds.clear()
    with pytest.raises(OffsetOutOfRangeError, match="topic t no longer exists"):
        strict.latestOffset(start, ReadAllAvailable())


def test_what_the_leader_expired_is_read_when_another_replica_holds_it(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_queries, "min_offset_on_replicas", lambda _options, _queue, offset: max(offset, 40))
    seen.bounds[Q[0]] = (60, 100)
    end = to_json({Q[0]: 90, Q[1]: 0}, {"t": "g0:7"})
    assert ranges(reader(), to_json({Q[0]: 45, Q[1]: 0}, {"t": "g0:7"}), end) == [OffsetRange(Q[0], 45, 90)]
    before = to_json({Q[0]: 2, Q[1]: 0}, {"t": "g0:7"})
    with pytest.raises(OffsetOutOfRangeError, match="messages 2 to 40 no longer exist"):
        reader().partitions(before, end)
    assert ranges(reader(failOnDataLoss="false"), before, end) == [OffsetRange(Q[0], 40, 90)]
    named = reader(startingOffsets='{"t":{"g0:0":41}}').initialOffset()
    assert offsets(named) == {Q[0]: 41, Q[1]: 0}


def test_a_topic_made_again_is_an_error_or_read_from_its_start(seen: Seen) -> None:
    strict, loose = reader(), reader(failOnDataLoss="false")
    start = to_json({Q[0]: 1_000, Q[1]: 30}, {"t": "g0:7"})
    unfinished_writes = to_json({Q[0]: 1_100, Q[1]: 50}, {"t": "g0:7"})
    seen.topic_epochs["t"] = "g0:8"  # holds less than was read of the old one, and only one queue
    del seen.bounds[Q[1]]
    for end in (unfinished_writes, to_json({Q[0]: 100}, {"t": "g0:8"})):  # the second as PySpark 4.1 plans, which tells no start
        with pytest.raises(OffsetOutOfRangeError, match="deleted and recreated"):
            strict.partitions(start, end)
    assert ranges(loose, start, unfinished_writes) == []
    for before in (start, unfinished_writes):
        end = loose.latestOffset(before, ReadAllAvailable())
        assert from_json(end) == ({Q[0]: 100}, {"t": "g0:8"})
        assert ranges(loose, before, end) == [OffsetRange(Q[0], 0, 100)]
    assert ranges(strict, end, end) == []
    seen.topic_epochs["t"], seen.bounds[Q[0]] = "g0:9", (0, 0)  # made again, and empty
    later = loose.latestOffset(end, ReadAllAvailable())
    assert ranges(loose, end, later) == []
    seen.bounds[Q[0]] = (0, 7)
    assert ranges(loose, later, loose.latestOffset(later, ReadAllAvailable())) == [OffsetRange(Q[0], 0, 7)]


def test_a_topic_that_is_gone_is_an_error_or_waited_for(seen: Seen) -> None:
    strict, loose = reader(), reader(failOnDataLoss="false")
    start, unfinished_writes = to_json({Q[0]: 20, Q[1]: 30}, {"t": "g0:7"}), to_json({Q[0]: 60, Q[1]: 30}, {"t": "g0:7"})
    held = dict(seen.bounds)
    seen.bounds.clear()
    seen.topic_epochs.clear()
    for look in (lambda: strict.partitions(start, unfinished_writes), lambda: strict.latestOffset(start, ReadAllAvailable())):
        with pytest.raises(OffsetOutOfRangeError, match="topic t no longer exists"):
            look()
    assert ranges(loose, start, unfinished_writes) == []
    assert loose.latestOffset(unfinished_writes, ReadAllAvailable()) == unfinished_writes
    seen.bounds |= held
    seen.topic_epochs["t"] = "g0:8"
    assert ranges(loose, unfinished_writes, loose.latestOffset(unfinished_writes, ReadAllAvailable())) == [
        OffsetRange(Q[0], 0, 100),
        OffsetRange(Q[1], 0, 50),
    ]


def test_a_group_that_is_silent_keeps_its_offsets(seen: Seen) -> None:
    far = QueueId("t", "g1", 0)
    start = to_json({Q[0]: 20, Q[1]: 30, far: 5}, {"t": "g0:7,g1:9"})
    end = reader().latestOffset(start, ReadAllAvailable())
    assert from_json(end) == ({Q[0]: 100, Q[1]: 50, far: 5}, {"t": "g0:7,g1:9"})


def test_a_look_that_fails_keeps_the_last_end_for_some_time(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    now, alive = [1_000_000], [True]
    monkeypatch.setattr(stream, "_now_ms", lambda: now[0])
    look = cluster_queries.read_cluster_view

    def describe(*rest: Any, **how: Any) -> ClusterView:
        if not alive[0]:
            raise UnreachableError("nobody answers")
        return look(*rest, **how)

    monkeypatch.setattr(cluster_queries, "read_cluster_view", describe)
    found, one_shot = reader(maxOutageMs="1m"), reader(maxOutageMs="1m")
    start = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    one_shot.prepareForTriggerAvailableNow()
    alive[0], seen.bounds[Q[0]] = False, (0, 500)
    now[0] += 59_000
    assert found.latestOffset(start, ReadAllAvailable()) == start
    with pytest.raises(UnreachableError):
        one_shot.latestOffset(start, ReadAllAvailable())
    alive[0] = True
    assert offsets(found.latestOffset(start, ReadAllAvailable())) == {Q[0]: 500, Q[1]: 50}
    alive[0] = False
    now[0] += 60_000
    with pytest.raises(UnreachableError):
        found.latestOffset(start, ReadAllAvailable())


def test_topics_of_other_groups_go_on_without_a_group_that_is_silent(seen: Seen) -> None:
    far = QueueId("far", "g1", 0)
    start = to_json({Q[0]: 20, Q[1]: 30, far: 5}, {"t": "g0:7", "far": "g1:9"})
    seen.unreachable["g1"] = UnreachableError("g1 is dead")
    found = reader(topic="t,far")
    end = found.latestOffset(start, ReadAllAvailable())
    assert from_json(end) == ({Q[0]: 100, Q[1]: 50, far: 5}, {"t": "g0:7", "far": "g1:9"})
    assert ranges(found, start, end) == [OffsetRange(Q[0], 20, 100), OffsetRange(Q[1], 30, 50)]
    found.prepareForTriggerAvailableNow()
    with pytest.raises(UnreachableError, match="g1 is dead"):  # it would end as if it had read everything
        found.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("topic_epochs", [{}, {"t": "g0:3"}])
def test_followers_that_are_behind_the_checkpoint_are_not_believed(seen: Seen, topic_epochs: dict[str, str]) -> None:
    start = to_json({Q[0]: 20, Q[1]: 30}, {"t": "g0:7"})
    seen.leaderless = {"g0"}
    assert offsets(reader().latestOffset(start, ReadAllAvailable())) == {Q[0]: 100, Q[1]: 50}
    seen.topic_epochs.clear()
    seen.topic_epochs |= topic_epochs
    assert reader().latestOffset(start, ReadAllAvailable()) == start


RESTORED = "queue g0:0 ends at 60, before offset 100 of the checkpoint; was the cluster restored from a backup"


def test_a_queue_that_ends_before_the_checkpoint_is_data_loss(seen: Seen) -> None:
    """A restored cluster lacks messages that the query has read, and uses their offsets again."""
    start = to_json({Q[0]: 100, Q[1]: 30}, {"t": "g0:7"})
    seen.bounds[Q[0]] = (0, 60)
    with pytest.raises(OffsetOutOfRangeError, match=RESTORED):
        reader().latestOffset(start, ReadAllAvailable())
    loose = reader(failOnDataLoss="false")
    back = loose.latestOffset(start, ReadAllAvailable())
    assert offsets(back) == {Q[0]: 60, Q[1]: 50}
    assert ranges(loose, start, back) == [OffsetRange(Q[1], 30, 50)]
    seen.bounds[Q[0]] = (0, 110)
    end = loose.latestOffset(back, ReadAllAvailable())
    assert ranges(loose, back, end) == [OffsetRange(Q[0], 60, 110)]
    with pytest.raises(OffsetOutOfRangeError, match=RESTORED):  # planned before the restart
        reader().partitions(start, back)


def test_a_queue_that_ends_before_the_checkpoint_is_data_loss_in_pyspark_4_1(seen: Seen) -> None:
    strict, loose = reader(), reader(failOnDataLoss="false")
    whole = strict.latestOffset()
    assert loose.latestOffset() == whole
    seen.bounds[Q[0]] = (0, 60)
    with pytest.raises(OffsetOutOfRangeError, match=RESTORED):
        strict.latestOffset()
    assert offsets(loose.latestOffset()) == {Q[0]: 60, Q[1]: 50}


def test_who_does_not_lead_any_more_tells_of_no_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    current, stale = Seen({Q[0]: (0, 120)}, {"t": "g0:7"}), Seen({Q[0]: (0, 60)}, {"t": "g0:7"})
    monkeypatch.setattr(
        cluster_queries,
        "read_cluster_view",
        lambda options, _may_lack=(), **how: (current if options.linearizable or how.get("from_leaders") else stale).view(),
    )
    start = to_json({Q[0]: 100}, {"t": "g0:7"})
    found = reader()
    end = found.latestOffset(start, ReadAllAvailable())
    assert end == start
    assert ranges(found, start, end) == []
    older, current.bounds[Q[0]] = reader(), (0, 100)
    assert older.latestOffset() == start, "after a restart, when PySpark 4.1 tells no offsets that it could not be before"
    finite = reader()
    finite.prepareForTriggerAvailableNow()
    assert finite.latestOffset() == start == finite.latestOffset()
    stale.bounds[Q[0]] = (0, 100)
    assert older.latestOffset() == start
    stale.bounds[Q[0]] = (0, 60)
    assert older.latestOffset() == start


def test_of_a_queue_that_seems_to_end_early_only_its_own_group_is_asked_again(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    far = QueueId("t", "g1", 0)
    seen.bounds |= {Q[0]: (0, 60), far: (0, 9)}
    seen.topic_epochs["t"] = "g0:7,g1:9"
    asked: list[Any] = []
    look = cluster_queries.read_cluster_view

    def noted(options: ReadOptions, *rest: Any, **how: Any) -> ClusterView:
        if options.linearizable:
            asked.append(how.get("groups"))
            return ClusterView(bounds_of({Q[0]: (0, 120)}), {"t": "g0:7"})
        return look(options, *rest, **how)

    monkeypatch.setattr(cluster_queries, "read_cluster_view", noted)
    end = reader().latestOffset(to_json({Q[0]: 100, far: 4}, {"t": "g0:7,g1:9"}), ReadAllAvailable())
    assert asked == [{"g0"}]
    assert offsets(end) == {Q[0]: 100, Q[1]: 50, far: 9}


@pytest.mark.parametrize("others", [{"topic": "t"}, {"topic": "", "topicPattern": "t+"}])
def test_a_topic_that_the_query_no_longer_asks_for_is_not_called_gone(seen: Seen, others: dict[str, str]) -> None:
    start = to_json({Q[0]: 20, QueueId("u", "g0", 0): 5}, {"t": "g0:7", "u": "g0:8"})
    with pytest.raises(OffsetOutOfRangeError, match="topic u is in the checkpoint, but no longer among the topics of the query"):
        reader(**others).latestOffset(start, ReadAllAvailable())
    end = reader(failOnDataLoss="false", **others).latestOffset(start, ReadAllAvailable())
    assert offsets(end) == {Q[0]: 100, Q[1]: 50, QueueId("u", "g0", 0): 5}


@pytest.mark.parametrize("which", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("named", ['{"t":{"g0:9":5}}', '{"tt":{"0":5}}'])
def test_a_bound_of_a_new_stream_names_queues_that_exist(seen: Seen, which: str, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"option {which}: queue .* does not exist"):
        reader(**{which: named}).initialOffset()


def test_a_new_stream_that_ends_before_it_starts_is_a_mistake(seen: Seen) -> None:
    with pytest.raises(InvalidArgumentError, match="option endingOffsets: topic t, queue g0:0: 10; expected at least 50"):
        reader(startingOffsets='{"t":{"0":50}}', endingOffsets='{"t":{"0":10}}').initialOffset()


def test_the_group_has_the_end_of_the_last_batch_when_there_is_nothing_more(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[QueueId, int]] = []
    monkeypatch.setattr(cluster_queries, "commit_progress", lambda _options, positions: told.append(dict(positions)))
    found = reader(groupId="job", maxMessagesPerTrigger="75")
    start = found.initialOffset()
    first = found.latestOffset(start, found.getDefaultReadLimit())
    second = found.latestOffset(first, found.getDefaultReadLimit())
    found.commit(first)
    assert found.latestOffset(second, found.getDefaultReadLimit()) == second == to_json({Q[0]: 100, Q[1]: 50}, {"t": "g0:7"})
    found.latestOffset(second, found.getDefaultReadLimit())
    assert told == [{Q[0]: 0, Q[1]: 0}, {Q[0]: 50, Q[1]: 25}, {Q[0]: 100, Q[1]: 50}]
    seen.leaderless = {"g0"}  # it would only be waited for
    later = reader(groupId="job")
    later.latestOffset(second, ReadAllAvailable())
    assert len(told) == 3


def test_one_look_serves_a_whole_trigger(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], cluster_queries.read_cluster_view
    monkeypatch.setattr(cluster_queries, "read_cluster_view", lambda *rest, **how: looks.append(how) or look(*rest, **how))
    found = reader()
    start = found.initialOffset()
    assert looks.pop() == {}
    end = found.latestOffset(start, ReadAllAvailable())
    assert ranges(found, start, end) == [OffsetRange(Q[0], 0, 100), OffsetRange(Q[1], 0, 50)]
    assert found.reportLatestOffset() == end
    assert looks == [{"start_times": False, "whole": False, "from_leaders": False}]
    assert ranges(found, to_json({Q[0]: 5, Q[1]: 0}, {"t": "g0:7"}), to_json({Q[0]: 9, Q[1]: 0}, {"t": "g0:7"})) == [
        OffsetRange(Q[0], 5, 9)
    ]
    assert len(looks) == 2  # of another batch than the one just told
    assert pickle.loads(pickle.dumps(found))._last_view is None  # noqa: S301 - our own


def test_a_trigger_reads_and_writes_the_offsets_at_most_once(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundred thousand queues each time takes a tenth of a second.  Spark passes copies, by way of its checkpoint."""
    worked: list[str] = []
    for name in ("from_json", "to_json"):
        work = getattr(checkpoint, name)
        monkeypatch.setattr(checkpoint, name, lambda *rest, name=name, work=work: worked.append(name) or work(*rest))
    found = reader(maxMessagesPerTrigger="30", groupId="job")
    monkeypatch.setattr(cluster_queries, "commit_progress", lambda _options, _positions: None)
    start = copy.deepcopy(found.initialOffset())
    assert worked == ["to_json"]
    for _ in range(3):
        worked.clear()
        end = copy.deepcopy(found.latestOffset(start, ReadMaxRows(30)))
        found.reportLatestOffset()
        assert ranges(found, copy.deepcopy(start), end) != []
        found.commit(copy.deepcopy(end))
        assert worked in (["to_json"], ["to_json"] * 2)  # the end of this batch, and once that of all of them
        start = end
    worked.clear()
    assert reader().latestOffset(start, ReadMaxRows(30)) != start
    assert worked == ["from_json", "to_json"], "a restarted query"


def test_without_a_start_groups_without_a_leader_do_not_go_back(seen: Seen) -> None:
    """As PySpark 4.1 asks: what the end lacked it would read again from the first message."""
    far = QueueId("far", "g1", 0)
    seen.bounds[far], seen.topic_epochs["far"] = (0, 5), "g1:9"
    found = reader(topic="t,far")
    whole = found.latestOffset()
    seen.bounds[Q[0]] = (0, 60)  # of a follower that lags
    seen.leaderless = {"g0"}
    del seen.bounds[far], seen.topic_epochs["far"]
    seen.unreachable["g1"] = UnreachableError("g1 is dead")
    assert found.latestOffset() == whole
    seen.bounds[Q[1]] = (0, 70)
    assert offsets(found.latestOffset()) == {Q[0]: 100, Q[1]: 70, far: 5}
    seen.leaderless = set()
    with pytest.raises(UnreachableError, match="g1 is dead"):
        reader(topic="t,far").latestOffset()


def test_pyspark_4_1_has_no_admission_control() -> None:
    """There the module with the limits is missing, and latestOffset is called without arguments."""
    script = """
import sys
import pyspark.sql.datasource  # of 4.3 itself needs it
sys.modules["pyspark.sql.streaming.datasource"] = None
from pyspark_dledger import DefaultSource
from pyspark_dledger.planning import cluster_queries
from pyspark_dledger.planning.cluster_view import ClusterView
import numpy as np
from pyspark_dledger.planning.queue_offsets import PartBounds, TopicPart
from pyspark.sql.types import LongType, StructField, StructType
view = ClusterView({TopicPart("t", "g0"): PartBounds(np.array([0]), np.array([9]))}, {"t": "g0:7"})
cluster_queries.read_cluster_view = lambda options, may_lack=(), **how: view
source = DefaultSource({"bootstrap": "h:1", "topic": "t", "maxMessagesPerTrigger": "3"})
reader = source.streamReader(StructType([StructField("queue_offset", LongType())]))
assert reader.latestOffset()["topics"]["t"]["queues"] == {"g0:0": 9}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
