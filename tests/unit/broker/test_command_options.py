"""Options of commands that need no cluster: what is accepted, and how a mistake is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from broker.cli import context
from broker.cli.app import app
from broker.cli.context import bootstrap_of, takes_bootstrap


@pytest.fixture(autouse=True)
def no_bootstrap_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DLEDGER_CONFIG", raising=False)
    monkeypatch.setattr(context, "_given", "")
    yield
    context._given = ""


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_addresses_stand_for_a_cluster_file() -> None:
    taken: list[str] = []

    def command(config: str | None = None) -> None:
        taken.append(bootstrap_of(config))

    takes_bootstrap(command)(config=None, bootstrap="a:1, [::1]:2")
    assert taken == ["a:1,[::1]:2"]


def test_the_environment_names_addresses_unless_a_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", "a:1")
    assert bootstrap_of(None) == "a:1"
    assert bootstrap_of("cluster-configs/local-3.yaml").startswith("127.0.0.1:9876,")
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", "a")
    with pytest.raises(typer.BadParameter, match="'a' is not host:port"):
        bootstrap_of(None)


def test_wrong_addresses_and_both_ways_at_once_are_wrong_usage() -> None:
    result = invoke("topic", "list", "--bootstrap", "127.0.0.1")
    assert result.exit_code == 2
    assert "'127.0.0.1' is not host:port; expected host:port" in result.output
    result = invoke("topic", "list", "--bootstrap", "127.0.0.1:1", "--config", "x.yaml")
    assert result.exit_code == 2
    assert "give either --bootstrap or --config" in result.output


@pytest.mark.parametrize("command", ["status", "produce", "consume", "topic create", "group describe", "leader transfer", "member add"])
def test_commands_that_ask_a_cluster_take_addresses(command: str) -> None:
    assert "--bootstrap" in invoke(*command.split(), "--help").output
