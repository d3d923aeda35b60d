"""One name of an option means one thing in all commands."""

from __future__ import annotations

from dledger_cli.context import CHANGE_S, LONG_S, READ_S
from tests.unit.cli.command_tree import commands, options


def test_a_group_is_a_consumer_group_and_a_replica_group_is_called_that() -> None:
    groups = {path: param.help for path, command in commands() for param in options(command, "--group")}
    assert "dledger consume" in groups
    assert {path: text for path, text in groups.items() if "onsumer" not in text} == {}
    replicas = {path: param for path, command in commands() for param in options(command, "--replica-group")}
    assert len(replicas) > 10
    assert [path for path, param in replicas.items() if "-g" not in param.opts or "--group" in param.opts] == []
    assert [path for path, command in commands() if options(command, "--groups")] == []


def test_a_timeout_says_what_is_given_up_and_has_one_of_three_defaults() -> None:
    timeouts = {path: param for path, command in commands() for param in options(command, "--timeout")}
    assert len(timeouts) > 50
    assert {path: param.help for path, param in timeouts.items() if not param.help.startswith("Give up ")} == {}
    assert {path: param.default for path, param in timeouts.items() if param.default not in (READ_S, CHANGE_S, LONG_S)} == {}
    reads = ("list", "describe", "query", "trace", "history", "settings", "tail", "route")
    assert {path: param.default for path, param in timeouts.items() if path.split()[-1] in reads and param.default != READ_S} == {}


def test_every_confirmation_can_be_given_short() -> None:
    confirmed = [(path, param) for path, command in commands() for param in options(command, "--yes")]
    assert len(confirmed) > 8
    assert [path for path, param in confirmed if "-y" not in param.opts] == []
