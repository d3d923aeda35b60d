"""The plays as texts: their syntax, that every variable is described, and habits that keep them idempotent and secrets private."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.rocketmq import remoting_name_servers
from broker.config.security import verifier_text
from dledger_wire.security.scram import fits, hashed_password, password_verifier

ANSIBLE = Path(__file__).resolve().parents[2] / "cluster-configs" / "ansible"
ROLES = ANSIBLE / "roles"
PLAYBOOKS = sorted(ANSIBLE.glob("*.yml"))
TASK_FILES = sorted(ROLES.glob("*/tasks/*.yml"))
VARIABLE = re.compile(r"\bdledger_[a-z_]+")
KEYWORDS = {
    *("name", "when", "register", "vars", "loop", "loop_control", "run_once", "delegate_to", "become", "environment", "no_log", "block"),
    *("changed_when", "failed_when", "until", "retries", "delay", "check_mode"),
}


def loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def tasks_in(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        yield from tasks_in(task.get("block", []))


def every_task() -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in TASK_FILES:
        yield from ((file, task) for task in tasks_in(loaded(file)))
    for file in PLAYBOOKS:
        yield from ((file, task) for play in loaded(file) for task in tasks_in(play["tasks"]))


def module_of(task: dict[str, Any]) -> str:
    (module,) = (key for key in task if key not in KEYWORDS) if "block" not in task else ("block",)
    return module


def specified() -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = loaded(ROLES / "dledger_common" / "meta" / "argument_specs.yml")["argument_specs"]["main"][
        "options"
    ]
    return options


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda file: file.stem)
def test_a_play_is_read_without_an_error(playbook: Path) -> None:
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "--syntax-check", str(playbook), "-e", "dledger_replace=db2"]
    done = subprocess.run(command, cwd=ANSIBLE, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


def test_every_setting_is_described_and_has_a_default() -> None:
    options = specified()
    defaults = loaded(ROLES / "dledger_common" / "defaults" / "main.yml")
    assert set(defaults) == {name for name, option in options.items() if not option.get("required")}
    for name, option in options.items():
        assert set(option) <= {"type", "elements", "description", "required"}, name
        assert option["description"].endswith("."), name
        kind = {"str": str, "path": str, "int": int, "bool": bool, "list": list, "dict": dict}[option["type"]]
        assert type(defaults.get(name, kind())) is kind, name


def test_every_variable_is_a_setting_or_made_by_the_plays() -> None:
    made = set(loaded(ROLES / "dledger_common" / "vars" / "main.yml"))
    for _, task in every_task():
        made |= set(task.get("vars", {})) | set(task.get("ansible.builtin.set_fact", {}))
        made |= {task["register"]} if "register" in task else set()
        made |= {group for group in [task.get("ansible.builtin.add_host", {}).get("groups")] if group}
    roles = {folder.name for folder in ROLES.iterdir()}
    for file in [*PLAYBOOKS, *TASK_FILES, *ROLES.glob("*/templates/*"), *ROLES.glob("*/vars/*.yml")]:
        used = set(VARIABLE.findall(file.read_text(encoding="utf-8")))
        assert used <= made | set(specified()) | roles, file


def test_the_example_sets_nothing_unknown() -> None:
    hosts = loaded(ANSIBLE / "inventory" / "hosts.yml")["dledger"]["hosts"]
    given = {name for host in hosts.values() for name in host} | set(loaded(ANSIBLE / "inventory" / "group_vars" / "dledger.yml"))
    assert given - {"ansible_host"} <= set(specified())


def test_tasks_have_names_say_when_they_change_something_and_call_no_shell() -> None:
    for file, task in every_task():
        where = f"{file.relative_to(ANSIBLE)}: {task.get('name')}"
        module = module_of(task)
        assert re.match("[A-Z]", task.get("name", "")), where
        assert module == "block" or module.startswith("ansible.builtin."), where
        assert module not in ("ansible.builtin.shell", "ansible.builtin.raw"), where
        if module == "ansible.builtin.command":
            assert "changed_when" in task or "creates" in task[module], where
        if module in ("ansible.builtin.copy", "ansible.builtin.template", "ansible.builtin.file") and task[module].get("state") not in (
            "absent",
            "link",
        ):
            assert task[module]["mode"], where


def test_secrets_are_private_and_not_shown() -> None:
    found = 0
    for file, task in every_task():
        text = yaml.safe_dump(task)
        if "block" in task or not re.search(r"cluster\.secret|\.key'|dledger_made_administrator|security, init|security\.yaml", text):
            continue
        found += 1
        assert task.get("no_log") is True, f"{file}: {task['name']}"
        assert task.get("ansible.builtin.copy", {}).get("mode", "0600") == "0600", f"{file}: {task['name']}"
    assert found == 5


def test_plays_that_restart_take_one_host_at_a_time_and_all_stop_at_the_first_failure() -> None:
    for file in PLAYBOOKS:
        for play in loaded(file):
            roles = [task.get("ansible.builtin.import_role", {}) for task in tasks_in(play["tasks"])]
            assert play.get("serial") == (1 if {"name": "dledger_node", "tasks_from": "restart"} in roles else None), (
                f"{file}: {play['name']}"
            )
            assert play["gather_facts"] is False


CONTROLLER_PLAY = """
- hosts: dledger
  gather_facts: false
  tasks:
    - name: Prepare the controller
      ansible.builtin.import_role:
        name: dledger_cluster
        tasks_from: controller
