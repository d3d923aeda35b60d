"""Contexts: what they set, what comes before them, and what is no context."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.contexts import file_of, variables_of
from dledger_wire.errors import ConfigError

VARIABLES = ("CONFIG", "BOOTSTRAP", "USER", "PASSWORD_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY", "CONTEXT")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(f"DLEDGER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "dledger").mkdir()
    return tmp_path / "dledger"


def written(folder: Path, text: str, name: str = "shop") -> str:
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return name


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    written(folder, "bootstrap: a:1,b:2\nuser: billing\npassword_file: billing.password\ntls_ca: /etc/ca.crt\n")
    assert variables_of("shop") == {
        "DLEDGER_BOOTSTRAP": "a:1,b:2",
        "DLEDGER_USER": "billing",
        "DLEDGER_PASSWORD_FILE": str(folder / "billing.password"),
        "DLEDGER_TLS_CA": "/etc/ca.crt",
    }
    assert variables_of(str(folder / "shop.yaml")) == variables_of("shop")
    assert file_of("shop") == folder / "shop.yaml"


def test_the_environment_comes_before_and_is_not_mixed_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, "config: c.yaml\nuser: billing\npassword_file: billing.password\ntls_ca: ca.crt\n")
    monkeypatch.setenv("DLEDGER_USER", "admin")
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", "z:9")
    assert variables_of("shop") == {"DLEDGER_TLS_CA": str(folder / "ca.crt")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user: billing\npassword: hidden\n", "unknown setting password; expected .* a password goes into a file of its own"),
        ("users: billing\n", "unknown setting users"),
        ("user: 7\n", "expected a context with texts"),
        ("[", "expected a context in YAML"),
    ],
)
def test_what_is_no_context_is_refused(folder: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as failed:
        variables_of(written(folder, text))
    assert "hidden" not in failed.value.message
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot read the context: no such file"):
        variables_of("none")


def test_a_command_has_it_while_it_runs(folder: Path) -> None:
    written(folder, "bootstrap: 127.0.0.1:1\nuser: billing\npassword_file: none\n")
    result = CliRunner().invoke(app, ["--context", "shop", "topic", "list"])
    assert f"{folder}/none: cannot read a password" in str(result.exception)
    assert "DLEDGER_USER" not in os.environ
