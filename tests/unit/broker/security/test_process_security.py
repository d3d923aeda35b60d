"""What the block ``security`` makes of a process: mistakes in one line each, steps to TLS, what is told of certificates."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.security import Step, verifier_text
from broker.security.admission import CHECKS_WAITING, ClusterAdmission
from broker.security.certificate_watch import DAY_MS, CertificateWatch
from broker.security.setup import ProcessSecurity, process_security
from dledger_wire.errors import BusyError, ConfigError
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue, new_authority
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.scram import password_verifier
from dledger_wire.security.tls import TlsContexts, TlsSettings
from store.commands.security import Action, Resource
from store.state.security import SecurityState

ROOT = Path(__file__).resolve().parents[4]
N0, N1 = principal.node("shop", "g0", "n0"), principal.node("shop", "g0", "n1")
TLS = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
USERS = {"administrators": {"admin": verifier_text(password_verifier("admin", "x" * 12))}}


def cluster(folder: Path, security: dict[str, Any], *, host: str = "127.0.0.1") -> ClusterConfig:
    nodes = [{"id": f"n{number}", "address": f"{host}:{20001 + number}"} for number in range(3)]
    text = yaml.safe_dump({"cluster": "shop", "security": security, "groups": [{"name": "g0", "nodes": nodes}]})
    return ClusterConfig.parse(text, str(folder / "cluster.yaml"))


def made(folder: Path, *owners: Principal) -> None:
    authority = new_authority("shop")
    (folder / "ca.crt").write_bytes(authority.certificate)
    for owner in owners or (N0, N1):
        issue(authority, owner, ["127.0.0.1"]).write(str(folder / owner.name))


def mistake(folder: Path, security: dict[str, Any], own: Principal = N0, host: str = "127.0.0.1") -> str:
    with pytest.raises(ConfigError) as found:
        process_security(cluster(folder, security, host=host), own)
    assert "\n" not in found.value.message
    return found.value.message.replace(str(folder) + "/", "")


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "n0.key").unlink()
    assert mistake(tmp_path, {"tls": TLS}) == "n0.key: cannot read a private key: no such file or directory"
    (tmp_path / "ca.crt").unlink()
    assert mistake(tmp_path, {"tls": TLS}) == "ca.crt: expected certificates of authorities: no such file or directory"


def test_a_key_that_does_not_fit(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "n1.key").replace(tmp_path / "n0.key")
    assert mistake(tmp_path, {"tls": TLS}) == "n0.crt, n0.key: expected a certificate and its key: key values mismatch"


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "n0.key").chmod(0o644)
    found = mistake(tmp_path, {"tls": TLS})
    assert re.fullmatch(
        r"n0.key: a private key can be read by others \(mode 0644\); expected mode 0600(, or 0640 for a file of root)?: chmod 600 n0.key",
        found,
    )


def test_the_certificate_of_another_node(tmp_path: Path) -> None:
    made(tmp_path)
    found = mistake(tmp_path, {"tls": TLS | {"cert": "n1.crt", "key": "n1.key"}})
    text = "n1.crt: expected the certificate of node n0 of replica group g0 of cluster shop, found that of node n1 of replica group g0"
    assert found == f"{text} of cluster shop; write {{id}} for the id in security.tls.cert and key"


@pytest.mark.parametrize("other", [principal.node("other", "g0", "n0"), principal.node("shop", "g1", "n0"), principal.user("n0", "shop")])
def test_a_certificate_of_the_same_name_elsewhere(tmp_path: Path, other: Principal) -> None:
    made(tmp_path, other)
    assert f"found that of {other}" in mistake(tmp_path, {"tls": TLS})


def test_a_certificate_that_another_authority_signed(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "ca.crt").write_bytes(new_authority("shop").certificate)
    assert mistake(tmp_path, {"tls": TLS}) == "n0.crt: no authority in ca.crt signed it"


def test_while_authorities_change_both_are_trusted(tmp_path: Path) -> None:
    made(tmp_path)
    with (tmp_path / "ca.crt").open("ab") as file:
        file.write(new_authority("shop").certificate)
    process_security(cluster(tmp_path, {"tls": TLS}), N0)


def test_nodes_that_could_not_prove_anything(tmp_path: Path) -> None:
    assert mistake(tmp_path, {"tls": TLS | {"client_auth": "none"}}).endswith(
        "security: nodes cannot authenticate: expected cluster_secret_file, or tls with client_auth optional or required"
    )


def test_users_without_tls_or_before_it_is_the_only_way(tmp_path: Path) -> None:
    secret = {"cluster_secret_file": "secret"}
    assert mistake(tmp_path, secret | {"users": USERS}, host="10.0.0.1").endswith("users outside loopback need security.tls")
    found = mistake(tmp_path, {"tls": TLS | {"step": "use"}, "users": USERS})
    assert "expected no users before tls.step is only, got step use" in found
    assert "expected" in mistake(tmp_path, {"tls": TLS | {"step": "perhaps"}})


@pytest.mark.parametrize(
    ("step", "plaintext", "dials_tls", "proves", "gate"),
    [("offer", True, False, False, False), ("use", True, True, True, False), ("only", False, True, True, True)],
)
def test_steps_to_tls(tmp_path: Path, step: str, plaintext: bool, dials_tls: bool, proves: bool, gate: bool) -> None:
    made(tmp_path)
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    limits = {"connections": 77, "connectionsPerSource": 33}
    config = {"tls": TLS | {"step": step, "client_auth": "none"}, "cluster_secret_file": "secret", "limits": limits}
    security = process_security(cluster(tmp_path, config), N0)
    network = security.network
    assert (network.plaintext, network.dials_tls, network.credentials is not None) == (plaintext, dials_tls, proves)
    assert (security.admission is not None) == gate
    assert network.admission is not None
    assert (network.limits.connections, network.limits.per_source) == (77, 33)


@pytest.mark.parametrize(("client_auth", "expected"), [("none", None), ("optional", N0), ("required", N0)])
def test_a_certificate_that_others_look_at_counts_beside_the_secret(tmp_path: Path, client_auth: str, expected: Principal | None) -> None:
    made(tmp_path)
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    config = {"tls": TLS | {"client_auth": client_auth}, "cluster_secret_file": "secret"}
    assert process_security(cluster(tmp_path, config), N0).network.certified == expected


def test_while_users_are_introduced_only_administering_needs_one() -> None:
    users = SecurityState()
    introducing = ProcessSecurity(NetworkSecurity(), None, has_users=True, anonymous=True).access(lambda: users)
    required = ProcessSecurity(NetworkSecurity(), None, has_users=True).access(lambda: users)
    for action in Action:
        for resource in Resource:
            may = introducing.may(principal.ANONYMOUS, action, resource, "x")
            assert may == ((action, resource) != (Action.ADMINISTER, Resource.CLUSTER))
            assert not required.may(principal.ANONYMOUS, action, resource, "x")
            assert not introducing.may(principal.user("nobody"), action, resource, "x")


def test_so_many_passwords_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = ClusterAdmission("shop", administrators={}, secret=None, users_required=True, users=SecurityState)

    async def scenario() -> None:
        await admission._checking.acquire()
        waiting = [asyncio.create_task(admission.password_fits("10.0.0.1:1", "a", "x")) for _ in range(CHECKS_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await admission.password_fits("10.0.0.1:1", "a", "x")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        admission._checking.release()
        assert not await admission.password_fits("10.0.0.1:1", "a", "x")

    asyncio.run(scenario())


@dataclass
class Clock:
    now_ms: int = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def test_a_certificate_that_expires_is_told_of_once_a_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(tmp_path)
    contexts = TlsContexts(TlsSettings(str(tmp_path / "ca.crt"), str(tmp_path / "n0.crt"), str(tmp_path / "n0.key")))
    contexts.server()
    clock = Clock()
    watch = CertificateWatch(NetworkSecurity(contexts), Step.ONLY, clock)
    end_ms = contexts.expires_at_ms

    def told(days_left: float) -> list[str]:
        clock.now_ms = end_ms - int(days_left * DAY_MS)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            watch.look()
        return [record.message.removeprefix(f"{tmp_path}/n0.crt: its certificate ").partition(";")[0] for record in caplog.records]

    assert told(100) == []
    assert watch.warnings() == []
    assert told(29.9) == ["expires in 29 days"]
    assert watch.warnings() == ["its certificate expires in 29 days"]
    assert told(29.5) == []
    assert told(28.95) == []
    assert told(28.8) == ["expires in 28 days"]
    assert told(7.1) == ["expires in 7 days"]
    assert told(6.9) == ["expires in 6 days"]
    assert told(6.2) == []
    assert told(0.9) == ["expires in 21 hours"]
    (passed,) = told(-0.01)
    assert passed.startswith(f"{tmp_path}/n0.crt expired on ")
    assert passed.endswith(" UTC")
    assert told(-0.5) == []
    assert told(-1.5) == [passed]
    issue_again = new_authority("shop")
    for name, data in (("ca.crt", issue_again.certificate), ("n0.crt", b"junk")):
        (tmp_path / name).write_bytes(data)
    contexts.clock = lambda: float("inf")
    watch.look()
    assert any(text.startswith("new certificates cannot be used: ") for text in watch.warnings())


def test_plaintext_on_the_way_to_tls_is_told_of() -> None:
    network = NetworkSecurity(plaintext=True)
    network.counts["plaintext"] = 7
    (text,) = CertificateWatch(network, Step.USE, Clock()).warnings()
    assert text == "takes plaintext (security.tls.step use): 7 connections since the start"


def test_the_file_for_production_needs_its_files_and_nothing_else(tmp_path: Path) -> None:
    text = (ROOT / "cluster-configs" / "production-tls.yaml").read_text().replace("/etc/dledger", str(tmp_path))
    config = ClusterConfig.parse(text, "production-tls.yaml")
    owners = [principal.node("production", group.name, node.id) for group, node in config.all_nodes()]
    owners += [principal.name_server("production", server.id) for server in config.name_server_processes]
    made(tmp_path, *owners)
    (tmp_path / "cluster.secret").write_text("drawn at random, more or less")
    (tmp_path / "cluster.secret").chmod(0o600)
    assert len(owners) == 6
    for owner in owners:
        security = process_security(config, owner)
        assert security.network.tls is not None
        assert not security.network.plaintext
        assert security.admission is not None
        assert security.administrators == {"admin"}
    shipped = config.security.users.administrators["admin"]  # type: ignore[union-attr]
    assert shipped.stored_key == bytes(32)


@pytest.mark.parametrize("whose", ["another authority", "another node"])
def test_a_running_process_keeps_its_certificate_when_another_s_is_put_in_its_place(tmp_path: Path, whose: str) -> None:
    """As its next start would refuse it; every other process would."""
    made(tmp_path)
    tls = process_security(cluster(tmp_path, {"tls": TLS}), N0).network.tls
    assert tls is not None
    now_s = itertools.count(1e9, 10.0)  # each look is later than the time between two looks
    tls.clock = lambda: next(now_s)
    before = tls.client(), tls.server()
    kept = [(tmp_path / name).read_bytes() for name in ("n0.crt", "n0.key")]
    if whose == "another authority":
        pair = issue(new_authority("shop"), N0, ["127.0.0.1"])
        put(tmp_path, pair.certificate, pair.key)
    else:
        put(tmp_path, (tmp_path / "n1.crt").read_bytes(), (tmp_path / "n1.key").read_bytes())
    assert (tls.client(), tls.server()) == before
    assert "n0.crt: " in tls.trouble
    put(tmp_path, *kept)
    assert tls.client() is not before[0]
    assert not tls.trouble


def put(folder: Path, certificate: bytes, key: bytes) -> None:
    """Replace the files of n0, as operators do: by renaming."""
    for name, data in (("n0.key", key), ("n0.crt", certificate)):
        file = folder / f"{name}.new"
        file.touch(0o600)
        file.write_bytes(data)
        file.replace(folder / name)
