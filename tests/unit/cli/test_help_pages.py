"""The help page of every command: whole summaries, options of the connection once, no sentinels, one example a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import typer

from dledger_cli.app import app
from dledger_cli.command_table import TABLE
from dledger_cli.connection import LOGIN
from dledger_cli.help_page import examples
from tests.unit.cli.command_tree import commands

SUMMARY = 60
COLUMNS = 80
SENTINEL = re.compile(r"default: (-1|0|0\.0|None|False)?[;\]]|<=|>=")


def page(path: str, command: Any) -> str:
    root, _, name = path.partition(" ")
    above = typer.Context(typer.main.get_command(app), info_name=root) if name else None
    context = command.make_context(name or root, [], above, resilient_parsing=True, terminal_width=COLUMNS, max_content_width=COLUMNS)
    return str(command.get_help(context))


@cache
def pages() -> dict[str, str]:
    """Of all commands but the jobs of Spark, which print a page of their own."""
    root = typer.main.get_command(app)
    return {"dledger": page("dledger", root)} | {
        path: page(path, command) for path, command in commands() if not path.startswith("dledger spark ")
    }


def test_the_list_of_commands_is_known_without_their_modules() -> None:
    found = {path.removeprefix("dledger "): command.get_short_help_str(1000) for path, command in commands()}
    assert {name: found[name] for name in TABLE} == {name: summary for name, (_, summary) in TABLE.items()}


def section(text: str, title: str) -> str:
    return text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]


def test_summaries_are_short_and_never_cut_in_a_list_of_commands() -> None:
    summaries = {path: command.get_short_help_str(1000) for path, command in commands()}
    assert len(summaries) > 80
    assert {path: text for path, text in summaries.items() if not 0 < len(text) <= SUMMARY} == {}
    lists = {path: section(text, "Commands") for path, text in pages().items()}
    assert {path for path, text in lists.items() if "..." in text} == set()
    for path, summary in summaries.items():
        group, _, name = path.rpartition(" ")
        if group in lists:
            assert re.search(rf"^  {name} +{re.escape(summary)}$", lists[group], re.MULTILINE), path


def test_options_of_the_connection_are_described_at_the_root_and_named_elsewhere() -> None:
    described = section(pages()["dledger"], "Connection options of commands that ask a cluster")
    assert [line.split()[0] for line in described.splitlines() if line.startswith("  -")][1:] == [
        *("--bootstrap", "--user", "--password-file", "--tls-ca", "--tls-cert", "--tls-key")
    ]
    for path, command in commands():
        names = [next(name for name in param.opts if name.startswith("--")) for param in command.params if param.name in command.connection]
        if names:
            assert names == section(pages()[path], "Connection options (see dledger --help)").split(), path
    connected = [path for path, command in commands() if set(command.connection) >= {"config", "bootstrap", *LOGIN}]
    assert len(connected) > 50


@pytest.mark.parametrize("what", ["sentinels", "lines that are too long", "markup"])
def test_a_page_shows_no(what: str) -> None:
    checks: dict[str, Callable[[str], object]] = {
        "sentinels": lambda text: SENTINEL.search(text),
        "lines that are too long": lambda text: any(len(line) > COLUMNS for line in text.partition("\nExample")[0].splitlines()),
        "markup": lambda text: re.search(r"[╭│╰\x1b]|\{[A-Z]|\[\[", text),
    }
    found = checks[what]
    assert [path for path, text in pages().items() if found(text)] == []


def test_examples_stand_one_a_line_and_are_of_the_command() -> None:
    shown = {f"dledger {command}": lines for command, lines in examples().items()}
    assert len(shown) > 60
    assert shown.keys() <= dict(commands()).keys()
    for path, lines in shown.items():
        title = "Examples" if len(lines) > 1 else "Example"
        assert pages()[path].rstrip().endswith("\n".join([f"{title}:", *(f"  {line}" for line in lines)])), path
        assert [line for line in lines if path not in line] == []
