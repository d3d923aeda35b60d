"""The demo without a cluster: what it sends, how it judges what was read, what it needs for Spark; and its folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.demo import spark
from dledger_cli.demo.account import Rows, compare
from dledger_cli.demo.load import Line, read_lines
from dledger_cli.local.swept_folder import swept_folder
from dledger_wire.errors import InvalidArgumentError
from tests.waiting import LIMIT_S

BODIES = [b"a", b"b", b"c", b"d"]


def judged(lines: list[int], queues: list[int], bodies: list[bytes] | None = None) -> tuple[int, int, int, int]:
    """(lost, duplicated, changed, out of order) of lines read in the order of their offsets; the last one was not acknowledged."""
    crcs = np.array([zlib.crc32(body) for body in bodies or [BODIES[line] for line in lines]], np.int64)
    rows = Rows(np.array(lines, np.int64), crcs, np.array(queues, np.int64), np.arange(len(lines)), ["n1"])
    load = SimpleNamespace(lines=[Line(body) for body in BODIES], acknowledged=np.array([True, True, True, False]))
    found = compare(load, rows)  # type: ignore[arg-type]
    assert found.good == (not any((found.lost, found.duplicated, found.changed, found.out_of_order)))
    return found.lost, found.duplicated, found.changed, found.out_of_order


def test_messages_read_are_compared_with_those_sent() -> None:
    assert judged([0, 1, 2], [0, 0, 0]) == (0, 0, 0, 0)
    assert judged([1, 0, 3, 2], [0, 1, 0, 1]) == (0, 0, 0, 0)
    assert judged([0, 2], [0, 0]) == (1, 0, 0, 0)
    assert judged([], []) == (3, 0, 0, 0)
    assert judged([0, 1, 1, 2], [0, 0, 1, 0]) == (0, 1, 0, 0)
    assert judged([0, 2, 1], [0, 0, 0]) == (0, 0, 0, 1)
    assert judged([0, 1, 2], [0, 0, 0], [b"a", b"x", b"c"]) == (0, 0, 1, 0)


def test_lines_are_sent_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\r\n\nlast")
    assert [line.body for line in read_lines(file, as_json=False)] == [b"a\r", b"", b"last"]
    file.write_bytes(b'{"body": "b", "tags": "t", "queue_key": "k"}\n{"id": 1}\n')
    assert read_lines(file, as_json=True) == [Line(b"b", "t", "k"), Line(b'{"id": 1}')]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"", (), "dledger: {file}: no lines to send"),
        (b"{}\nno\n", ("--json-lines",), "dledger: {file}:2: not a JSON value"),
        (None, (), "dledger: {file}: No such file or directory"),
    ],
)
def test_an_input_that_cannot_be_sent_is_refused(tmp_path: Path, content: bytes | None, options: tuple[str, ...], expected: str) -> None:
    file = tmp_path / "lines"
    if content is not None:
        file.write_bytes(content)
    command = [sys.executable, "-m", "dledger_cli", "demo", "--input", str(file), *options]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(expected.format(file=file)), done.stderr
    assert not list(tmp_path.glob("dledger-*"))


def test_json_lines_need_an_input() -> None:
    assert "needs --input" in CliRunner().invoke(app, ["demo", "--json-lines"]).stderr


def test_what_spark_lacks_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(InvalidArgumentError, match="--spark: Java was not found on PATH or in JAVA_HOME; Spark needs Java 17 or newer"):
        spark.check_installed()
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(InvalidArgumentError, match="--spark: Java 8 is too old"):
        spark.check_installed()
    monkeypatch.setattr(spark, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgumentError, match="--spark: pyspark is not installed: pip install 'pyspark"):
        spark.check_installed()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("p"), "KeyError: 'p'"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (RuntimeError("trace\n  [DATA_SOURCE_NOT_FOUND] no dledger\nmore"), "[DATA_SOURCE_NOT_FOUND] no dledger"),
    ],
)
def test_the_reason_of_a_failed_spark_job_names_the_error(error: Exception, expected: str) -> None:
    assert spark.reason_of(error) == expected


def test_a_swept_folder_is_removed_with_its_nodes_unless_it_is_kept() -> None:
    with swept_folder("dledger-test-") as folder:
        (folder.path / "data").mkdir()
        node = subprocess.Popen([sys.executable, "-c", "input()", str(folder.path / "data")], stdin=subprocess.PIPE)
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        for name, process in (("n0", node), ("n1", other)):
            (folder.path / "data" / f"{name}.pid").write_text(f"{process.pid}\n")
    assert not folder.path.exists()
    assert node.wait(LIMIT_S) == -9
    assert other.poll() is None, "its pid file was of an earlier process with that number"
    other.communicate(b"\n", timeout=LIMIT_S)
    node.communicate()
    with swept_folder("dledger-test-") as folder:
        folder.keep()
    folder.path.rmdir()
