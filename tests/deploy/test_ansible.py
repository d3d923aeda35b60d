"""The playbooks on hosts of their own: deployed, changed again without a change, upgraded under load, a disk lost, a replica group added.

Every test goes on from where the one before it left the cluster, as an operator does; three hosts are booted once, and a fourth for the
replica group.  A play that is refused is compared with what hosts had before.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger_wire.feature_levels import MAX_LEVEL, release_of
from tests.machines import Lab, wheelhouse
from tests.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.plays, pytest.mark.timeout(2400)]

ANSIBLE = Path(__file__).resolve().parents[2] / "cluster-configs" / "ansible"
PROGRAMS = Path(sys.executable).parent
OLD, NEW = "0.9.1", "0.9.2"
MEMBERS = ("db0", "db1", "db2")
PLAY_S = 1200.0
# Sends numbers until it is told to stop, at most 50 a second: all are read at the end.  Says how many were acknowledged, and what was not.
PRODUCER = """
import json, os, sys, time
from dledger_client import Message, Producer
stop, topic, bootstrap = sys.argv[1:]
acknowledged, failed = 0, []
with Producer(bootstrap, group="load") as producer:
    while not os.path.exists(stop):
        try:
            producer.send(Message(topic, b"%d" % acknowledged))
            acknowledged += 1
        except Exception as error:
            failed.append(repr(error))
        if acknowledged == 1:
            print("sends", flush=True)
        time.sleep(0.02)
print(json.dumps({"acknowledged": acknowledged, "failed": failed}))
"""


class Operator:
    """Whoever calls the plays: an inventory of its own, and the folder on the controller that they fill."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.inventory = folder / "inventory"
        self.controller = self.inventory / "dledger"
        (self.inventory / "group_vars").mkdir(parents=True)
        self._sockets = tempfile.TemporaryDirectory(prefix="ssh")  # short: a socket's path has at most 108 bytes
        self.hosts: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(lab.ssh_key),
            "dledger_cluster": "lab",
            "dledger_version": OLD,
            "dledger_wheels": str(folder / "wheels" / "{{ dledger_version }}"),
            "dledger_administrator": "admin",
            "dledger_metrics_address": "0.0.0.0:9464",
            "dledger_name_server_metrics_address": "0.0.0.0:9465",
            "dledger_settings": {"store": {"mappedFileSizeCommitLog": "64MiB"}},
        }
        self.environment = {
            "PATH": os.pathsep.join([str(PROGRAMS), os.environ["PATH"]]),
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_HOME": str(folder / "home"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": self._sockets.name,
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "DLEDGER_CONFIG": str(self.controller / "cluster.yaml"),
            "DLEDGER_USER": "admin",
            "DLEDGER_PASSWORD_FILE": str(self.controller / "admin.password"),
        }

    def has(self, host: str, **variables: str) -> None:
        """Put a host into the inventory."""
        self.hosts[host] = {"ansible_host": self.lab[host].address, **variables}

    def play(self, name: str, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump({"dledger": {"hosts": self.hosts}}), encoding="utf-8")
        (self.inventory / "group_vars" / "dledger.yml").write_text(yaml.safe_dump(self.settings), encoding="utf-8")
        command = [str(PROGRAMS / "ansible-playbook"), "-i", str(self.inventory), str(ANSIBLE / name), *options]
        return self.lab.run(command, check=check, env=self.environment, timeout_s=PLAY_S)

    def refused(self, name: str, *options: str) -> str:
        """Play it; it has to fail, and to leave hosts and running processes as they are."""
        before = self.told_by_hosts()
        done = self.play(name, *options, check=False)
        assert done.returncode != 0, done.stdout
        assert self.told_by_hosts() == before
        return " ".join((done.stdout + done.stderr).split())  # lines are broken where they are long

    def told_by_hosts(self) -> dict[str, str]:
        """What plays change of a host: programs, configuration, units, processes."""
        command = (
            "ls -l /opt/dledger; sha256sum /etc/dledger/* /etc/systemd/system/dledger*; "
            "systemctl show --property=Id,MainPID,ActiveState,UnitFileState 'dledger*'"
        )
        return {host: self.lab[host].run(command, check=False).stdout for host in self.hosts}

    def dledger(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.lab.run([str(PROGRAMS / "dledger"), *arguments], check=check, env=self.environment)

    def groups(self) -> dict[str, dict[str, Any]]:
        told = json.loads(self.dledger("status", "--json", check=False).stdout)
        return {group["name"]: group for group in told["groups"]}

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["id"]: node for group in self.groups().values() for node in group["nodes"]}

    def close(self) -> None:
        self._sockets.cleanup()


