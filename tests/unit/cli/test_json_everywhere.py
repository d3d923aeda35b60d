"""What a program that reads the answers by ``--json`` relies on, over all commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dledger_cli import output
from dledger_cli.app import app
from dledger_cli.output import error_line, use_json
from dledger_client.aio import Admin
from dledger_wire.errors import TopicNotFoundError
from tests.unit.cli.command_tree import commands, options

ROOT = Path(__file__).resolve().parents[3]
NOTHING_TO_PRINT = {"dledger nameserver"}  # runs until it is stopped


def test_every_command_with_a_timeout_can_answer_as_json() -> None:
    lacking = [path for path, command in commands() if options(command, "--timeout") and not options(command, "--json")]
    assert [path for path in lacking if path not in NOTHING_TO_PRINT] == []


def test_errors_of_every_command_with_json_are_json() -> None:
    flags = [(path, param) for path, command in commands() for param in options(command, "--json") if param.is_flag]
    assert len(flags) > 60
    for path, param in flags:
        output._as_json = False
        param.callback(None, param, True)
        assert output._as_json, path


def test_an_error_is_one_object_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error_line("a\nb", TopicNotFoundError("a"))
    assert capsys.readouterr().err == "dledger: a\ndledger: b\n"
    use_json(True)
    error_line("a\nb", TopicNotFoundError("a"))
    error_line("")
    assert [json.loads(line) for line in capsys.readouterr().err.splitlines()] == [
        {"error": {"type": "TopicNotFoundError", "message": "a\nb"}},
        {"error": {"message": "unknown error"}},
    ]


def test_the_process_tells_an_error_as_json_and_prints_no_data() -> None:
    command = [sys.executable, "-m", "dledger_cli", "topic", "list", "--json", "--config", "nowhere.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    error = json.loads(done.stderr)["error"]
    assert error["type"] == "ConfigError"
    assert error["message"].startswith("nowhere.yaml: ")


@pytest.mark.parametrize(
    ("kind", "answer"), [("group", {"name": "x", "deleted": True}), ("topic", {"name": "x", "group": None, "deleted": True})]
)
def test_a_deletion_answers(kind: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    async def deleted(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(Admin, f"delete_{kind}", deleted)
    monkeypatch.setattr("dledger_cli.context.check_reachable", deleted)
    result = CliRunner().invoke(app, [kind, "delete", "x", "--yes", "--json", "--bootstrap", "127.0.0.1:1"])
    assert (result.exit_code, json.loads(result.stdout), result.stderr) == (0, answer, "")
