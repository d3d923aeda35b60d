"""``dledger drill`` before it starts anything: its folder, its settings, the list of its faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from dledger_cli.local.signals import ended_as_by_ctrl_c
from dledger_drill.command import command as drill
from dledger_drill.command.choices import settings_in
from dledger_drill.command.cluster import DrillFolder
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
HOLDS = """
from dledger_drill.command.cluster import DrillFolder
folder = DrillFolder(None)
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_killed_drill_is_removed(scratch: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLDS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        (folder / "cluster").mkdir()
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists(), "its removal")


def test_a_folder_goes_unless_it_is_to_be_kept(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone, kept = DrillFolder(None), DrillFolder(scratch / "a" / "kept")
    kept.kept = True
    gone.close()
    kept.close()
    assert not gone.path.exists()
    assert list(kept.path.iterdir()) == []
    assert str(kept.path) in capsys.readouterr().err
    with pytest.raises(typer.BadParameter, match="exists already"):
        DrillFolder(kept.path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("store:\n  mappedFileSizeCommitLog: 1GiB\n  flushDiskTyp: SYNC\n", r":3: store.flushDiskTyp: .*flushDiskType"),
        ("raft:\n  electionTimeoutMs: soon\n", r":2: raft.electionTimeoutMs"),
        ("{store: {flushDiskTyp: SYNC}}", r"store.flushDiskTyp"),
        ("groups: []\n", r"expected blocks of settings such as store and raft"),
        ("- a\n", r"expected blocks of settings"),
        ("store: [\n", r":\d+: not valid YAML"),
        ("store:\n  maxMessageSize: 1GiB\n", r"maxMessageSize"),
    ],
)
def test_settings_are_checked_before_anything_is_made(scratch: Path, text: str, expected: str) -> None:
    file = scratch / "settings.yaml"
    file.write_text(text)
    with pytest.raises(typer.BadParameter, match=expected) as told:
        settings_in(file)
    assert str(told.value).startswith(f"{file}:")
    assert "\n" not in str(told.value)


def test_settings_are_taken_as_a_cluster_file_has_them(scratch: Path) -> None:
    file = scratch / "settings.yaml"
    wanted = {"store": {"mappedFileSizeCommitLog": "1MiB"}, "broker": {"transactionCheckInterval": "2s"}}
    file.write_text(yaml.safe_dump(wanted))
    assert settings_in(file) == wanted
    file.write_text("# nothing yet\n")
    assert settings_in(file) == {}


def test_the_list_is_of_the_drill_that_the_options_name(scratch: Path) -> None:
    app = typer.Typer()
    drill.register(app)
    told = CliRunner().invoke(app, ["--faults", "list", "--against", "cluster.yaml"])
    assert told.exit_code == 0, told.output
    rows = [line for line in told.output.splitlines() if re.match(r"[a-z]", line)]
    assert sorted(line.split()[0] for line in rows) == ["pause-clients", "rolling-restart", "transfer"]
    assert next(line for line in rows if line.startswith("rolling")).rstrip().endswith("takes --restart-command")
    assert "takes" not in CliRunner().invoke(app, ["--faults", "list", "--against", "c.yaml", "--restart-command", "true"]).output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_a_drill_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_as_by_ctrl_c():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_drill_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
