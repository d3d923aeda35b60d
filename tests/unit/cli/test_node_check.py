"""What ``dledger node --check`` finds beside the cluster file itself."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.name_servers import PASSWORD_VARIABLE
from dledger_cli.commands.node import check_expiry, check_files, check_hosts
from dledger_wire.errors import ConfigError
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue, new_authority

TLS = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
SERVERS = [{"id": f"ns{number}", "address": f"127.0.0.1:{20801 + number}"} for number in range(3)]


@pytest.fixture(autouse=True)
def no_password_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


def secured(folder: Path, security: dict[str, Any] | None = None, **more: Any) -> ClusterConfig:
    authority = new_authority("shop")
    (folder / "ca.crt").write_bytes(authority.certificate)
    for owner in (principal.node("shop", "g0", "n0"), principal.name_server("shop", "ns0")):
        issue(authority, owner, ["127.0.0.1"]).write(str(folder / owner.name))
    groups = [{"name": "g0", "nodes": [{"id": "n0", "address": "127.0.0.1:20001"}]}]
    text = yaml.safe_dump({"cluster": "shop", "groups": groups, "security": {"tls": TLS} | (security or {})} | more)
    (folder / "cluster.yaml").write_text(text, encoding="utf-8")
    return ClusterConfig.load(str(folder / "cluster.yaml"))


@pytest.mark.parametrize("checked", ["n0", "ns0"])
def test_name_servers_of_a_secured_cluster_need_a_secret(tmp_path: Path, checked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = secured(tmp_path, name_servers=SERVERS)
    with pytest.raises(ConfigError, match=r"security: name servers need a secret among each other: set security\.cluster"):
        check_files(cluster, checked)
    monkeypatch.setenv(PASSWORD_VARIABLE, "given")
    check_files(cluster, checked)


@pytest.mark.parametrize("checked", ["n0", "ns0"])
def test_a_certificate_that_has_expired(tmp_path: Path, checked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = secured(tmp_path, name_servers=SERVERS[:1])
    check_expiry(cluster, checked)
    monkeypatch.setattr("dledger_wire.security.tls.expiry", lambda _path: datetime(2026, 1, 31, tzinfo=UTC))
    with pytest.raises(ConfigError, match=rf"/{checked}\.crt: expired on 2026-01-31; expected a certificate that is valid"):
        check_expiry(cluster, checked)


@pytest.mark.parametrize("checked", ["n0", "ns0"])
def test_a_certificate_without_a_host_at_which_others_reach_the_process(tmp_path: Path, checked: str) -> None:
    check_hosts(secured(tmp_path, name_servers=SERVERS[:1]), checked)
    owner = principal.node("shop", "g0", "n0") if checked == "n0" else principal.name_server("shop", "ns0")
    authority = new_authority("shop")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    for kind in ("crt", "key"):
        (tmp_path / f"{checked}.{kind}").unlink()
    issue(authority, owner, ["db.example.org"]).write(str(tmp_path / checked))
    cluster = ClusterConfig.load(str(tmp_path / "cluster.yaml"))
    with pytest.raises(
        ConfigError, match=rf"/{checked}\.crt: others that reach the process at 127\.0\.0\.1 would say: .* IP address mismatch"
    ):
        check_hosts(cluster, checked)


def test_a_name_server_alone_needs_none_and_is_checked(tmp_path: Path) -> None:
    cluster = secured(tmp_path, name_servers=SERVERS[:1])
    check_files(cluster, "n0")
    check_files(cluster, "ns0")
    (tmp_path / "ns0.key").unlink()
    check_files(cluster, "n0")
    with pytest.raises(ConfigError, match=r"ns0\.key: cannot read a private key"):
        check_files(cluster, "ns0")


def test_the_file_with_the_password_is_read_where_the_name_server_runs(tmp_path: Path) -> None:
    cluster = secured(tmp_path, name_servers=SERVERS, name_service={"passwordFile": str(tmp_path / "password")})
    check_files(cluster, "n0")
    with pytest.raises(ConfigError, match="cannot read the password of the name servers"):
        check_files(cluster, "ns0")
