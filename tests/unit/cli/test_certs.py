"""``dledger certs create``: what it makes of a folder in which something is there already."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from broker.config.cluster_file import ClusterConfig
from broker.security.own_certificate import check_handshake
from dledger_cli.app import app
from dledger_wire.errors import ConfigError
from dledger_wire.security.certificates import KeyPair, new_authority
from dledger_wire.security.credentials import write_new
from dledger_wire.security.tls import TlsContexts, TlsSettings

CLUSTER = """\
cluster: shop
groups:
  - name: g0
    nodes:
      - {id: n0, address: "127.0.0.1:20911"}
"""


def create(folder: Path, *more: str) -> Result:
    file = folder / "cluster.yaml"
    file.write_text(CLUSTER, encoding="utf-8")
    return CliRunner().invoke(app, ["certs", "create", str(folder / "certs"), "--config", str(file), *more])


def made(folder: Path) -> None:
    """The files of n0 can be used."""
    certs = folder / "certs"
    contexts = TlsContexts(TlsSettings(str(certs / "ca.crt"), str(certs / "n0.crt"), str(certs / "n0.key")))
    contexts.client()
    contexts.server()
    assert not list(certs.glob("*.new"))


def test_commands_that_make_certificates_in_one_folder_at_once_make_them_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER, encoding="utf-8")
    command = [sys.executable, "-m", "dledger_cli", "certs", "create", str(tmp_path / "certs"), "--config", str(file)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, said
    assert sum("created n0" in text for text in said) == 1, said
    assert sum("nothing to create" in text for text in said) == 3, said
    made(tmp_path)


@pytest.mark.parametrize("lost", ["n0", "ca"])
def test_a_run_that_was_killed_between_a_key_and_its_certificate_is_gone_on_with(tmp_path: Path, lost: str) -> None:
    assert create(tmp_path).exit_code == 0
    key = (tmp_path / "certs" / f"{lost}.key").read_bytes()
    (tmp_path / "certs" / f"{lost}.crt").unlink()
    (tmp_path / "certs" / f"{lost}.crt.new").write_bytes(b"-----BEGIN")  # as far as it came
    again = create(tmp_path)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "certs" / f"{lost}.key").read_bytes() == key
    made(tmp_path)


def test_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    assert create(tmp_path).exit_code == 0
    (tmp_path / "certs" / "n0.crt").unlink()
    (tmp_path / "certs" / "n0.key").write_bytes(b"")
    again = create(tmp_path)
    assert isinstance(again.exception, ConfigError)
    assert "n0.key: expected a private key" in again.exception.message


def test_an_authority_with_another_key_issues_nothing(tmp_path: Path) -> None:
    assert create(tmp_path).exit_code == 0
    (tmp_path / "certs" / "n0.crt").unlink()
    (tmp_path / "certs" / "ca.key").write_bytes(new_authority("shop").key)
    again = create(tmp_path)
    assert isinstance(again.exception, ConfigError)
    assert "its key is not that of its certificate" in again.exception.message
    assert not (tmp_path / "certs" / "n0.crt").exists()


@pytest.mark.parametrize("host", ["b\u00fccher.example", "a b", "-x"])
def test_a_host_that_no_certificate_can_name_is_wrong_usage(tmp_path: Path, host: str) -> None:
    result = create(tmp_path, "--hosts", f"db.example.org,{host}")
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("host", ["db.example.org", "*.example.org", "10.0.0.1", "::1"])
def test_hosts_that_certificates_can_name(tmp_path: Path, host: str) -> None:
    assert create(tmp_path, "--hosts", host).exit_code == 0
    made(tmp_path)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    write_new(str(tmp_path / "n0.key"), b"key")
    with pytest.raises(FileExistsError, match=r"n0\.key"):
        KeyPair(b"c", b"k").write(str(tmp_path / "n0"))
    assert [file.name for file in tmp_path.iterdir()] == ["n0.key"]
    assert (tmp_path / "n0.key").read_bytes() == b"key"


def test_a_file_beside_one_that_is_there_stays(tmp_path: Path) -> None:
    """A certificate that is about to take the place of the one in use, as the guide has it."""
    assert create(tmp_path).exit_code == 0
    waiting = tmp_path / "certs" / "n0.key.new"
    waiting.write_bytes(b"next")
    with pytest.raises(FileExistsError, match=r"n0\.key'"):
        write_new(str(tmp_path / "certs" / "n0.key"), b"key")
    assert waiting.read_bytes() == b"next"


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)  # as FAT does
    assert create(tmp_path).exit_code == 0
    made(tmp_path)
    with pytest.raises(FileExistsError, match=r"n0\.key"):
        write_new(str(tmp_path / "certs" / "n0.key"), b"key")


def test_a_certificate_has_every_host_at_which_others_reach_the_process(tmp_path: Path) -> None:
    """The address of a name server without an id, which a node opens, among them."""
    nodes = [{"id": "n0", "address": "10.0.0.1:20911", "listen": "0.0.0.0:20911", "replica_address": "10.1.0.1:20912"}]
    nodes += [{"id": f"n{number}", "address": f"10.0.0.{number + 1}:20911"} for number in (1, 2)]
    file = {"cluster": "shop", "name_servers": ["db0.example.org:9876"], "groups": [{"name": "g0", "nodes": nodes}]}
    cluster = ClusterConfig.parse(yaml.safe_dump(file), str(tmp_path / "cluster.yaml"))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
    result = CliRunner().invoke(app, ["certs", "create", str(tmp_path / "certs"), "--config", str(tmp_path / "cluster.yaml")])
    assert result.exit_code == 0, result.output
    reached = {"n0": ["10.0.0.1", "10.1.0.1", "db0.example.org"], "n1": ["10.0.0.2"]}
    for name, hosts in reached.items():
        assert [address.rpartition(":")[0] for address in cluster.reached_at(name)] == hosts
        path = str(tmp_path / "certs" / name)
        tls = TlsContexts(TlsSettings(str(tmp_path / "certs" / "ca.crt"), f"{path}.crt", f"{path}.key"))
        for host in hosts:
            check_handshake(tls, host)
        with pytest.raises(ConfigError, match=r"not valid for '10\.0\.0\.3'"):
            check_handshake(tls, "10.0.0.3")
