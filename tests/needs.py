"""What a test needs of the machine beside Python packages.

Where it is missing the test is skipped with the reason, so that everyone can run what their machine can.  ``scripts/test --all`` leaves
nothing out: there the test fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from typing import NoReturn

import pytest

WHOLE_RUN = "DLEDGER_TEST_ALL"  # scripts/test sets it


def lacking(reason: str) -> NoReturn:
    """Skip the test, or fail where nothing is left out."""
    if os.environ.get(WHOLE_RUN):
        pytest.fail(f"{reason}; scripts/test --all leaves nothing out")
    pytest.skip(reason)


def program(name: str) -> str:
    """Its path."""
    found = shutil.which(name)
    return found or lacking(f"no {name} on PATH (scripts/test says how to install it)")


@cache
def _java_major(java: str) -> int:
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def java() -> None:
    """Of 17 or newer, for Spark."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java" if home else "java")
    if found is None or _java_major(found) < 17:
        lacking("no Java 17 or newer at JAVA_HOME or on PATH (scripts/test says how to install it)")


def go(minor: int) -> str:
    """Its path; of that version of Go 1 or newer."""
    path = program("go")
    done = subprocess.run([path, "version"], capture_output=True, text=True, check=False)
    found = re.search(r"go1\.(\d+)", done.stdout)
    if found is None or int(found[1]) < minor:
        lacking(f"no Go 1.{minor} or newer on PATH (scripts/test says how to install it)")
    return path


def root() -> None:
    if os.geteuid() != 0:
        lacking("needs root")
