"""GitHub's workflows: each script that they call is there and knows the options that it gets; actions are of one version each, and no
job may do more than it needs."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tidy.source import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = re.compile(r"actions/[\w-]+@v\d+\.\d+\.\d+")
MATRIX = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")
CALLS = re.compile(r"-m (tests\.\w+)|(scripts/lib/[\w/]+\.py)")  # in a script: what takes its options
MORE = {("release.yml", "build"): {"contents": "read", "id-token": "write", "attestations": "write"}}


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    return found


def commands(job: dict[str, Any]) -> list[list[str]]:
    """The words of every line that is run, once for each combination of the job's matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = []
    for values in itertools.product(*matrix.values()):
        row = dict(zip(matrix, values, strict=True))
        for step in job.get("steps", []):
            text = MATRIX.sub(lambda name, row=row: str(row[name[1]]), step.get("run", ""))
            found += [shlex.split(part) for line in text.splitlines() for part in line.split("&&")]
    return found


def script_calls() -> list[tuple[str, list[str]]]:
    """(script, its arguments), of every command of ours in any workflow."""
    found: list[tuple[str, list[str]]] = []
    for file in FILES:
        for words in (words for job in jobs(file).values() for words in commands(job)):
            found += [(word, words[at + 1 :]) for at, word in enumerate(words) if word.startswith(("scripts/", ".ci/"))][:1]
    return found


def knowing(script: str) -> str:
    """The text of a script and of the modules that it hands its arguments to."""
    text = (ROOT / script).read_text(encoding="utf-8")
    for module, path in CALLS.findall(text):
        file = ROOT / (path or f"{module.replace('.', '/')}/__main__.py")
        text += file.read_text(encoding="utf-8") if file.exists() else ""
    return text


@pytest.mark.parametrize(("script", "arguments"), script_calls(), ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_scripts_are_there_and_know_their_options(script: str, arguments: list[str]) -> None:
    assert os.access(ROOT / script, os.X_OK)
    text = knowing(script)
    assert [each for each in arguments if each.startswith("-") and not re.search(rf"{each}\b", text)] == []
    if script == "scripts/test":
        known = subprocess.run([ROOT / script, "no-layer"], capture_output=True, text=True, check=False).stderr.partition("there are ")[2]
        assert {each for each in arguments if not each.startswith("-")} <= set(known.strip().split(", "))


def test_what_takes_long_is_run_by_some_workflow() -> None:
    called = {" ".join([Path(script).name, *arguments]) for script, arguments in script_calls()}
    for wanted in ("soak --minutes", "fuzz", "test-pyspark 4.1", "test-python 3.13", "test --all drills", "test --all deploy"):
        assert any(each.startswith(wanted) for each in called), wanted


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_actions_are_pinned_and_rights_are_few(file: Path) -> None:
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}
    for name, job in jobs(file).items():
        assert job.get("permissions") == MORE.get((file.name, name)), name
        assert "uses" in job or job["timeout-minutes"] <= 120, name
        used = [step["uses"] for step in [job, *job.get("steps", [])] if "uses" in step]
        assert [each for each in used if not (ACTION.fullmatch(each) or (ROOT / each).is_file())] == [], name
