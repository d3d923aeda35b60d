"""Interpreters that lack the source are told apart in plain words."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger import DefaultSource, register
from pyspark_dledger.jobs.common import reason
from pyspark_dledger.register import check_interpreter


def test_an_interpreter_is_checked(tmp_path: Path) -> None:
    check_interpreter(sys.executable)
    with pytest.raises(InvalidArgumentError, match=r"'no-such-python' \(PYSPARK_PYTHON\) is not found"):
        check_interpreter("no-such-python")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(
        InvalidArgumentError, match=r"cannot load the source \(ModuleNotFoundError: .*expected the wheel of dledger-client there"
    ):
        check_interpreter(str(bare))


def test_the_package_is_shipped_as_each_kind_of_session_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connected:
        """A session of Spark Connect: it has no SparkContext."""

        __module__ = "pyspark.sql.connect.session"

        def __init__(self) -> None:
            self.told: list[Any] = []
            self.conf = SimpleNamespace(get=lambda _name, default: default)
            self.dataSource = SimpleNamespace(register=self.told.append)

        def addArtifacts(self, path: str, *, pyfile: bool) -> None:
            self.told.append((zipfile.is_zipfile(path), pyfile))

    class Classic(Connected):
        __module__ = "pyspark.sql.session"
        _jsparkSession = "session"

        @property
        def _jvm(self) -> Any:
            classic = SimpleNamespace(SparkSession=SimpleNamespace(setActiveSession=self.told.append))
            sql = SimpleNamespace(classic=classic)
            return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=sql))))

        @property
        def sparkContext(self) -> Any:
            return SimpleNamespace(addPyFile=lambda path: self.told.append(zipfile.is_zipfile(path)))

    checked: list[str] = []
    monkeypatch.setattr(sys.modules["pyspark_dledger.register"], "check_interpreter", checked.append)
    monkeypatch.setenv("PYSPARK_PYTHON", "the-clients")
    for session, told in ((Connected(), [(True, True), DefaultSource]), (Classic(), [True, DefaultSource, "session"])):
        register(session, ship=True)  # type: ignore[arg-type]
        assert session.told == told
    assert checked == ["the-clients"]  # by the classic session: a Connect server has an interpreter of its own


def test_the_line_of_ours_is_what_is_told_of_an_error_that_came_through_spark() -> None:
    wrapped = RuntimeError(
        "[PYTHON_DATA_SOURCE_ERROR] failed\n  File x\ndledger_wire.errors.TopicNotFoundError: topic t does not exist\n at java"
    )
    assert reason(wrapped) == "topic t does not exist"
    assert "cannot import pyspark_dledger" in reason(RuntimeError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: dledger"))
    assert reason(ValueError("one\ntwo")) == "ValueError: one"
