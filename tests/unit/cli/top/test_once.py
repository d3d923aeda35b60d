"""``dledger top --once`` for scripts: its exit code tells whether there is a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.local.ports import free_ports
from dledger_cli.top import command
from dledger_wire.errors import UnreachableError


@pytest.mark.parametrize("options", [["--once"], ["--once", "--json"], []])
def test_without_a_node_that_answers_it_fails(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CONTACT_S", 0.2)
    (port,) = free_ports(1)
    file = tmp_path / "cluster.yaml"
    file.write_text(f"cluster: c\ngroups: [{{name: g0, nodes: [{{id: n0, address: 127.0.0.1:{port}}}]}}]\n")
    result = CliRunner().invoke(app, ["top", *options, "--config", str(file)])
    assert isinstance(result.exception, UnreachableError)
    assert result.stdout == ""
