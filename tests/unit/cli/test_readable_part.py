"""A cluster file with mistakes: commands that only ask nodes use the addresses that can be read, and warn about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.readable_part import readable_part
from dledger_cli.connection import Connection, use_connection
from dledger_cli.context import bootstrap_of, with_hint
from dledger_wire.errors import ConfigError

NODES = "".join(f"      - {{id: n{n}, address: '127.0.0.1:{9000 + n}'}}\n" for n in range(3))
GOOD = f"cluster: shop\ngroups:\n  - name: g0\n    nodes:\n{NODES}"
ALL = "127.0.0.1:9000,127.0.0.1:9001,127.0.0.1:9002"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_without_mistakes_is_read_as_it_is(tmp_path: Path) -> None:
    config, mistakes = readable_part(written(tmp_path, GOOD))
    assert (config.bootstrap(), mistakes) == (ALL, "")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (GOOD + "store:\n  fileReservedTime: 48hours\n  diskMaxUsedSpaceRatio: 70\n", "store.fileReservedTime: expected a duration"),
        (GOOD + "raft: 5\n", "raft: expected a mapping"),
        (GOOD.replace("id: n1,", "id: n1, rak: r1,"), "groups[0].nodes[1].rak: unknown setting"),
        (GOOD.replace("cluster: shop", "cluster: shop\nspares:\n  - {id: 5}"), "spares[0]"),
        (GOOD + "store:\n  diskSpaceWarningLevelRatio: 60\n", "diskSpaceWarningLevelRatio"),
    ],
)
def test_addresses_are_used_whatever_else_is_wrong(tmp_path: Path, text: str, mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, text)
    config, mistakes = readable_part(path)
    assert config.bootstrap() == ALL
    assert mistake in mistakes
    assert bootstrap_of(path) == ALL
    assert mistake in capsys.readouterr().err


def test_a_node_without_a_readable_address_is_left_out(tmp_path: Path) -> None:
    config, mistakes = readable_part(written(tmp_path, GOOD.replace("address: '127.0.0.1:9001'", "address: here")))
    assert config.bootstrap() == "127.0.0.1:9000,127.0.0.1:9002"
    assert "groups[0].nodes[1].address" in mistakes


@pytest.mark.parametrize(
    "text",
    ["groups: [", "cluster: shop\n", GOOD + "security:\n  tls: no\n", GOOD + "securty:\n  users: true\n", "- 1\n"],
)
def test_a_file_of_which_nothing_may_be_used_is_refused_with_the_way_around_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml:.*\S; without the file: --bootstrap HOST:PORT,\.\.\."):
        readable_part(written(tmp_path, text))


def test_who_never_started_anything_is_sent_to_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with use_connection(Connection()):
        bootstrap_of(None)
        assert with_hint("refused").endswith("this is the shipped local-3, which dledger up starts)")
        bootstrap_of(written(tmp_path, GOOD))
        assert with_hint("refused") == "refused (are the nodes up? dledger status; on this machine dledger up starts them)"
