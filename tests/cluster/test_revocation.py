"""A secured cluster of two replica groups and a name server: what is revoked is over everywhere, and the audit log tells of everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger_client import Admin, Message, Producer
from dledger_client.admin.security import AccessRule
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import AuthenticationFailedError, DledgerError, PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.security.credentials import PasswordCredentials
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tcp.network import TcpNetwork
from tests.cluster.harness import Cluster
from tests.cluster.users import ADMIN, with_administrator
from tests.waiting import LIMIT_MS, wait_until

PROMISED_S = 2.0
FAST = {"name_service": {"registerInterval": "1s", "expireAfter": "5s"}}


@pytest.fixture
def secured(make_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two groups of three nodes, a name server, users with passwords; commands and clients are the administrator."""
    security = with_administrator(tmp_path, monkeypatch)
    cluster = make_cluster(nodes=3, groups=2, name_servers=1, settings=FAST | {"security": security})
    cluster.start()
    with administrator(cluster) as admin:
        admin.create_topic("t", queues=2, replica_groups=["g0", "g1"])
    return cluster


def administrator(cluster: Cluster) -> Admin:
    return Admin(cluster.bootstrap, timeout_ms=LIMIT_MS)


def make_user(admin: Admin, name: str, *actions: str) -> None:
    admin.create_user(name, name * 3)
    admin.change_rules([AccessRule(name, "allow", "topic", "t", action) for action in actions])  # type: ignore[arg-type]
    admin.change_rules([AccessRule(name, "allow", "group", "*", "read")])


class Connections:
    """Calls to each node and to the name server itself, as one user; ``ended_s`` says when the first was refused at an address, and why.

    ``slowest_s``: how long the machine held a call up at most."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._addresses = [node.address for _group, node in cluster.config.all_nodes()]
        self._addresses.append(cluster.config.name_server_processes[0].address)
        self._security = NetworkSecurity(credentials=PasswordCredentials(name, password=name * 3))
        self.rounds = dict.fromkeys(self._addresses, 0)
        self.slowest_s = 0.0
        self.ended_s: dict[str, float] = {}
        self.errors: dict[str, DledgerError] = {}
        threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True).start()

    async def _all(self) -> None:
        await asyncio.gather(*map(self._one, self._addresses))

    async def _one(self, address: str) -> None:
        channel = TcpNetwork(self._security).connect(address)
        try:
            while True:
                begun_s = time.monotonic()
                await methods.METADATA.call(channel, broker_pb2.MetadataRequest(), timeout_s=20)
                self.rounds[address] += 1
                await asyncio.sleep(0.02)
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        except DledgerError as error:
            self.errors[address], self.ended_s[address] = error, time.monotonic()
        finally:
            await channel.close()

    def all_worked(self) -> bool:
        return all(rounds > 2 for rounds in self.rounds.values())

    def all_ended(self) -> bool:
        return len(self.ended_s) == len(self._addresses)


def called(address: str, name: str) -> str:
    """Call one node; why it refused."""

    async def call() -> str:
        channel = TcpNetwork(NetworkSecurity(credentials=PasswordCredentials(name, password=name * 3))).connect(address)
        try:
            await methods.METADATA.call(channel, broker_pb2.MetadataRequest(), timeout_s=20)
        except DledgerError as error:
            return error.message
        finally:
            await channel.close()
        return ""

    return asyncio.run(call())


class Endless(threading.Thread):
    """Does ``work`` again and again until it fails; ``worked_s`` is when it did last, and ``error`` why it did not any more."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.rounds = 0
        self.error: DledgerError | None = None
        self.worked_s = 0.0
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._work()
                self.rounds, self.worked_s = self.rounds + 1, time.monotonic()
        except DledgerError as error:
            self.error = error


def records(cluster: Cluster, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cluster.cli_ok("audit", "tail", "-n", "1000", "--json", *options).splitlines()]


