"""The log of a process: what stands on a line, what is written once, and what the ring keeps."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.api.log_tail import LogTailService
from broker.process.log_repeats import LINES_A_KIND, PERIOD_S, RepeatLimit
from broker.process.log_ring import LogRing
from broker.process.logging_setup import ProcessLog, configure_logging
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.errors import InvalidArgumentError
from tests.full_disk import full_disk
from tests.waiting import until

NOW_MS = 1_790_000_000_000
CALLER: Any = None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield capsys
    root.handlers[:] = handlers
    root.setLevel(level)


def configured(term: int | None = None) -> ProcessLog:
    log = configure_logging(group="g0", node="n1", ring=LogRing(lambda: NOW_MS))
    log.term = lambda: term
    return log


def rows(stderr: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written since the last look."""
    text = stderr.readouterr().err
    assert "\x1b" not in text
    return [json.loads(line) for line in text.splitlines()]


def record(text: str, *args: object, at_s: float = 0.0, level: int = logging.WARNING) -> logging.LogRecord:
    made = logging.LogRecord("dledger.driver", level, "driver.py", 1, text, args, None)
    made.created = at_s
    return made


def test_a_line_for_programs_has_what_is_bound_and_the_event(stderr: pytest.CaptureFixture[str]) -> None:
    log = configured()
    logging.getLogger("broker.main").info("started", extra={"event": "started", "pid": 7})
    log.term = lambda: 4
    logging.getLogger("dledger.driver").error("the disk is full: %s", "n\x1b[31mred\n", extra={"event": "disk_full"})
    first, second = rows(stderr)
    assert {**first, "at": ""} == {
        "at": "", "level": "info", "group": "g0", "node": "n1", "event": "started", "text": "started", "logger": "broker.main", "pid": 7
    }  # fmt: skip
    assert (second["term"], second["event"], second["level"]) == (4, "disk_full", "error")
    assert second["at"].endswith("Z")


def test_a_traceback_is_a_field_of_its_line(stderr: pytest.CaptureFixture[str]) -> None:
    log = configured()
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("broker").exception("a handler failed", extra={"event": "handler_failed"})
    (row,) = rows(stderr)
    assert row["exception"].endswith("ValueError: wrong")
    assert log.ring.tail(1)[0].fields["exception"] == row["exception"]


def test_a_log_file_that_cannot_be_written_is_told_once(tmp_path: Path, stderr: pytest.CaptureFixture[str]) -> None:
    """A traceback for each line would fill the disk of the journal, too."""
    file = tmp_path / "n1.log"
    log = configure_logging(group="g0", node="n1", ring=LogRing(lambda: NOW_MS), log_file=str(file))
    for turn in range(2):
        with full_disk():
            for number in range(3):
                log.emit(record(f"line {number}", at_s=turn * 2 * PERIOD_S))
        assert stderr.readouterr().err == f"dledger: {file}: log lines are lost: File too large\n"
        log.emit(record("there is room", at_s=turn * 2 * PERIOD_S))
        assert json.loads(file.read_text().splitlines()[-1])["text"] == "there is room"
    log.close()


@pytest.mark.usefixtures("stderr")
def test_a_log_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    file, moved = tmp_path / "n1.log", tmp_path / "n1.log.1"
    log = configure_logging(group="g0", node="n1", ring=LogRing(lambda: NOW_MS), log_file=str(file))
    logger = logging.getLogger("broker.main")
    logger.info("before")
    file.rename(moved)
    logger.info("after")
    file.unlink()
    logger.info("last")
    log.close()
    assert [json.loads(line)["text"] for line in moved.read_text().splitlines()] == ["before"]
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == ["last"]


