"""``--watch``: how the number is left out, what fits a terminal, which pages end it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from dledger_cli.watching import DEFAULT_S, fitting, pages, with_interval
from dledger_wire.security.certificates import new_authority
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--watch"], ["--watch", "2"]),
        (["-w", "orders"], ["-w", "2", "orders"]),
        (["--watch", "0.5", "orders"], ["--watch", "0.5", "orders"]),
        (["--watch", "--json"], ["--watch", "2", "--json"]),
        (["--watch=3"], ["--watch=3"]),
        (["--watch", "-1"], ["--watch", "-1"]),  # below zero: refused by name
        (["orders"], ["orders"]),
    ],
)
def test_the_number_may_be_left_out(given: list[str], expected: list[str]) -> None:
    assert with_interval(given) == expected
    assert DEFAULT_S == 2.0


def test_what_does_not_fit_is_cut_and_counted() -> None:
    lines = ["a" * 10, "\x1b[1mb\x1b[0m", "c" * 25, "d"]
    assert fitting(lines, (10, 6)) == lines
    assert fitting(lines, (10, 5)) == [*lines[:2], "... 2 more lines; the window is too small"]
    assert fitting(["", *lines], (80, 5)) == ["", *lines]
    assert fitting(["", *lines], (80, 3)) == ["", lines[0], "... 3 more lines; the window is too small"]


def test_an_error_ends_the_first_page_only(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(pages(0.0)) as shown:
        for number, page in enumerate(shown):
            with page:
                print(f"page {number}")
                if number == 0:
                    raise typer.Exit(1)  # says that something is missing; the page stands
                if number == 1:
                    raise SystemExit(1)
                if number == 2:
                    raise OSError("gone")
            if number == 3:
                break
    told = capsys.readouterr()
    assert told.out == "page 0\n\npage 1\n\npage 2\n\npage 3\n"
    assert told.err == "dledger: gone\n"
    with pytest.raises(OSError, match="gone"), contextlib.closing(pages(0.0)) as shown, next(shown):
        raise OSError("gone")


def test_documents_follow_each_other_without_a_line_between(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(pages(0.0, as_json=True)) as shown:
        for number, page in enumerate(shown):
            with page:
                print("{}")
            if number == 1:
                break
    assert capsys.readouterr().out == "{}\n{}\n"


def test_a_deadline_is_not_slept_through() -> None:
    began = time.monotonic()
    with contextlib.closing(pages(60.0, deadline=began)) as shown:
        with next(shown):
            pass
        next(shown)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_reader_who_goes_away_ends_it(tmp_path: Path, options: list[str]) -> None:
    new_authority("shop").write(str(tmp_path / "ca"))
    command = [sys.executable, "-m", "dledger_cli", "certs", "list", str(tmp_path), "--watch", "0.1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
