"""Options of commands that need no cluster: what is accepted, and how a mistake is told."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.commands import completion
from dledger_cli.context import bootstrap_of
from dledger_client.aio import Admin
from dledger_client.cluster.routes import TopicQueues

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def no_cluster_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLEDGER_CONFIG", raising=False)


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_addresses_stand_for_a_cluster_file(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr("dledger_cli.commands.topic.ask", lambda *_: taken.append(bootstrap_of()))
    assert invoke("topic", "delete", "orders", "--yes", "--bootstrap", "a:1, [::1]:2").exit_code == 0
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
    assert "--bootstrap and --config are mutually exclusive" in result.output


@pytest.mark.parametrize("option", ["--bootstrap", "--config", "--user", "--password-file", "--tls-ca", "--tls-cert", "--tls-key"])
def test_an_option_that_is_given_and_empty_is_wrong_usage(option: str) -> None:
    """As ``--bootstrap "$BROKERS"`` of a script that did not set it: the default would be another cluster, or another user."""
    for value in ("", " "):
        result = invoke("topic", "delete", "orders", "--yes", option, value)
        assert (result.exit_code, "the value is empty; expected a value" in result.output) == (2, True), result.output
    assert invoke("--context", "", "topic", "list").exit_code == 2


@pytest.mark.parametrize("name", ["CONFIG", "BOOTSTRAP", "CONTEXT", "USER", "PASSWORD_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"])
def test_a_variable_that_is_set_and_empty_is_wrong_usage(name: str) -> None:
    result = invoke("topic", "list", **{f"DLEDGER_{name}": ""})
    assert (result.exit_code, f"${'DLEDGER_' + name}: the variable is set and empty" in result.output) == (2, True), result.output


@pytest.mark.parametrize("command", ["status", "produce", "consume", "topic create", "group describe", "leader transfer", "member add"])
def test_commands_that_ask_a_cluster_take_addresses(command: str) -> None:
    assert "--bootstrap" in invoke(*command.split(), "--help").output


def test_help_of_a_spark_job_without_spark_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["pyspark", *(name for name in sys.modules if name.startswith("pyspark."))]:
        monkeypatch.setitem(sys.modules, name, None)  # a module that is loaded is found without its package
    for name in [name for name in sys.modules if name.startswith("pyspark_dledger")]:
        monkeypatch.delitem(sys.modules, name)
    result = invoke("spark", "stats", "--help")
    assert result.exit_code == 0
    assert "Volume, size and latency of topics" in result.output
    assert "pip install 'pyspark>=4.1,<4.4' 'pyarrow>=18'" in result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("produce", "t", "--size", "5"), "requires --count"),
        (("produce", "t", "--key-sep", ":", "--json-lines"), "are mutually exclusive"),
        (("consume", "t", "--format", "%z"), "'%z': expected one of %t"),
        (("consume", "t", "--format", ""), "an empty text prints nothing; expected one such as '%b\\n'"),
        (("consume", "t", "--json", "--format", "%b"), "--format and --json are mutually exclusive"),
        (("consume", "t", "--from", "yesterday"), "'yesterday': expected milliseconds since 1970 (13 digits), or a time such as"),
        (("group", "reset-offset", "g", "--topic", "t", "--to", "17"), "'17': expected milliseconds since 1970 (13 digits)"),
        (("group", "reset-offset", "g", "--topic", "t", "--to", "1795796680"), "'1795796680': expected milliseconds"),
        (("group", "reset-offset", "g", "--topic", "t"), "expected --to, or --queue with --offset"),
        (("group", "reset-offset", "g", "--topic", "t", "--offset", "17"), "expected --to, or --queue with --offset"),
        (("group", "reset-offset", "g", "--topic", "t", "--queue", "1", "--to", "last"), "expected --to, or --queue with --offset"),
        (("group", "reset-offset", "g", "--topic", "t", "--queue", "1", "--offset", "1", "--to", "last"), "expected --to, or --queue"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent_or_read(arguments: tuple[str, ...], expected: str) -> None:
    result = invoke(*arguments, "--bootstrap", "127.0.0.1:1")
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())


def test_a_nodes_own_folder_given_as_data_is_told(tmp_path: Path) -> None:
    own = tmp_path / "data" / "n0"
    own.mkdir(parents=True)
    (own / "identity.json").write_text("{}")
    result = invoke("node", "--config", str(ROOT / "cluster-configs" / "local-3.yaml"), "--id", "n0", "--data", str(own))
    assert result.exit_code == 2
    assert f"{own} is the folder of one node; expected the folder above it: --data {own.parent}" in " ".join(result.output.split())
    assert [path.name for path in own.iterdir()] == ["identity.json"]


def test_a_file_that_no_node_wrote_is_not_dumped(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")
    result = invoke("dump", str(tmp_path / "passwd"))
    assert "not a file of a data folder" in str(result.exception)


@pytest.mark.parametrize(
    ("redirection", "status", "error"),
    [("> /dev/full", 1, "dledger: standard output: No space left on device\n"), (">&-", 0, ""), ("<&- >&- 2>&-", 0, "")],
)
def test_output_that_cannot_be_written_is_one_line(redirection: str, status: int, error: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m dledger_cli topic list --help {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, error)


def test_names_are_completed_from_the_cluster_and_nothing_is_said_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topics(_admin: Admin, *, or_followers: bool) -> list[TopicQueues]:
        return [TopicQueues(name, "g0", 1, 1, 6, "") for name in ("orders", "other", "logs")]

    monkeypatch.setattr(Admin, "list_topics", topics)
    monkeypatch.setenv("DLEDGER_CONFIG", str(ROOT / "cluster-configs" / "local-3.yaml"))
    assert completion.topics("o") == ["orders", "other"]
    monkeypatch.setenv("DLEDGER_CONFIG", "gone.yaml")
    assert completion.topics("o") == completion.consumer_groups("") == []
