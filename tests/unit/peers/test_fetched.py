"""What the peers' benchmark fetches is whole or not there, and says why; nothing here uses the network."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.peers import fetched
from benchmarks.peers.__main__ import bytes_stored, parse
from benchmarks.peers.servers_kafka import settings as kafka_settings
from benchmarks.peers.servers_nats import settings as nats_settings

PORTS = {"1": (20001, 20002), "2": (20003, 20004), "3": (20005, 20006)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dledger-benchmarks"


def test_a_thing_is_made_once(cache: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("whole")

    for _ in range(2):
        assert (fetched.fetched("thing", make) / "file").read_text() == "whole"
    assert len(made) == 1
    assert [path.name for path in cache.iterdir()] == ["thing"]


def test_nothing_is_left_of_what_failed(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise fetched.UnavailableError("no")

    with pytest.raises(fetched.UnavailableError, match=r"^no$"):
        fetched.fetched("thing", fail)
    assert list(cache.iterdir()) == []


def test_a_missing_command_is_named() -> None:
    with pytest.raises(fetched.UnavailableError, match=r"^the command no-such-command is missing \(Debian: apt-get install its-package\)$"):
        fetched.need("no-such-command", "its-package")


def test_the_reason_is_the_first_error_of_a_tool() -> None:
    maven = "[INFO] Scanning\n\x1b[1m[ERROR] Could not find artifact a:b:jar:1\x1b[m\n[ERROR] Re-run Maven\n"
    assert fetched.reason(maven) == "[ERROR] Could not find artifact a:b:jar:1"
    assert fetched.reason("one\ntwo\n\n") == "two"
    assert fetched.reason("") == "it said nothing"


def test_the_pom_names_what_is_wanted() -> None:
    root = ElementTree.fromstring(fetched.pom(["org.apache.kafka:kafka_2.13:3.9.1", "a:b:1"]))  # noqa: S314  our own text
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    assert [each.text for each in root.findall(".//m:dependency/m:artifactId", space)] == ["kafka_2.13", "b"]
    assert [each.text for each in root.findall(".//m:dependency/m:version", space)] == ["3.9.1", "1"]


def test_nodes_know_each_other_and_their_own_ports() -> None:
    kafka = dict(line.split("=", 1) for line in kafka_settings("2", PORTS, Path("/data")).splitlines())
    assert kafka["controller.quorum.voters"] == "1@127.0.0.1:20002,2@127.0.0.1:20004,3@127.0.0.1:20006"
    assert kafka["listeners"] == "PLAINTEXT://127.0.0.1:20003,CONTROLLER://127.0.0.1:20004"
    assert kafka["min.insync.replicas"] == "2"
    nats = nats_settings("2", PORTS, Path("/data"))
    assert 'routes: ["nats://127.0.0.1:20002", "nats://127.0.0.1:20006"]' in nats
    assert 'listen: "127.0.0.1:20003"' in nats


def test_arguments() -> None:
    options = parse(["--only", "kafka,nats", "--sizes", "100,512-1536", "--messages", "7"])
    assert (options.only, options.sizes, options.messages) == (["kafka", "nats"], ("100", "512-1536"), 7)
    assert parse([]).only == ["dledger", "kafka", "nats"]


@pytest.mark.parametrize("wrong", [["--only", "rabbit"], ["--sizes", "4"], ["--messages", "0"]])
def test_wrong_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_the_room_that_is_needed_grows_with_what_is_stored() -> None:
    small, large = (bytes_stored(parse(["--messages", count, "--sizes", "1024", "--warm-up", "0"])) for count in ("1000", "2000"))
    assert small == 3 * 2 * 1000 * 1224
    assert large == 2 * small
