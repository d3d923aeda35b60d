"""The plays as texts: their syntax, that every variable is described, and habits that keep them idempotent and secrets private."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    assert found == 4


def test_plays_that_restart_take_one_host_at_a_time_and_all_stop_at_the_first_failure() -> None:
    for file in PLAYBOOKS:
        for play in loaded(file):
            roles = [task.get("ansible.builtin.import_role", {}) for task in tasks_in(play["tasks"])]
            assert play.get("serial") == (1 if {"name": "dledger_node", "tasks_from": "restart"} in roles else None), (
                f"{file}: {play['name']}"
            )
            assert play["gather_facts"] is False