def test_a_line_for_a_person_on_a_terminal(stderr: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    configured(term=4)
    logging.getLogger("dledger.driver").error("the disk is full: %s", "\x1b[2J", extra={"event": "disk_full"})
    monkeypatch.setenv("NO_COLOR", "1")
    logging.getLogger("broker.main").info("started")
    first, second = terminal.getvalue().splitlines()
    assert first.startswith("\x1b[31m")
    assert "ERROR     g0 n1  the disk is full: \\x1b[2J  (term=4 event=disk_full)" in first
    assert second.endswith("INFO      g0 n1  started  (term=4)")


def test_the_same_line_is_written_once_and_counted() -> None:
    limit = RepeatLimit()
    passed = [each for at_s in range(38) for each in limit.passed(record("link to %s broke", "n2", at_s=at_s))]
    assert [each.getMessage() for each in passed] == ["link to n2 broke"]
    told, again = limit.passed(record("link to %s broke", "n2", at_s=PERIOD_S))
    assert told.getMessage() == "repeated 37 times in 60 s: link to n2 broke"
    assert (told.__dict__["repeated"], told.created) == (37, PERIOD_S)
    assert again.getMessage() == "link to n2 broke"


def test_lines_that_differ_in_details_are_limited_too() -> None:
    limit = RepeatLimit()
    passed = [each for number in range(100) for each in limit.passed(record("entry %d is damaged", number))]
    assert len(passed) == LINES_A_KIND
    (told,) = limit.overdue(PERIOD_S)
    assert told.getMessage() == f"{100 - LINES_A_KIND} more lines of this kind in 60 s, the newest: entry 99 is damaged"
    assert list(limit.overdue(2 * PERIOD_S)) == []


def test_another_exception_or_other_fields_make_another_line(stderr: pytest.CaptureFixture[str]) -> None:
    configured()
    logger = logging.getLogger("broker")
    for error in (ValueError("first"), KeyError("second"), KeyError("third")):
        try:
            raise error
        except Exception:
            logger.exception("%s failed", "Fetch", extra={"event": "handler_failed"})
    for status in (1, -9, -9):
        logger.warning("a process ended", extra={"status": status})
    found = rows(stderr)
    assert [row["exception"].split("\n")[-1] for row in found[:2]] == ["ValueError: first", "KeyError: 'second'"]
    assert [row["status"] for row in found[2:]] == [1, -9]


def test_arguments_that_do_not_fit_their_text_stay_in_the_log(stderr: pytest.CaptureFixture[str]) -> None:
    configured()
    logging.getLogger("a library").warning("value %d", "text")
    assert "--- Logging error ---" in stderr.readouterr().err


def test_a_name_that_is_no_utf8_can_be_sent() -> None:
    ring = LogRing(lambda: NOW_MS)
    ring.add(NOW_MS, "warning", "", os.fsdecode(b"caf\xe9"), "x", {"file": os.fsdecode(b"\xff")})
    reply = asyncio.run(LogTailService(ring, "g0", "n1").tail(diagnostics_pb2.LogTailRequest(), CALLER))
    assert (reply.lines[0].text, dict(reply.lines[0].fields)) == ("caf\\udce9", {"file": "\\udcff"})


def test_other_lines_and_other_levels_are_not_held_up() -> None:
    limit = RepeatLimit()
    list(limit.passed(record("the disk is full")))
    assert [each.getMessage() for each in limit.passed(record("the disk accepts writes again"))] == ["the disk accepts writes again"]
    assert len(list(limit.passed(record("the disk is full", level=logging.ERROR)))) == 1


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    limit = RepeatLimit()
    list(limit.passed(record("the disk is full", at_s=1000.0)))
    assert len(list(limit.passed(record("the disk is full", at_s=10.0)))) == 1


def test_what_was_left_out_is_told_at_the_end(stderr: pytest.CaptureFixture[str]) -> None:
    log = configured()
    for _ in range(3):
        logging.getLogger("broker").warning("again", extra={"event": "refused"})
    log.write_repeats()
    first, told = rows(stderr)
    assert (first["text"], told["text"], told["event"]) == ("again", "repeated 2 times within a second: again", "refused")
    assert first["at"] <= told["at"] <= (datetime.now(UTC) + timedelta(seconds=1)).isoformat()


def test_what_was_left_out_is_told_when_its_period_is_over_though_nothing_is_logged_any_more(
    stderr: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.process.log_repeats.PERIOD_S", 0.05)
    log = configured()
    asyncio.run(told_by_a_timer(log))
    first, told = rows(stderr)
    assert (first["text"], told["repeated"]) == ("again", 2)
    log.write_repeats()
    assert rows(stderr) == []


async def told_by_a_timer(log: ProcessLog) -> None:
    async with log.writing_repeats(every_s=0.01):
        again = record("again", at_s=time.time())
        for _ in range(3):
            logging.getLogger("broker").handle(again)  # of one moment: a process may stand still for the whole period
        newest = log.ring.newest
        await until(lambda: log.ring.newest > newest)


def test_the_ring_is_bounded_and_its_numbers_rise_over_restarts() -> None:
    ring = LogRing(lambda: NOW_MS, kept=3)
    for number in range(5):
        ring.add(NOW_MS, "info" if number % 2 else "warning", "", f"line {number}", "broker", {"long": "x" * 10_000})
    assert [line.text for line in ring.tail(10)] == ["line 2", "line 3", "line 4"]
    assert [line.text for line in ring.tail(1, "warning")] == ["line 4"]
    assert [line.text for line in ring.tail(10, after=ring.newest - 1)] == ["line 4"]
    assert len(ring.tail(1)[0].fields["long"]) < 5_000
    assert LogRing(lambda: NOW_MS + 1_000).newest > ring.newest


def test_lines_over_the_network() -> None:
    asyncio.run(over_the_network())


async def over_the_network() -> None:
    ring = LogRing(lambda: NOW_MS)
    ring.add(NOW_MS, "error", "disk_full", "the disk is full", "dledger.driver", {"term": 4})
    service = LogTailService(ring, "g0", "n1")
    found = await service.tail(diagnostics_pb2.LogTailRequest(level="warning"), CALLER)
    assert [(line.event, line.text, dict(line.fields)) for line in found.lines] == [("disk_full", "the disk is full", {"term": "4"})]
    assert found.newest == found.lines[0].number == ring.newest
    assert not (await service.tail(diagnostics_pb2.LogTailRequest(after=found.newest), CALLER)).lines
    with pytest.raises(InvalidArgumentError, match="level 'loud': expected one of debug, info"):
        await service.tail(diagnostics_pb2.LogTailRequest(level="loud"), CALLER)
