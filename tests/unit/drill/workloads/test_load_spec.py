"""The settings of a workload process, and its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger_drill.workloads.spec import DEFAULT_WORKLOADS, Command, LoadSpec, parse_command
from dledger_wire.errors import InvalidArgumentError


def test_a_spec_is_read_as_it_was_written(tmp_path: Path) -> None:
    spec = LoadSpec("127.0.0.1:1", ("g0", "g1"), ("plain", "push"), rates={"plain": 3.5}, seed=9, ca="/ca.pem", delete_topics=True)
    spec.write(tmp_path / "spec.json")
    assert LoadSpec.read(tmp_path / "spec.json") == spec
    assert (spec.rate("plain"), spec.rate("keyed")) == (3.5, 40.0)


def test_a_spec_needs_no_more_than_addresses_and_groups(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"bootstrap": "127.0.0.1:1", "groups": ["g0"]}')
    assert LoadSpec.read(tmp_path / "spec.json").workloads == DEFAULT_WORKLOADS


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "not the settings"),
        ("[]", "not the settings"),
        ('{"groups": ["g0"]}', "bootstrap"),
        ('{"bootstrap": "a:1", "groups": []}', "groups"),
        ('{"bootstrap": "a:1", "groups": ["g0"], "workloads": ["plane"]}', "plane"),
        ('{"bootstrap": "a:1", "groups": ["g0"], "workloads": ["delayed", "pull"]}', "delayed: expected together with push or orderly"),
        ('{"bootstrap": "a:1", "groups": ["g0"], "rates": {"plain": 0}}', "plain=0"),
        ('{"bootstrap": "a:1", "groups": ["g0"], "speed": 3}', "speed"),
    ],
)
def test_a_wrong_spec_is_refused_with_what_is_wrong(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "spec.json").write_text(content)
    with pytest.raises(InvalidArgumentError, match=text):
        LoadSpec.read(tmp_path / "spec.json")


@pytest.mark.parametrize(
    ("workloads", "topic"), [(("plain", "keyed"), "d-keyed"), (("idempotent",), "d-idempotent"), (("pull",), "d-probe")]
)
def test_readers_read_what_is_produced(workloads: tuple[str, ...], topic: str) -> None:
    assert LoadSpec("a:1", ("g0",), workloads, prefix="d").read_topic == topic


@pytest.mark.parametrize("command", [Command(round=3), Command(finish=True)])
def test_commands_are_parsed_as_they_were_encoded(command: Command) -> None:
    assert parse_command(command.encode()) == command


@pytest.mark.parametrize("line", [b"", b"finish\n", b"[1]\n", b'{"rounds": 2}\n'])
def test_other_lines_are_no_commands(line: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="expected round or finish"):
        parse_command(line)
