"""``scripts/size``: what counts as a line, where a file belongs, and that its table and the budget name what is there."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.tidy.source import PACKAGES, ROOT


@pytest.fixture(scope="module")
def size() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size", ROOT / "scripts" / "lib" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_comments_and_blanks_do_not_count(size: ModuleType) -> None:
    assert size.code_lines('"""A\nB."""\n\n# c\nx = 1  # d\n\n\ndef f():\n    """E."""\n    return """\n\n  g"""\n') == 4


def test_the_longest_place_that_fits_is_the_concern_of_a_file(size: ModuleType) -> None:
    assert size.concern_of("dledger/core/raft.py") == "Raft core"
    assert size.concern_of("dledger/node.py") == "rest of dledger"
    assert size.concern_of("dledger_wire/tcp/server.py") == "wire: TCP and RPC"
    with pytest.raises(SystemExit, match=r"dledger_new/a\.py belongs to no concern"):
        size.concern_of("dledger_new/a.py")


def test_the_table_names_what_is_there_and_every_package(size: ModuleType) -> None:
    places = [place for places in size.CONCERNS.values() for place in places]
    assert [place for place in places if not (ROOT / place).exists()] == [], "moved: change CONCERNS in scripts/lib/size.py"
    assert set(PACKAGES) <= set(places)


def test_more_lines_than_the_budget_are_refused(size: ModuleType) -> None:
    assert size.verdict(100, 100) == ""
    assert "1 above size-budget" in size.verdict(101, 100)


def test_a_commit_that_raises_the_budget_has_to_say_why(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)

    def commit(budget: int, body: str) -> None:
        (tmp_path / "pyproject.toml").write_text(f"size-budget = {budget}  # lines\n", encoding="utf-8")
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", f"x: set {budget}", "-m", body], check=True)

    def checked() -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "scripts" / "check-commits"), "HEAD~1..HEAD"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    commit(100, "The first budget of this project.")
    commit(90, "Lines went, so this is lower now.")
    assert checked().returncode == 0
    commit(95, "Something came that is worth it.")
    assert "raises size-budget" in checked().stderr
    commit(99, "The size budget grows for something worth it.")
    assert checked().returncode == 0


def test_the_budget_is_a_number() -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["dledger"]["size-budget"]
    assert isinstance(budget, int)
