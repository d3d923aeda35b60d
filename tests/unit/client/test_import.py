"""What an import of the client loads and registers: nothing before a client is made, and each name only what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import atexit, json, os, sys, threading

hooks = []

def recorded(kind):
    def register(*given, **named):
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith("dledger"):
            hooks.append(f"{kind} of {caller}")
    return register

os.register_at_fork, atexit.register, threading._register_atexit = recorded("fork"), recorded("exit"), recorded("pools")
before = set(sys.modules)
STATEMENT
print(json.dumps([sorted(set(sys.modules) - before), sorted(hooks)]))
"""


def _loaded_by(statement: str) -> tuple[list[str], list[str]]:
    """Modules and hooks that came with ``statement`` in a process of its own."""
    program = PROGRAM.replace("STATEMENT", statement)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found: Any = json.loads(done.stdout)
    return found[0], found[1]


def _own(modules: list[str], start: str = "dledger") -> list[str]:
    return [name for name in modules if name.startswith(start)]


@pytest.mark.parametrize("package", ["dledger_client", "dledger_client.aio"])
def test_an_import_of_the_package_loads_no_client(package: str) -> None:
    modules, hooks = _loaded_by(f"import {package}")
    assert len(_own(modules)) <= 3
    assert not {"numpy", "asyncio", "ssl", "google.protobuf", "tenacity"}.intersection(modules)
    assert hooks == []


def test_errors_are_loaded_without_a_client() -> None:
    modules, _ = _loaded_by("from dledger_client import DledgerError; from dledger_client.errors import NotSentError")
    assert "numpy" not in modules


@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "TransactionProducer", "Message"])
def test_clients_of_the_data_path_load_no_administration(name: str) -> None:
    modules, hooks = _loaded_by(f"from dledger_client import {name}")
    assert set(_own(modules, "dledger_client.admin")) <= {
        "dledger_client.admin",
        "dledger_client.admin.calls",
        "dledger_client.admin.send_back",
    }
    assert hooks == []


def test_the_first_synchronous_producer_registers_what_exits_and_forks_need() -> None:
    _, hooks = _loaded_by("import dledger_client\nfor _ in range(2): dledger_client.Producer('127.0.0.1:1')")
    client = "dledger_client.unclosed"
    assert hooks == [
        "exit of dledger_client.runtime.loop_thread",
        f"exit of {client}",
        *["fork of dledger_wire.forked"] * 2,
        f"pools of {client}",
    ]


def test_the_allocator_is_left_alone_unless_the_environment_asks() -> None:
    make = "import dledger_client; dledger_client.Producer('127.0.0.1:1')"
    asked = "from dledger_client.runtime.allocator import keep_large_blocks as keep; print(keep.cache_info().misses)"
    for variables, times in ({}, 0), ({"DLEDGER_KEEP_LARGE_BLOCKS": "1"}, 1):
        program = f"import os; os.environ.update({variables!r}); {make}; {asked}"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        assert int(done.stdout) == times