def changes(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Host -> how many tasks changed something there."""
    found = re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+) ", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return {host: int(number) for host, number in found}


@pytest.fixture(scope="module")
def operator(module_folder: Path) -> Iterator[Operator]:
    for version in (OLD, NEW):
        wheelhouse(module_folder / "wheels" / version, version=version)
    with Lab(module_folder / "lab", [*MEMBERS, "db3"]) as lab:
        operator = Operator(lab, module_folder)
        for number, host in enumerate(MEMBERS):
            names = {"dledger_id": f"n{number}", "dledger_name_server_id": f"ns{number}"}
            operator.has(host, **names, dledger_replica_group="g0", dledger_rack=f"r{number}")
        operator.play("deploy.yml")
        yield operator
        operator.close()


def test_a_deployed_cluster_takes_messages_and_a_second_run_changes_nothing(operator: Operator) -> None:
    assert {node["version"] for node in operator.nodes().values()} == {OLD}
    operator.dledger("topic", "create", "orders", "--queues", "4")
    operator.dledger("produce", "orders", "--count", "20")
    told = operator.dledger("consume", "orders", "--group", "readers", "--from", "first", "--max", "20", "--json").stdout
    assert len(told.splitlines()) == 20
    again = operator.play("deploy.yml")
    assert changes(again) == dict.fromkeys(MEMBERS, 0)
    assert "[WARNING]" not in again.stdout + again.stderr
    secret = operator.lab["db0"].run("stat --format='%U %a' /etc/dledger/*.key /etc/dledger/cluster.secret").stdout.split("\n")
    assert set(filter(None, secret)) == {"dledger 600"}
    assert "ca.key" not in operator.lab["db0"].run("ls /etc/dledger").stdout


def test_a_changed_setting_restarts_one_node_after_the_other(operator: Operator) -> None:
    before = operator.nodes()
    operator.settings["dledger_settings"]["broker"] = {"defaultTopicQueueNums": 6}
    done = operator.play("deploy.yml")
    after = operator.nodes()
    assert {node: after[node]["pid"] != before[node]["pid"] for node in before} == dict.fromkeys(before, True), (before, after, done.stdout)
    leader = next(host for host, names in operator.hosts.items() if before[names["dledger_id"]]["role"] == "leader")
    restarted = re.findall(r"TASK \[dledger_node : Restart the node\] \*+\nchanged: \[(\S+)\]", done.stdout)
    assert restarted[-1] == leader
    assert sorted(restarted) == sorted(MEMBERS)


def test_nothing_is_touched_while_a_member_is_down(operator: Operator) -> None:
    operator.lab["db2"].run("systemctl stop dledger@n2")
    told = operator.refused("rolling-upgrade.yml", "-e", f"dledger_version={NEW}")
    assert "under-replicated: g0/n2: a member that does not answer" in told, told  # as upgrade-check says it
    assert "g0/n0: must not stop" in told, told
    told = operator.refused("deploy.yml", "-e", f"dledger_version={NEW}")
    assert f"runs another version than {NEW}; change it with rolling-upgrade.yml" in told, told
    operator.lab["db2"].run("systemctl start dledger@n2")
    operator.dledger("status", "--until", "healthy", "--timeout", str(LIMIT_S))
    of_member = operator.hosts.pop("db2")
    operator.has("db3", dledger_id="n3", dledger_replica_group="g0")
    told = operator.refused("replace-node.yml", "-e", "dledger_replace=db3", "-e", "dledger_replaces=n2")
    assert "n2 is in sync" in told, told
    del operator.hosts["db3"]
    operator.hosts["db2"] = of_member


def test_an_upgrade_under_load_loses_no_send_and_goes_back(operator: Operator) -> None:
    operator.dledger("topic", "create", "load", "--queues", "4")
    operator.dledger("status", "--until", "healthy", "--timeout", str(LIMIT_S))
    log, stop = operator.folder / "producer.log", operator.folder / "stop"
    bootstrap = ",".join(f"{operator.lab[host].address}:10911" for host in MEMBERS)
    secured = {"DLEDGER_TLS_CA": str(operator.controller / "ca.crt"), **operator.environment}
    producer = operator.lab.start([sys.executable, "-c", PRODUCER, str(stop), "load", bootstrap], env=secured, log=log)
    try:
        wait_until(lambda: "sends" in log.read_text(), lambda: log.read_text())
        operator.play("rolling-upgrade.yml", "-e", f"dledger_version={NEW}")
        assert {node["version"] for node in operator.nodes().values()} == {NEW}
        operator.settings["dledger_version"] = NEW
        assert changes(operator.play("rolling-upgrade.yml")) == dict.fromkeys(MEMBERS, 0)
        operator.play("rolling-upgrade.yml", "-e", f"dledger_version={OLD}")
        assert {node["version"] for node in operator.nodes().values()} == {OLD}
    finally:
        stop.touch()
        producer.wait(LIMIT_S)
    told = json.loads(log.read_text().splitlines()[-1])
    assert told["failed"] == []
    sent = told["acknowledged"]
    read = operator.dledger("consume", "load", "--group", "count", "--from", "first", "--max", str(sent), "--idle-exit", "60").stdout
    assert sorted(map(int, read.split())) == list(range(sent))
    operator.settings["dledger_version"] = OLD


@pytest.mark.skipif(MAX_LEVEL == 0, reason="this release has one feature level: nothing can be switched on")
def test_no_version_is_installed_that_cannot_do_what_is_switched_on(operator: Operator) -> None:
    operator.dledger("cluster", "upgrade-finish", "--yes")
    told = operator.refused("rolling-upgrade.yml", "-e", "dledger_version=0.1.0")
    assert f"g0 is at feature level {MAX_LEVEL}, which needs dledger {release_of(MAX_LEVEL)} or newer" in told, told


def test_a_host_with_a_lost_disk_is_replaced(operator: Operator) -> None:
    host = operator.lab["db2"]
    host.run(
        "systemctl stop 'dledger*'; rm -rf /opt/dledger /etc/dledger /var/lib/dledger /etc/systemd/system/dledger*; systemctl daemon-reload"
    )
    operator.play("replace-node.yml", "-e", "dledger_replace=db2")
    group = operator.groups()["g0"]
    assert sorted(group["replicas"]["in_sync"]) == ["n0", "n1", "n2"]
    assert sorted(group["voters"]) == ["n0", "n1", "n2"]
    assert changes(operator.play("replace-node.yml", "-e", "dledger_replace=db2")) == dict.fromkeys(MEMBERS, 0)
    assert changes(operator.play("deploy.yml")) == dict.fromkeys(MEMBERS, 0)


def test_a_group_is_added_on_further_hosts(operator: Operator) -> None:
    before = operator.nodes()
    operator.has("db3", dledger_id="m0", dledger_replica_group="g1")
    assert "replace-node.yml" in operator.refused("deploy.yml")
    operator.play("add-group.yml", "-e", "dledger_add_group=g1")
    after = operator.nodes()
    assert {node: after[node]["pid"] for node in before} == {node: before[node]["pid"] for node in before}
    operator.dledger("topic", "create", "clicks", "--queues", "4")
    operator.dledger("produce", "clicks", "--count", "50")
    assert "g1" in operator.dledger("topic", "describe", "clicks").stdout
    assert set(changes(operator.play("add-group.yml", "-e", "dledger_add_group=g1")).values()) == {0}
    assert set(changes(operator.play("deploy.yml")).values()) == {0}


def test_a_backup_is_taken_and_checked(operator: Operator) -> None:
    assert "expected -e dledger_backup_to" in operator.refused("backup.yml")
    place = operator.folder / "backups"
    operator.play("backup.yml", "-e", f"dledger_backup_to={place}")
    told = json.loads(operator.dledger("backup", "--to", str(place), "--list", "--json").stdout)
    assert len(told["backups"]) == 1
