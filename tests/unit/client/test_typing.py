"""What type checkers say of programs of users: nothing of good ones, exactly the expected errors of bad ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = sorted((ROOT / "tests" / "user_programs").glob("*.py"))
CACHE = ROOT / ".mypy_cache" / "user_programs"
LIMIT_S = 240  # a few seconds each with a warm cache
EXPECTED = re.compile(r"# error: (?P<mypy>[\w,-]+) / (?P<pyright>[\w,-]+)$")

Found = dict[str, set[tuple[int, str]]]


@pytest.fixture(scope="module")
def outside(module_folder: Path) -> Path:
    """The programs in a folder of their own, as a user has them."""
    for file in PROGRAMS:
        shutil.copy(file, module_folder)
    (module_folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}', encoding="utf-8")
    return module_folder


def expected(tool: str) -> Found:
    found: Found = {}
    for file in PROGRAMS:
        lines = file.read_text(encoding="utf-8").splitlines()
        matches = [(number, EXPECTED.search(line)) for number, line in enumerate(lines, 1)]
        codes = {(number, code) for number, match in matches if match for code in match[tool].split(",") if code != "-"}
        if codes:
            found[file.name] = codes
    return found


def run(folder: Path, *command: str) -> str:
    binary, *arguments = command
    path = str(Path(sys.executable).parent / binary)
    done = subprocess.run([path, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_bad_programs_come_with_five_typos() -> None:
    errors = expected("mypy")
    assert len(errors["bad_five_typos.py"]) == len(errors["bad_five_typos_aio.py"]) == 5


def test_mypy_finds_exactly_the_expected_errors(outside: Path) -> None:
    names = [file.name for file in PROGRAMS]
    python = f"--python-executable={sys.executable}"
    output = run(outside, "mypy", "--strict", "--config-file=", f"--cache-dir={CACHE}", "--no-error-summary", python, *names)
    found: Found = {}
    for line in output.splitlines():
        match = re.match(r"(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$", line)
        if match:
            found.setdefault(match["file"], set()).add((int(match["line"]), match["code"]))
        else:
            assert ": note: " in line, line
    assert found == expected("mypy"), output


def test_pyright_finds_exactly_the_expected_errors(outside: Path) -> None:
    output = run(outside, "basedpyright", f"--pythonpath={sys.executable}", "--outputjson", *[file.name for file in PROGRAMS])
    report: dict[str, Any] = json.loads(output)
    found: Found = {}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            place = each["range"]["start"]["line"] + 1, each["rule"]
            found.setdefault(Path(each["file"]).name, set()).add(place)
    assert found == expected("pyright"), output