"""
HOSTS: dict[str, Any] = {
    "dledger": {
        "hosts": {"db0": {"dledger_id": "n0", "dledger_replica_group": "g0", "dledger_address": "10.0.0.1"}},
        "vars": {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "dledger_cluster": "shop",
            "dledger_version": "0.9",
            "dledger_index": "none",
            "dledger_administrator": "admin",
            "dledger_command": str(Path(sys.executable).parent / "dledger"),
        },
    }
}


def prepared(play: Path, inventory: Path) -> None:
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), str(play)]
    done = subprocess.run(
        command, cwd=ANSIBLE, env=os.environ | {"ANSIBLE_ROLES_PATH": str(ROLES)}, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ports_for_rocketmqs_clients_are_those_of_the_inventory(tmp_path: Path) -> None:
    """With the line that stands as a comment in the example, and in the example files for hosts."""
    (line,) = re.findall(r"^  # (rocketmq: \{.*\})", (ANSIBLE / "inventory" / "group_vars" / "dledger.yml").read_text(), re.MULTILINE)
    for name in ("hosts-3.yaml", "production-tls.yaml"):
        assert f"\n# {line}\n" in (ANSIBLE.parent / name).read_text(encoding="utf-8")
    play, inventory = tmp_path / "play.yml", tmp_path / "hosts.yml"
    play.write_text(CONTROLLER_PLAY)
    hosts = {"db0": HOSTS["dledger"]["hosts"]["db0"] | {"dledger_name_server_id": "ns0"}}
    variables = HOSTS["dledger"]["vars"] | {"dledger_settings": yaml.safe_load(line)}
    inventory.write_text(yaml.safe_dump({"dledger": {"hosts": hosts, "vars": variables}}))
    prepared(play, inventory)
    made = ClusterConfig.load(str(tmp_path / "dledger" / "cluster.yaml"))
    assert [made.addresses_of(name)[-1] for name in ("n0", "ns0")] == ["0.0.0.0:10921", "0.0.0.0:9877"]
    assert remoting_name_servers(made) == ["10.0.0.1:9877", "10.0.0.1:10921"]


@pytest.mark.parametrize("left", [["admin.password.new"], ["admin.password"], ["admin.password.new", "security.yaml"]])
def test_a_controller_that_was_left_halfway_is_prepared_again(tmp_path: Path, left: list[str]) -> None:
    """What a play leaves that ends between the administrator's password and what checks it."""
    play, inventory, folder = tmp_path / "play.yml", tmp_path / "hosts.yml", tmp_path / "dledger"
    play.write_text(CONTROLLER_PLAY)
    inventory.write_text(yaml.safe_dump(HOSTS))
    folder.mkdir(mode=0o700)
    verifier = password_verifier("admin", "of an earlier play")
    for name in left:
        text = (
            f"security: {{users: {{administrators: {{admin: '{verifier_text(verifier)}'}}}}}}"
            if name.endswith("yaml")
            else "of an earlier play\n"
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    prepared(play, inventory)
    password = (folder / "admin.password").read_text().strip()
    security = ClusterConfig.load(str(folder / "cluster.yaml")).security
    assert security is not None
    assert security.users is not None
    verifier = security.users.administrators["admin"]
    assert fits(verifier, hashed_password("admin", password, verifier.salt))
    assert (password == "of an earlier play") == ("security.yaml" in left)
    assert not (folder / "admin.password.new").exists()
    assert stat.S_IMODE((folder / "admin.password").stat().st_mode) == 0o600
    kept = [file.read_text() for file in folder.glob("admin.password.*~")]
    assert kept == (["of an earlier play\n"] if left == ["admin.password"] else []), "it may be the password of a cluster that runs"