def test_a_deleted_user_and_a_removed_right_are_over_at_every_node(secured: Cluster) -> None:
    with administrator(secured) as admin:
        for name in ("alice", "bob", "dave"):
            make_user(admin, name, "read", "write")
        dave = Connections(secured, "dave")  # may come in all the time
        alice, alice_sends = Connections(secured, "alice"), Producer(secured.bootstrap, user="alice", password="alicealicealice")
        bob, bob_sends = Connections(secured, "bob"), Producer(secured.bootstrap, user="bob", password="bobbobbob")
        sends = [Endless(lambda one=one: (one.send(Message("t", b"x")), time.sleep(0.01))) for one in (alice_sends, bob_sends)]
        users = (alice, bob, dave)
        wait_until(lambda: all(user.all_worked() for user in users) and all(one.rounds > 2 for one in sends), "everybody works")
        dave.slowest_s = 0.0  # without the start
        admin.delete_user("alice")
        changed_s = time.monotonic()
        wait_until(lambda: alice.all_ended() and sends[0].error, "alice is refused everywhere", limit_s=60)
        assert max(*alice.ended_s.values(), sends[0].worked_s) - changed_s < PROMISED_S + dave.slowest_s
        assert {type(error) for error in alice.errors.values()} == {AuthenticationFailedError}
        assert not bob.errors
        assert sends[1].error is None
        admin.change_rules(removed=[AccessRule("bob", "allow", "topic", "t", "write")])
        changed_s = time.monotonic()
        wait_until(lambda: sends[1].error, "bob may not write any more", limit_s=60)
        assert sends[1].worked_s - changed_s < PROMISED_S + dave.slowest_s
        assert isinstance(sends[1].error, PermissionDeniedError)
        assert "user bob may not write topic t" in sends[1].error.message
        admin.update_user("bob", "another one")
        changed_s = time.monotonic()
        wait_until(bob.all_ended, "bob's connections are over everywhere", limit_s=60)
        assert max(bob.ended_s.values()) - changed_s < PROMISED_S + dave.slowest_s
        assert not dave.errors
        admin.update_user("bob", "bobbobbob")
        for one in (alice_sends, bob_sends):
            with contextlib.suppress(DledgerError):
                one.close()
    check_failover_restart_and_cut_off_node(secured)
    check_audit(secured)


def check_failover_restart_and_cut_off_node(cluster: Cluster) -> None:
    """Users and what was revoked are there after new leaders, at nodes that were killed, and at one that slept meanwhile."""
    with administrator(cluster) as admin:
        make_user(admin, "carol", "read", "write")
        sleeper = "n4"
        cluster.pause(sleeper)
        admin.delete_user("carol")
        for group in ("g0", "g1"):
            admin.transfer_leader(replica_group=group)
        cluster.resume(sleeper)
        for killed in ("n0", "n3"):
            cluster.kill(killed)
            cluster.start(killed, wait=False)
        cluster.wait_healthy()
        for _group, node in cluster.config.all_nodes():
            wait_until(lambda address=node.address: called(address, "bob") == "", f"{node.id} knows bob", limit_s=60)
            assert "carol: wrong name or password" in called(node.address, "carol")


def check_audit(cluster: Cluster) -> None:
    found = records(cluster)
    nodes = {node.id for _group, node in cluster.config.all_nodes()}
    changes = [(each["user"], each["action"], each.get("name", "")) for each in found if each["outcome"] == "OK"]
    for wanted in (("delete user", "alice"), ("delete user", "carol"), ("create topic", "t"), ("change rules", "")):
        assert (ADMIN, *wanted) in changes
    created = next(each for each in found if each["action"] == "put user" and each["name"] == "bob")
    assert created["after"]["has_password"] is True
    assert created["term"] > 0
    assert created["index"] > 0
    assert created["group"] == "g0"
    assert created["address"].startswith("127.0.0.1:")
    refused = records(cluster, "--denied")
    assert refused
    assert not any(each["allowed"] for each in refused)
    assert {each["node"] for each in refused} - nodes == {"ns0"}  # the name server keeps one, too
    assert {"denied", "wrong_credentials"} <= {each.get("reason") for each in refused}
    denied = next(each for each in refused if each.get("reason") == "denied" and each["user"] == "bob")
    assert (denied["action"], denied["resource"], denied["name"]) == ("write", "topic", "t")
    assert all(each["user"] == "bob" for each in records(cluster, "--by", "bob"))
    assert {each["node"] for each in records(cluster, "--node", "n1")} == {"n1"}
    # Nothing that checks a password, nor a password, is in what others may come to see.
    for node in (*nodes, "ns0"):
        folder = cluster.data / node
        text = "".join(file.read_text(encoding="utf-8") for file in (folder / "audit").iterdir())
        assert "stored" not in text
        assert "alicealice" not in text
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not [file for file in folder.rglob("*") if not file.is_symlink() and file.stat().st_mode & 0o077]
    # A node that is down is named; who may not administer the cluster sees nothing.
    cluster.kill("n5")
    result = cluster.cli("audit", "tail", "--json")
    assert result.returncode == 0
    assert "n5 did not answer, its records are missing" in result.stderr
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS, user="bob", password="bobbobbob") as bob, pytest.raises(PermissionDeniedError):
        bob.audit_log()
    text = cluster.cli_ok("audit", "tail", "-n", "5", "--action", "delete user")
    assert len(text.splitlines()) >= 2
    assert "delete user" in text
