"""The Spark source's options, projection and split: everything that needs no cluster and no Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_wire.errors import DledgerError, InvalidArgumentError, InvalidNameError, OffsetOutOfRangeError
from pyspark_dledger.options.model import Filters, parse_read_options, parse_write_options
from pyspark_dledger.options.read_bounds import EARLIEST, LATEST
from pyspark_dledger.planning.partitions import MAX_SHARED, MIN_SHARED, OffsetRange, resolve, shared, split
from pyspark_dledger.planning.queue_offsets import QueueId, by_queue, same_offsets
from pyspark_dledger.planning.rate_limit import cut_to_bytes, cut_to_messages, total_of, waiting
from pyspark_dledger.schema import COLUMNS, ddl
from tests.unit.spark.views import bounds_of, of_queues

BASE = {"bootstrap": "127.0.0.1:9876", "topic": "orders"}


def test_defaults() -> None:
    options = parse_read_options(BASE)
    assert (options.read_from, options.fail_on_data_loss, options.tag_expression) == ("follower", True, "*")
    assert (options.start.fallback, options.end.fallback) == (EARLIEST, LATEST)
    assert options.columns == tuple(COLUMNS)


def test_keys_are_compared_without_regard_to_case() -> None:
    assert parse_read_options({**BASE, "READFROM": "leader", "minpartitions": "7"}).min_partitions == 7


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"readFrom": "moon"}, "option readFrom: 'moon'; expected one of follower, leader, any"),
        ({"minPartitions": "0"}, "option minPartitions: '0'; expected a whole number of at least 1"),
        ({"minPartitions": "many"}, "option minPartitions: 'many'"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss: 'perhaps'; expected true or false"),
        ({"startingOffsets": "latest"}, "option startingOffsets: 'latest' reads nothing"),
        ({"startingOffsets": "{"}, "option startingOffsets: '{'; expected earliest, latest or JSON"),
        ({"startingOffsets": "[]"}, "option startingOffsets"),
        ({"startingOffsets": '{"orders":{"x":1}}'}, "option startingOffsets: 'x'; expected a key \"group:queue\" such as"),
        ({"startingOffsets": '{"orders":{":1":1}}'}, "option startingOffsets: ':1'; expected a key"),
        ({"startingOffsets": '{"orders":[1]}'}, "option startingOffsets: orders: [1]; expected an object"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":"noon"}}'}, "0: 'noon'; expected milliseconds since 1970, of 13 digits"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":1764200000}}'}, "0: 1764200000; expected milliseconds since 1970, of 13 digits"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "option startingOffsetsByTimestampStrategy: 'error'; expected one of latest"),
        ({"maxBytesPerTrigger": "ten"}, "option maxBytesPerTrigger: 'ten'; expected a size (64m, 1GiB, a number of bytes) of at least 1"),
        ({"maxTriggerDelay": "15 years"}, "option maxTriggerDelayMs: '15 years'; expected a duration (500ms, 15m,"),
        ({"startingOffset": "latest"}, "option startingOffset: unknown; did you mean startingOffsets?"),
        ({"subscribePatern": "a"}, "option subscribePatern: unknown; did you mean subscribePattern?"),
        ({"groupIdPrefix": "a"}, "option groupIdPrefix: unknown; queries need no consumer group"),
        ({"kafkaConsumer.pollTimeoutMs": "1"}, "option kafkaConsumer.pollTimeoutMs: unknown; did you mean readTimeoutMs?"),
        ({"kafka.security.protocol": "SSL"}, "option kafka.security.protocol: unknown; Kafka client settings are not supported"),
        ({"colour": "red"}, "option colour: unknown; expected one of bootstrap, topic"),
        ({"assign": '{"orders":[0]}'}, "options topic, topicPattern and assign are mutually exclusive"),
        ({"topic": "", "assign": '{"orders":0}'}, "option assign: orders: 0; expected a list of queues"),
        ({"topic": "", "assign": '{"orders":["x"]}'}, "option assign: 'x'; expected a key"),
        ({"topic": "", "assign": '{"orders":[0]}', "queues": "1"}, "options queues and assign are mutually exclusive"),
        ({"startingOffsets": '{"orders":{"g0:0":-3}}'}, "expected an offset of 0 or more"),
        ({"startingOffsets": '{"orders":{"g0:0":true}}'}, "expected an offset of 0 or more"),
        ({"endingTimestamp": "noon"}, "option endingTimestamp: 'noon'; expected a time (milliseconds since 1970 of 13 digits, 2026-01-31"),
        ({"startingTimestamp": "1764200000"}, "option startingTimestamp: '1764200000'; expected a time (milliseconds since 1970"),
        ({"endingTimestamp": "20261121"}, "option endingTimestamp: '20261121'; expected a time"),
        (
            {"startingTimestamp": "2026-11-22", "endingTimestamp": "2026-11-21"},
            "option endingTimestamp: '2026-11-21'; expected a time not before startingTimestamp",
        ),
        ({"colums": "body"}, "option colums: unknown; did you mean columns?"),
        ({"columns": "body,price"}, "option columns: 'body,price'"),
        ({"columns": "body,body"}, "names a column twice"),
        ({"columns": "body", "includeBody": "false"}, "they select no column"),
        ({"topic": " , "}, "option topic"),
        ({"topicPattern": "o.*"}, "options topic, topicPattern and assign are mutually exclusive"),
        ({"topic": "", "topicPattern": "o["}, "option topicPattern: 'o['; expected a regular expression"),
        ({"tags": "|| "}, "option tags '||': a tag is missing beside ||; expected tag || tag"),
        ({"tags": "a ||"}, "option tags 'a ||': a tag is missing beside ||; expected tag || tag"),
        ({"tags": "a && b"}, "option tags 'a && b': expected tag || tag"),
        ({"queues": "0,g0"}, "option queues: 'g0'; expected numbers such as 0,3"),
        ({"replica": "n1", "readFrom": "any"}, "options replica and readFrom are mutually exclusive"),
        ({"maxLagMessages": "-1"}, "option maxLagMessages: '-1'; expected a whole number of at least 0"),
        ({"groupId": "a b"}, "group name 'a b'"),
        ({"topic": "a", "subscribe": "b"}, "option topic: set twice, under two names"),
        ({"bootstrap": " "}, "option bootstrap: missing"),
        (
            {"fetchBytes": "5g"},
            "a number of bytes) of at least 65536 and at most 4294967295",
        ),
        (
            {"readTimeoutMs": "50d"},
            "option readTimeoutMs: '50d'; expected a duration (500ms, 15m, a number of milliseconds) of at least 100 and",
        ),
        ({"startingOffsets": '{"orders":{"0":5,"0":6}}'}, "option startingOffsets: '0' is named twice"),
        ({"endingOffsets": '{"orders":{"0":5},"orders":{"1":6}}'}, "option endingOffsets: 'orders' is named twice"),
        ({"startingOffsets": '{"orders":{"0":5,"00":6}}'}, "orders: {'0': 5, '00': 6}; expected each queue once"),
        ({"startingTimestamp": "9" * 20}, f"option startingTimestamp: '{'9' * 20}'; expected a time (milliseconds since 1970 of 13 digits"),
        (
            {"endingOffsetsByTimestamp": f'{{"orders":{{"0":{"9" * 20}}}}}'},
            f"0: {'9' * 20}; expected milliseconds since 1970, of 13 digits",
        ),
    ],
)
def test_every_mistake_gets_one_line_with_option_and_expectation(extra: dict[str, str], words: str) -> None:
    with pytest.raises((InvalidArgumentError, InvalidNameError)) as caught:
        parse_read_options({**BASE, **extra})
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_kafkas_first_lines_work_as_they_are() -> None:
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "h:1",
            "assign": '{"orders":[0,2],"payments":["g1:1"]}',
            "includeHeaders": "true",
            "startingOffsetsByTimestamp": '{"orders":{"0":1764200000000,"g0:2":1764200001000}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "maxTriggerDelay": "15m",
            "kafka.group.id": "etl",
        }
    )
    assert (options.bootstrap, options.topics, options.group_id, options.limits.max_delay_ms) == (
        "h:1",
        ("orders", "payments"),
        "etl",
        900_000,
    )
    had = options.filters.has_queue
    assert [had("orders", "g0", 0), had("orders", "g9", 2), had("orders", "g0", 1), had("payments", "g1", 1), had("payments", "g0", 1)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert [options.start.time_of("orders", "g0", queue) for queue in range(3)] == [1_764_200_000_000, None, 1_764_200_001_000]
    assert "properties" in options.columns
    assert "properties" not in parse_read_options({**BASE, "includeHeaders": "false"}).columns


def test_a_queue_by_its_number_is_that_of_the_topics_only_group() -> None:
    asked = parse_read_options({**BASE, "startingOffsets": '{"orders":{"0":5,"g0:1":6}}', "endingOffsets": '{"orders":{"0":9}}'})
    start = asked.start.with_groups("startingOffsets", {"orders": {"g0"}})
    assert start.queues == {"orders": {("g0", 0): 5, ("g0", 1): 6}}
    with pytest.raises(
        InvalidArgumentError, match='option endingOffsets: topic orders has queues in the replica groups g0, g1; expected "group:0"'
    ):
        asked.end.with_groups("endingOffsets", {"orders": {"g1", "g0"}})
    twice = parse_read_options({**BASE, "startingOffsets": '{"orders":{"0":5,"g1:0":4,"g0:0":6}}'})
    with pytest.raises(InvalidArgumentError, match='option startingOffsets: topic orders, queue "g0:0": named twice, also as "0"'):
        twice.start.with_groups("startingOffsets", {"orders": {"g0"}})


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (
            {"startingOffsets": '{"orders":{"g0:0":50}}', "endingOffsets": '{"orders":{"g0:0":10}}'},
            "option endingOffsets: topic orders, queue g0:0: 10; expected at least 50, as startingOffsets has it",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"g0:0":1764200000001}}',
                "endingOffsetsByTimestamp": '{"orders":{"g0:0":1764200000000}}',
            },
            "option endingOffsetsByTimestamp: topic orders, queue g0:0: 1764200000000; expected at least 1764200000001",
        ),
    ],
)
def test_a_queue_that_ends_before_it_starts_is_a_mistake(named: dict[str, str], words: str) -> None:
    asked = parse_read_options({**BASE, **named})
    with pytest.raises(InvalidArgumentError) as caught:
        resolve(bounds_of({Q0: (0, 100)}), asked.start, asked.end, fail_on_data_loss=False)
    assert words in caught.value.message
    earliest = parse_read_options({**BASE, "startingOffsets": '{"orders":{"g0:0":10}}', "endingOffsets": '{"orders":{"g0:0":10}}'})
    assert resolve(bounds_of({Q0: (0, 100)}), earliest.start, earliest.end, fail_on_data_loss=True) == []


def test_sizes_durations_and_times_have_units() -> None:
    options = parse_read_options(
        {**BASE, "fetchBytes": "1MiB", "maxBytesPerTrigger": "10m", "readTimeoutMs": "30s", "startingTimestamp": "2026-11-21"}
    )
    assert (options.fetch_bytes, options.limits.max_bytes, options.read_timeout_ms) == (1 << 20, 10 << 20, 30_000)
    assert options.start.timestamp_ms == 1_795_219_200_000
    assert parse_read_options({**BASE, "endingTimestamp": "2026-11-21T01:00:00+01:00"}).end.timestamp_ms == 1_795_219_200_000
    assert parse_read_options({**BASE, "readFrom": "Leader"}).read_from == "leader"


def test_what_spark_adds_is_no_mistake() -> None:
    """Among them the name of a streaming query."""
    for name in ("queryname", "path", "checkpointlocation", "asyncProgressTrackingEnabled"):
        parse_write_options({"bootstrap": "h:1", "topic": "a", name: "x"})
        parse_read_options({**BASE, name: "x"})


def test_a_stream_may_start_at_the_end_and_its_limits_must_fit() -> None:
    assert parse_read_options({**BASE, "startingOffsets": "latest"}, stream=True).start.fallback == LATEST
    limits = parse_read_options({**BASE, "maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "9"}, stream=True).limits
    assert (limits.max_messages, limits.min_messages) == (9, 9)
    with pytest.raises(InvalidArgumentError, match="option minMessagesPerTrigger: 10; expected at most maxMessagesPerTrigger, 9"):
        parse_read_options({**BASE, "maxMessagesPerTrigger": "9", "minMessagesPerTrigger": "10"}, stream=True)


def test_writes_have_options_of_their_own() -> None:
    options = parse_write_options({"bootstrap": "h:1", "txnAppId": "a", "txnVersion": "7", "checkpointLocation": "/c"})
    assert (options.application, options.version, options.topic, options.checkpoint) == ("a", 7, "", "/c")
    for extra, words in (
        ({"txnVersion": "1"}, "options txnAppId and txnVersion"),
        ({"txnAppId": "a", "txnVersion": "4294967296"}, "option txnVersion"),
        ({"stagingTopic": "a b"}, "topic name 'a b'"),
        ({"columns": "body"}, "option columns: unknown"),
        ({"includeHeaders": "true"}, "option includeHeaders: unknown; a column 'properties' is always written if it exists"),
    ):
        with pytest.raises(DledgerError, match=words):
            parse_write_options({"bootstrap": "h:1", **extra})


def test_a_timestamp_takes_precedence_over_offsets() -> None:
    options = parse_read_options({**BASE, "startingOffsets": '{"orders":{"g0:0":5}}', "startingTimestamp": "1764200000000"})
    assert options.start.timestamp_ms == 1_764_200_000_000
    assert options.start.queues == {}


def test_columns_and_switches() -> None:
    assert parse_read_options({**BASE, "columns": "queue_offset, body"}).columns == ("queue_offset", "body")
    assert "body" not in parse_read_options({**BASE, "includeBody": "false"}).columns
    assert ddl(("queue_id", "body")) == "`queue_id` int, `body` binary"


Q0, Q1 = QueueId("orders", "g0", 0), QueueId("orders", "g0", 1)


def test_ranges_by_word_offset_and_time() -> None:
    bounds = bounds_of({Q0: (10, 100, {5: 40, 6: 60}), Q1: (0, 0)})
    everything = parse_read_options(BASE)
    assert resolve(bounds, everything.start, everything.end, fail_on_data_loss=True) == [OffsetRange(Q0, 10, 100)]
    by_offset = parse_read_options({**BASE, "startingOffsets": '{"orders":{"g0:0":20}}', "endingOffsets": '{"orders":{"g0:0":30}}'})
    assert resolve(bounds, by_offset.start, by_offset.end, fail_on_data_loss=True) == [OffsetRange(Q0, 20, 30)]
    by_time = parse_read_options({**BASE, "startingTimestamp": "1764200000005", "endingTimestamp": "1764200000006"})
    bounds = bounds_of({Q0: (10, 100, {1_764_200_000_005: 40, 1_764_200_000_006: 60})})
    assert resolve(bounds, by_time.start, by_time.end, fail_on_data_loss=True) == [OffsetRange(Q0, 40, 60)]


def test_filters_narrow_ranges() -> None:
    bounds = bounds_of({Q0: (10, 100, {5: 40, 6: 60}), Q1: (0, 50, {5: 0, 6: 50})})
    options = parse_read_options({**BASE, "queues": "g0:0"})
    assert [options.filters.has_queue("orders", "g0", 0), options.filters.has_queue("orders", "g0", 1)] == [True, False]
    narrow = Filters(least_offset=30, end_offset=45, since_ms=5, until_ms=6)
    found = resolve(bounds, options.start, options.end, narrow, fail_on_data_loss=True)
    assert found == [OffsetRange(Q0, 40, 45), OffsetRange(Q1, 30, 45)]
    assert resolve(bounds, options.start, options.end, Filters(least_offset=200), fail_on_data_loss=True) == []


def test_lost_offsets_fail_or_are_clipped() -> None:
    bounds = bounds_of({Q0: (10, 100)})
    asked = parse_read_options({**BASE, "startingOffsets": '{"orders":{"g0:0":3}}'})
    with pytest.raises(OffsetOutOfRangeError) as caught:
        resolve(bounds, asked.start, asked.end, fail_on_data_loss=True)
    assert (caught.value.min_offset, caught.value.max_offset) == (10, 100)
    assert resolve(bounds, asked.start, asked.end, fail_on_data_loss=False) == [OffsetRange(Q0, 10, 100)]


def test_a_named_queue_that_does_not_exist_is_refused() -> None:
    asked = parse_read_options({**BASE, "startingOffsets": '{"orders":{"g0:9":0}}'})
    with pytest.raises(InvalidArgumentError, match="g0:9 of topic orders does not exist"):
        resolve(bounds_of({Q0: (0, 1)}), asked.start, asked.end, fail_on_data_loss=True)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=5), st.integers(0, 20), st.integers(0, 90))
def test_split_covers_every_offset_once_and_obeys_the_limits(spans: list[tuple[int, int]], minimum: int, most: int) -> None:
    ranges = [OffsetRange(QueueId("t", "g", n), start, start + size) for n, (start, size) in enumerate(spans) if size]
    pieces = split(ranges, minimum, most)
    covered = [(piece.queue, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [(piece.queue, offset) for piece in ranges for offset in range(piece.start, piece.end)]
    tasks = shared(pieces, minimum, most)
    assert [piece for task in tasks for piece in task] == pieces
    if most:
        assert all(sum(piece.end - piece.start for piece in task) <= most for task in tasks)
    if minimum:
        assert len(tasks) >= min(minimum, len(covered))


def test_queues_with_few_messages_share_tasks_and_those_with_many_do_not() -> None:
    def tasks(*sizes: int) -> list[int]:
        ranges = [OffsetRange(QueueId("t", "g", n), 7, 7 + size) for n, size in enumerate(sizes)]
        return [sum(piece.end - piece.start for piece in task) for task in shared(split(ranges, 0, 0), 0, 0)]

    assert tasks(*[20] * 40) == [800]
    assert tasks(*[20] * 2000) == [10_000] * 4  # two tasks a core of the smallest machine
    assert max(map(len, (tasks(*[size] * count) for count in (1, 7, 100_000) for size in (1, 13) if size * count <= 100_000))) == 4
    assert tasks(*[1000] * 3) == [MIN_SHARED] * 3
    assert tasks(*[60_000] * 4) == [60_000] * 4
    assert tasks(5, 300_000, 5) == [5, 249_993, 50_007, 5]
    assert max(tasks(*[2000] * 1000)) == MAX_SHARED - MAX_SHARED % 2000


def shares(counts: list[int], most: int) -> list[int]:
    """The same as ``cut_to_messages``, queue by queue."""
    total = sum(counts)
    if total <= most:
        return counts
    taken = [count * most // total for count in counts]
    for number, count in enumerate(counts):
        taken[number] += min(most - sum(taken), count - taken[number])
    return taken


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9), st.integers(1, 1 << 45))
def test_each_queue_has_its_share_also_of_very_many(counts: list[int], most: int) -> None:
    queues = [QueueId("tu"[number % 2], f"g{number % 3}", number) for number in range(len(counts))]
    waits = dict(sorted(zip(queues, counts, strict=True)))
    end = {queue: count + 3 for queue, count in waits.items()}
    cut = cut_to_messages(of_queues(dict.fromkeys(queues, 3)), of_queues(end), most)
    assert by_queue(cut) == {queue: 3 + share for queue, share in zip(waits, shares(list(waits.values()), most), strict=True)}


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=5), st.integers(1, 300), st.integers(1, 50))
def test_a_trigger_takes_no_more_than_its_limit_and_leaves_no_queue_behind(spans: list[tuple[int, int]], most: int, size: int) -> None:
    start = {QueueId("t", "g", n): first for n, (first, _) in enumerate(spans)}
    end = {QueueId("t", "g", n): first + count for n, (first, count) in enumerate(spans)}
    before, upto = of_queues(start), of_queues(end)
    cut = cut_to_messages(before, upto, most)
    assert by_queue(cut).keys() == end.keys()
    assert total_of(waiting(before, cut)) == min(most, total_of(waiting(before, upto)))
    assert all(start[queue] <= offset <= end[queue] for queue, offset in by_queue(cut).items())
    by_bytes = cut_to_bytes(before, upto, dict.fromkeys(end, float(size)), most)
    assert size * total_of(waiting(before, by_bytes)) <= most + size * len(spans)
    assert same_offsets(by_bytes, upto) or all(by_queue(by_bytes)[queue] > start[queue] for queue in end if end[queue] > start[queue])
