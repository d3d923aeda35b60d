"""Options of who the command line is: every command has them, their order, and that they are gone when the command ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from broker.config.cluster_file import ClusterConfig
from dledger_cli import connection as connecting
from dledger_cli.app import app
from dledger_cli.command_table import _connect
from dledger_cli.connection import LOGIN, Connection, as_member, connection, take_authorities, use_connection
from dledger_cli.context import bootstrap_of
from dledger_cli.help_page import HelpCommand
from dledger_cli.local.local_process import environment_with
from dledger_cli.output import error_line
from dledger_client.runtime.security import network_security
from dledger_wire.security.certificates import issue, new_authority
from dledger_wire.security.principal import node
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

NAMES = ("--user", "--password-file", "--tls-ca", "--tls-cert", "--tls-key")


@pytest.fixture(autouse=True)
def nobody_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in LOGIN.values():
        monkeypatch.delenv(variable, raising=False)


def during(*arguments: str, look: Callable[[], Any] = lambda: connection().login()) -> Any:
    """What a command with these arguments sees; nothing of it is left in the environment."""
    seen: list[Any] = []
    found = typer.Typer(rich_markup_mode=None)
    found.command(cls=ConnectedCommand)(lambda: seen.append(look()))
    before = dict(os.environ)
    CliRunner().invoke(found, list(arguments), catch_exceptions=False)
    assert dict(os.environ) == before
    return seen[0]


class ConnectedCommand(HelpCommand):
    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        _connect(self, login_only=True)


def commands(group: Any, context: Any, path: str = "dledger") -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, context, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_that_asks_a_cluster_takes_them() -> None:
    root = typer.main.get_command(app)
    found = dict(commands(root, root.make_context("dledger", [], resilient_parsing=True)))
    taken = {path: {option for param in command.params for option in param.opts} for path, command in found.items()}
    asks = {path for path, options in taken.items() if "--bootstrap" in options} | {"dledger up", "dledger down"}
    assert len(asks) > 30
    assert not [path for path in asks if not taken[path].issuperset(NAMES)]


def test_options_come_before_the_environment_and_end_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given = during("--user", "billing", "--password-file", "pw", "--tls-ca", "ca.crt")
    assert given == {USER: "billing", PASSWORD_FILE: "pw", CA: "ca.crt", CERT: "", KEY: ""}
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD_FILE, "admin.password")
    assert during()[USER] == "admin"
    assert during("--user", "admin")[PASSWORD_FILE] == "admin.password"
    assert during("--user", "billing", "--password-file", "pw")[PASSWORD_FILE] == "pw"
    certified = during("--tls-cert", "b.crt", "--tls-key", "b.key")
    assert (certified[USER], certified[PASSWORD_FILE], certified[CERT]) == ("", "", "b.crt")


def test_without_a_file_and_a_terminal_a_user_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD_FILE, "admin.password")
    result = CliRunner().invoke(app, ["topic", "list", "--bootstrap", "127.0.0.1:1", "--user", "billing"])
    assert result.exit_code == 2
    assert "expected --password-file, or a certificate with --tls-cert and --tls-key" in result.output


def test_a_password_that_is_typed_stays_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(typer, "prompt", lambda *_args, **_options: "typed secret")
    credentials, environment = during(
        "--user", "billing", look=lambda: (network_security({}).credentials, environment_with(connection().given))
    )
    assert credentials.user == environment[USER] == "billing"
    assert "typed secret" not in str(environment)
    assert network_security({}).credentials is None


def test_commands_of_one_process_do_not_influence_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("dledger_cli.commands.topic.ask", lambda *_: seen.append((bootstrap_of(), connection().login())))
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", "c:1")
    file = tmp_path / "shop.yaml"
    file.write_text("tls_ca: ca.crt\n")
    delete = ["topic", "delete", "orders", "--yes"]
    options = ["--json", "--bootstrap", "a:1", "--user", "billing", "--password-file", "pw"]
    first = CliRunner().invoke(app, ["--verbose", "--context", str(file), *delete, *options])
    second = CliRunner().invoke(app, delete)
    assert (first.exit_code, second.exit_code) == (0, 0)
    given = {USER: "billing", PASSWORD_FILE: "pw", CA: str(tmp_path / "ca.crt"), CERT: "", KEY: ""}
    assert seen == [("a:1", given), ("c:1", dict.fromkeys(LOGIN.values(), ""))]
    assert ("deleted" in first.stdout, second.stderr) == (True, "deleted topic orders\n")


def test_an_error_is_json_only_for_the_command_that_wants_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_cli.commands.topic.ask", lambda *_: None)
    for options in (["--json"], []):
        CliRunner().invoke(app, ["topic", "delete", "orders", "--yes", *options])
        error_line("no answer")
    assert capsys.readouterr().err == '{"error": {"message": "no answer"}}\ndledger: no answer\n'


def test_a_process_that_a_command_starts_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD_FILE, "admin.password")
    environment = during("--tls-cert", "b.crt", look=lambda: environment_with(connection().given))
    assert {variable: environment.get(variable) for variable in LOGIN.values()} == {
        **dict.fromkeys((USER, PASSWORD_FILE, CA, KEY)),
        CERT: "b.crt",
    }


def test_a_password_is_never_an_option() -> None:
    root = typer.main.get_command(app)
    found = dict(commands(root, root.make_context("dledger", [], resilient_parsing=True)))
    assert not [path for path, command in found.items() for param in command.params if {"--password", "-p"} & set(param.opts)]


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterConfig:
    """A file of one node, with the key of that node beside it."""
    authority = new_authority("shop")
    authority.write(str(tmp_path / "ca"))
    issue(authority, node("shop", "g0", "n0"), ["127.0.0.1"]).write(str(tmp_path / "n0"))
    file = tmp_path / "cluster.yaml"
    file.write_text(
        'cluster: shop\nsecurity:\n  tls: {ca: ca.crt, cert: "{id}.crt", key: "{id}.key"}\n'
        "groups: [{name: g0, nodes: [{id: n0, address: 127.0.0.1:1}]}]\n",
        encoding="utf-8",
    )
    return ClusterConfig.load(str(file))


def test_the_authorities_are_those_of_the_cluster_file(cluster: ClusterConfig) -> None:
    used = Connection()
    with use_connection(used):
        take_authorities(cluster)
        assert used.given == {CA: os.path.join(cluster.folder, "ca.crt")}
        used.given[CA] = "given"
        take_authorities(cluster)
        assert used.given == {CA: "given"}


def certificate(make: Callable[[], Any]) -> str:
    found = make().tls
    return os.path.basename(found.settings.cert) if found is not None else ""


def test_who_may_read_a_nodes_key_comes_in_as_the_node(cluster: ClusterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_member(cluster):
        assert certificate(lambda: network_security({})) == "n0.crt"
    monkeypatch.setenv(USER, "billing")
    monkeypatch.setenv(PASSWORD_FILE, "/none")
    with as_member(cluster, always=True):
        assert certificate(lambda: network_security({})) == "n0.crt"
    with as_member(cluster), pytest.raises(Exception, match="/none: cannot read a password"):
        network_security({})


def test_who_may_not_read_it_comes_in_as_nobody(cluster: ClusterConfig) -> None:
    os.chmod(os.path.join(cluster.folder, "n0.key"), 0o644)
    with as_member(cluster):
        assert certificate(lambda: network_security({})) == ""
