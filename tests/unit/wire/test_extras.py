"""Hints to install what is missing: the packages of pyproject.toml, by names that a registry has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dledger_wire.extras import PACKAGES, install_command

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("extra", sorted(PACKAGES))
def test_the_packages_are_those_of_the_extra(extra: str) -> None:
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert sorted(PACKAGES[extra]) == sorted(optional[extra])


def test_the_command_keeps_bounds_from_the_shell() -> None:
    assert install_command("arrow") == "pip install 'pyarrow>=18'"


def test_nothing_says_to_install_a_name_that_no_registry_has() -> None:
    """Whoever registers it would be installed."""
    code = [file for package in ROOT.glob("*/__init__.py") for file in package.parent.rglob("*.py")]
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    bare = re.compile(r"""install[^\n]*?[ '"]dledger(-client)?\[""")
    of_wheels = re.compile(r"--no-index --find-links ")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in [*code, *pages]
        if "adr" not in file.parts and "tests" not in file.parts
        for line in file.read_text(encoding="utf-8").splitlines()
        if bare.search(line) and not of_wheels.search(line)
    ]
    assert found == []
