"""Name servers in the cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.name_servers import PASSWORD_VARIABLE
from dledger_wire.errors import ConfigError

GROUPS = "groups:\n  - name: g0\n    nodes:\n      - {id: n0, address: 127.0.0.1:10911}\n"


def parse(servers: str, more: str = "") -> ClusterConfig:
    return ClusterConfig.parse(f"cluster: c\nname_servers:\n{servers}{GROUPS}{more}", "c.yaml")


def test_name_servers_with_ids_are_processes_of_their_own() -> None:
    config = parse("  - {id: ns0, address: 10.0.0.1:9876, rack: r1}\n  - {id: ns1, address: 10.0.0.2:60000}\n")
    assert [server.id for server in config.name_server_processes] == ["ns0", "ns1"]
    assert config.name_server("ns0").addresses == ("10.0.0.1:9876", "10.0.0.1:19876")
    assert config.name_server("ns1").server.quorum == "10.0.0.2:50000"
    assert config.bootstrap() == "10.0.0.1:9876,10.0.0.2:60000,127.0.0.1:10911"
    assert config.registration_addresses == ["10.0.0.1:9876", "10.0.0.2:60000"]
    assert config.node("n0").addresses == ("127.0.0.1:10911",)
    assert not config.node("n0").runs_name_service
    assert not config.name_server("ns0").is_local


def test_plain_addresses_are_addresses_of_nodes() -> None:
    config = parse("  - 127.0.0.1:9876\n")
    assert config.name_server_processes == []
    assert config.node("n0").addresses == ("127.0.0.1:10911", "127.0.0.1:9876")
    assert config.node("n0").runs_name_service
    assert config.registration_addresses == ["127.0.0.1:10911"]
    with pytest.raises(ConfigError, match="no name server with an id in this cluster file"):
        config.name_server("ns0")


def test_name_servers_listen_elsewhere_than_where_they_are_reached() -> None:
    elsewhere = "listen: '0.0.0.0:9876'"
    config = parse(
        f"  - {{id: ns0, address: 'h:30876', {elsewhere}}}\n"
        f"  - {{id: ns1, address: 'h:31876', quorum_address: 'h:31877', {elsewhere}, quorum_listen: '0.0.0.0:9877'}}\n"
        "  - {id: ns2, address: 'h:32876', quorum_address: 'h:32877', quorum_listen: '0.0.0.0:9877'}\n"
    )
    assert config.name_server("ns0").addresses == ("0.0.0.0:9876", "0.0.0.0:40876")
    assert config.name_server("ns1").addresses == ("0.0.0.0:9876", "0.0.0.0:9877")
    assert config.name_server("ns2").addresses == ("h:32876", "0.0.0.0:9877")
    assert config.registration_addresses == ["h:30876", "h:31876", "h:32876"]
    assert [server.quorum for server in config.name_server_processes] == ["h:40876", "h:31877", "h:32877"]


@pytest.mark.parametrize(
    ("servers", "more", "wanted"),
    [
        (
            "  - {id: ns0, address: 10.0.0.1:9876}\n  - 10.0.0.2:9876\n",
            "",
            "c.yaml:4: name_servers[1]: expected an id and an address as ns0 has, got 10.0.0.2:9876; plain addresses are served by nodes",
        ),
        (
            "  - {id: n0, address: 10.0.0.1:9876}\n",
            "",
            "c.yaml:3: name_servers[0].id: expected an id that no node and no other name server",
        ),
        ("  - {id: ns0, address: 127.0.0.1:10911}\n", "", "groups[0].nodes[0].address: expected an address that no other node has"),
        ("  - {id: ns0, address: 127.0.0.1:911}\n", "", "groups[0].nodes[0].address: expected an address that no other node has"),
        ("  - {address: 10.0.0.1:9876}\n", "", "c.yaml:3: name_servers[0].id: required setting is missing"),
        ("  - {id: ns0, address: nowhere}\n", "", "c.yaml:3: name_servers[0].address: expected host:port, got 'nowhere'"),
        ("  - 17\n", "", "c.yaml:3: name_servers[0]: expected"),
        (
            "  - {id: ns0, address: 10.0.0.1:9876}\n",
            "name_service: {expireAfter: 6s}\n",
            "c.yaml:8: name_service.expireAfter: expected expireAfter at least twice registerInterval, got 6000 ms and 5000 ms",
        ),
        ("  - {id: ns0, address: 10.0.0.1:9876}\n", "name_service: {registerinterval: 6s}\n", "did you mean registerInterval?"),
    ],
)
def test_mistakes_are_named_with_their_line(servers: str, more: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(servers, more)
    assert wanted in caught.value.message


def test_the_password_comes_from_the_environment_or_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    file = tmp_path / "password"
    server = parse("  - {id: ns0, address: 10.0.0.1:9876}\n", f"name_service: {{passwordFile: {file}}}\n").name_server("ns0")
    with pytest.raises(ConfigError, match="cannot read the password of the name servers: no such file"):
        server.password()
    file.write_text("\n", encoding="utf-8")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        server.password()
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="expected the password of the name servers of 1 to 1024 bytes in the first line"):
        server.password()
    file.write_text("secret\n", encoding="utf-8")
    assert server.password() == "secret"
    monkeypatch.setenv(PASSWORD_VARIABLE, "other")
    assert server.password() == "other"
    assert parse("  - {id: ns0, address: 127.0.0.1:9876}\n").name_server("ns0").is_local


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.9.9.9", True), ("localhost", True), ("'[::1]", True), ("127.example.com", False), ("10.0.0.1", False), ("'[::2]", False)],
)
def test_only_addresses_of_the_own_machine_need_no_password(host: str, local: bool) -> None:
    end = "'" if host.startswith("'") else ""
    assert parse(f"  - {{id: ns0, address: {host}:9876{end}}}\n").name_server("ns0").is_local is local
