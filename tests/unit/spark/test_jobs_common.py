"""What the jobs share, without Java."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dledger_client.fetch.records import QueueOffsets
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from pyspark_dledger.jobs import archive, replay, stats
from pyspark_dledger.jobs.common import RowCounter, finish
from pyspark_dledger.options.model import parse_read_options


def test_a_listener_goes_when_it_has_heard_the_querys_end() -> None:
    """Spark tells it in a thread of its own, behind the end of the query."""
    listeners: list[RowCounter] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=listeners.append, removeListener=listeners.remove))
    heard: list[int] = []

    def tell() -> None:
        heard.append(len(listeners))
        listeners[0].onQueryTerminated(None)

    with RowCounter.listening(spark, "job"):
        telling = threading.Thread(target=tell)
        telling.start()
    telling.join()
    assert (heard, listeners) == ([1], [])


@pytest.fixture
def two_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {("t", "g0", 0): QueueOffsets(5, 100, 60), ("t", "g0", 1): QueueOffsets(0, 50, 50)}
    monkeypatch.setattr(replay, "bounds", lambda _bootstrap, _topics, _timestamp_ms: held)


@pytest.mark.usefixtures("two_queues")
@pytest.mark.parametrize(
    ("until_ms", "given", "ends"),
    [
        (None, None, (100, 50)),
        (9, None, (60, 50)),
        (None, '{"t":{"g0:0":7}}', (7, 50)),
        (9, '{"t":{"1":7}}', (60, 7)),
        (None, '{"t":{"0":-2,"1":-1}}', (5, 50)),
    ],
)
def test_a_replay_has_an_end_in_every_queue(until_ms: int | None, given: str | None, ends: tuple[int, int]) -> None:
    """A queue without one would be read to another end by each run."""
    assert replay.fixed_ends("h:1", ["t"], until_ms, given) == {"t": {"g0:0": ends[0], "g0:1": ends[1]}}


@pytest.mark.usefixtures("two_queues")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("t:0:5", "option --ending-offsets: 't:0:5'; expected JSON"),
        ('{"t":{"g0:7":1}}', "queue g0:7 of topic t does not exist"),
        ('{"u":{"0":1}}', "topic u does not exist"),
    ],
)
def test_an_end_that_cannot_be_one_is_refused(given: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        replay.fixed_ends("h:1", ["t"], None, given)
    with pytest.raises(InvalidArgumentError, match=expected.replace("ending", "starting")):
        replay.fixed_ends("h:1", ["t"], None, starts=given)


def test_a_replay_reads_no_queue_that_was_added_after_its_end_was_fixed() -> None:
    """It has no end there: each run would send what has come meanwhile."""
    ends = {"t": {"g0:0": 100, "g0:1": 50}, "u": {"g0:0": 0}}
    options = parse_read_options({"bootstrap": "h:1", **replay.source_options(["t", "u"], ends)}, stream=True)
    assert options.topics == ("t", "u")
    assert options.end.queues == {"t": {("g0", 0): 100, ("g0", 1): 50}, "u": {("g0", 0): 0}}
    selects = options.filters.has_queue
    assert [selects("t", "g0", 1), selects("t", "g0", 2), selects("t", "g1", 0), selects("u", "g0", 1)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("job", "call", "arguments"),
    [
        (archive, "archive", ["orders", "--path", "/p"]),
        (replay, "replay", ["orders", "--to", "t", "--checkpoint", "/c"]),
        (stats, "stats", ["orders"]),
    ],
)
def test_a_job_that_messages_were_lost_to_names_an_option_that_it_has(
    job: Any, call: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[dict[str, Any]] = []

    def lost(*_: Any, **options: Any) -> None:
        given.append(options)
        raise OffsetOutOfRangeError("messages 1 to 5 no longer exist; set failOnDataLoss to false to skip them", min_offset=5, max_offset=9)

    monkeypatch.setattr(job, "session", lambda *_: None)
    monkeypatch.setattr(job, call, lost)
    if job is replay:
        monkeypatch.setattr(replay, "fixed_ends", lambda *_, **__: {})
        monkeypatch.setattr(replay, "remembered_ends", lambda *_: {})
    for more in ([], ["--skip-lost"]):
        assert finish(job.main, [*arguments, "--bootstrap", "h:1", *more]) == 1
    assert "dledger: messages 1 to 5 no longer exist; give --skip-lost to skip them" in capsys.readouterr().err
    assert [options.get("failOnDataLoss") for options in given] == [None, "false"]


@pytest.mark.parametrize(
    ("job", "option", "value"),
    [
        (replay, "--until", "1764200000"),
        (replay, "--since", "1764200000"),
        (stats, "--since", "20261121"),
        (stats, "--until", "noon"),
    ],
)
def test_a_time_in_seconds_is_refused_before_anything_is_read(
    job: Any, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Taken for milliseconds it is in January 1970: everything would be read, or nothing, without a word."""
    own = ["--to", "t", "--checkpoint", "/c"] if job is replay else []
    with pytest.raises(SystemExit) as caught:
        job.main(["orders", "--bootstrap", "h:1", *own, option, value])
    assert caught.value.code == 2
    assert f"argument {option}: '{value}': expected milliseconds since 1970 (13 digits)" in capsys.readouterr().err
