"""Options of who the command line is: every command has them, their order, and that they are gone when the command ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from broker.config.cluster_file import ClusterConfig
from dledger_cli.app import app
from dledger_cli.credentials import CA, CERT, KEY, OPTIONS, PASSWORD_FILE, USER, as_member, take_from, takes_credentials
from dledger_client.runtime.security import network_security
from dledger_wire.security.certificates import issue, new_authority
from dledger_wire.security.principal import node

NAMES = ("--user", "--password-file", "--tls-ca", "--tls-cert", "--tls-key")


@pytest.fixture(autouse=True)
def nobody_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable, _ in OPTIONS.values():
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    yield
    for variable, _ in OPTIONS.values():
        os.environ.pop(variable, None)


def during(**options: str) -> dict[str, str | None]:
    """What the environment says while a command with these options runs."""
    seen: dict[str, str | None] = {}

    def command() -> None:
        seen.update({variable: os.environ.get(variable) for variable, _ in OPTIONS.values()})

    before = dict(os.environ)
    takes_credentials(command)(**{f"login_{name}": value for name, value in options.items()})
    assert dict(os.environ) == before
    return seen


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
    assert during(user="billing", password_file="pw", ca="ca.crt") == {
        USER: "billing",
        PASSWORD_FILE: "pw",
        CA: "ca.crt",
        CERT: None,
        KEY: None,
    }
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD_FILE, "admin.password")
    assert during()[USER] == "admin"
    assert during(user="admin")[PASSWORD_FILE] == "admin.password"
    assert during(user="billing", password_file="pw")[PASSWORD_FILE] == "pw"
    certified = during(cert="b.crt", key="b.key")
    assert (certified[USER], certified[PASSWORD_FILE], certified[CERT]) == (None, None, "b.crt")


def test_without_a_file_and_a_terminal_a_user_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD_FILE, "admin.password")
    result = CliRunner().invoke(app, ["topic", "list", "--bootstrap", "127.0.0.1:1", "--user", "billing"])
    assert result.exit_code == 2
    assert "expected --password-file, or a certificate with --tls-cert and --tls-key" in result.output


def test_a_password_that_is_typed_stays_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda *_args, **_options: "typed secret")
    seen: list[Any] = []
    takes_credentials(lambda: seen.extend([network_security({}).credentials, dict(os.environ)]))(login_user="billing")
    assert seen[0].user == "billing"
    assert "typed secret" not in str(seen[1])
    assert network_security({}).credentials is None


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
    take_from(cluster)
    assert os.environ[CA] == os.path.join(cluster.folder, "ca.crt")
    os.environ[CA] = "given"
    take_from(cluster)
    assert os.environ[CA] == "given"


def certificate(make: Callable[[], Any]) -> str:
    found = make().tls
    return os.path.basename(found.settings.cert) if found is not None else ""


def test_who_may_read_a_nodes_key_comes_in_as_the_node(cluster: ClusterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_member(cluster):
        assert certificate(lambda: network_security({})) == "n0.crt"
    monkeypatch.setenv(USER, "billing")
    monkeypatch.setenv(PASSWORD_FILE, "/none")
    with as_member(cluster, whoever=True):
        assert certificate(lambda: network_security({})) == "n0.crt"
    with as_member(cluster), pytest.raises(Exception, match="/none: cannot read a password"):
        network_security({})


def test_who_may_not_read_it_comes_in_as_nobody(cluster: ClusterConfig) -> None:
    os.chmod(os.path.join(cluster.folder, "n0.key"), 0o644)
    with as_member(cluster):
        assert certificate(lambda: network_security({})) == ""
