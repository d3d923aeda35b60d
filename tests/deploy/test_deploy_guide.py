"""docs/guides/deploy/hosts.md, run as it stands on three hosts with systemd: no send fails in all that it does to them.

A block behind ``<!-- run -->`` runs on this machine, the ``admin`` of the page; ``run until: X`` again until its output has X;
``background`` runs to the end of the test; ``reboot HOST`` is done by the lab, since a host in namespaces cannot start itself again.  Only
addresses and the Python of the hosts differ from what is written, and pip finds packages in a folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.machines import Lab
from tests.machines.wheels import needed_wheels
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "deploy" / "hosts.md"
BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^>]+) -->\n)?```sh\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
HOSTS = ("db0", "db1", "db2")
# They would change this machine: it has no disk to spare, and one clock for all hosts.
NOT_RUN = ("mkfs.xfs", "systemd-timesyncd")
EXPOSURE = 1.5  # of systemd-analyze security: 0 is a service that may do nothing, 10 one that may do everything
NAME_WHAT_FAILED = """trap 'echo "exit $?: $BASH_COMMAND" >&2' ERR"""  # else a block of several commands ends without a word
# What the page says that a section prints.
SAYS = {
    "1. Look at the hosts": r"db2: Python 3\.\d+\.\d+, systemd \d+",
    "3. Install": r"(?m)^dledger \d",
    "4. Write the cluster file": r"(/etc/dledger/cluster.yaml: ok\s+){3}",
    "6. Start": r"StatusText=leader of replica group g0, term \d+\n(.*\n)*.*all 3 name servers know the whole cluster",
    "7. A topic, a user, messages": r"(?m)^1000$",
    "9. Web console": r"^200\n200\n200\n$",
    "10. A Spark job": r"orders: 1000 in 8 queues",
}
# Sends until it is told to stop; what it was told of each send is counted.
LOAD = """
import json, pathlib, sys, time
from dledger_client import Message, Producer
begun, stop = (pathlib.Path(name) for name in sys.argv[1:])
told = {"sent": 0, "failed": []}
with Producer("db0:9876,db1:9876,db2:9876", group="load", user="billing", password_file="billing.password", tls="certs/ca.crt") as producer:
    while not stop.exists():
        try:
            producer.send(Message("orders", b"%d" % told["sent"]))
            told["sent"] += 1
        except Exception as error:
            told["failed"].append(f"{type(error).__name__}: {error}")
        begun.touch()
        time.sleep(0.02)
print(json.dumps(told))
"""


class Admin:
    """Who follows the page: a folder like the checkout, ssh to the hosts, a shell in their network."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder / "admin"
        tools = folder / "bin"
        for made in (self.folder, tools):
            made.mkdir()
        for name in {path.split("/")[0] for path in _output("git", "ls-files").splitlines()} | {".git", ".venv"}:
            (self.folder / name).symlink_to(ROOT / name)
        config = folder / "ssh_config"
        config.write_text(
            f"User root\nIdentityFile {lab.ssh_key}\nStrictHostKeyChecking no\nUserKnownHostsFile {folder}/known\nLogLevel ERROR\n"
        )
        for tool in ("ssh", "scp"):
            program = _output("which", tool).strip()
            (tools / tool).write_text(f'#!/bin/sh\nexec {program} -F {config} "$@"\n')
            (tools / tool).chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(needed_wheels(("console",))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }
        python = self.lab["db0"].run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").stdout.strip()
        self.replaced = {"10.0.0.": "10.77.0.", "--python-version 3.11": f"--python-version {python}"}

    def written(self, text: str) -> list[str]:
        for here, there in self.replaced.items():
            text = text.replace(here, there)
        return ["bash", "-euo", "pipefail", "-c", f"{NAME_WHAT_FAILED}\ncd '{self.folder}'\n{text}"]

    def run(self, text: str) -> str:
        done = self.lab.run(self.written(text), env=self.environment, check=False, timeout_s=900)
        assert done.returncode == 0, f"{text}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def in_background(self, text: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        process = self.lab.start(["sh", "-c", f"cd {self.folder} && exec {text}"], env=self.environment, log=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Load:
    """A producer that sends all the time."""

    def __init__(self, admin: Admin, folder: Path) -> None:
        self._admin, self._log, self._begun, self._stop = admin, folder / "load.json", folder / "begun", folder / "stop"
        (folder / "load.py").write_text(LOAD)
        self._command = f"{sys.executable} {folder}/load.py {self._begun} {self._stop}"
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def sending(self) -> Iterator[None]:
        with self._admin.in_background(self._command, self._log) as self._process:
            wait_until(self._begun.exists, lambda: f"a message is sent: {self._log.read_text()}")
            yield

    def end(self) -> dict[str, Any]:
        """How many messages were acknowledged, and the error of each that was not."""
        assert self._process is not None
        self._stop.touch()
        assert self._process.wait(LIMIT_S) == 0, self._log.read_text()
        return dict(json.loads(self._log.read_text().splitlines()[-1]))


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(heading, [(mark, text)]) of each section of the page that has blocks."""
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        found = [(match["mark"] or "", match["text"]) for match in BLOCK.finditer(section)]
        if found:
            yield section.partition("\n")[0], found


@pytest.mark.timeout(1800)
def test_a_cluster_is_deployed_as_the_guide_says_and_survives_what_it_does_to_it(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", HOSTS) as lab, ExitStack() as running:
        admin = Admin(lab, tmp_path)
        load = Load(admin, tmp_path)
        for heading, blocks in sections():
            if heading.startswith("11."):
                running.enter_context(load.sending())
            said = "".join(_do(admin, mark, text, running) for mark, text in blocks)
            assert re.search(SAYS.get(heading, ""), said), f"{heading}:\n{said}"
            if heading == "6. Start":
                _check_units(lab)
        told = load.end()
        assert told["failed"] == []
        assert told["sent"] > 100
        assert "Fatal Python error: Aborted" in lab["db2"].journal("dledger@n2"), "the watchdog left no stack"


def test_only_what_would_change_the_machine_of_the_test_is_not_run() -> None:
    left = [text for _, blocks in sections() for mark, text in blocks if not mark]
    assert len(left) == len(NOT_RUN)
    assert all(name in text for name, text in zip(NOT_RUN, left, strict=True))


def _do(admin: Admin, mark: str, text: str, running: ExitStack) -> str:
    """Do what a block says; its output."""
    kind, _, rest = mark.partition(" ")
    if kind == "reboot":
        admin.lab[rest].reboot()
        return ""
    if kind == "background":
        running.enter_context(admin.in_background(text, admin.folder.parent / "background.log"))
        return ""
    if mark.startswith("run until: "):
        wanted, said = mark.removeprefix("run until: "), ""

        def found() -> bool:
            nonlocal said
            done = admin.lab.run(admin.written(text), env=admin.environment, check=False)
            said = done.stdout + done.stderr
            return wanted in said

        wait_until(found, lambda: f"{text} says {wanted}: {said}", pause_s=1.0)
        return said
    return admin.run(text) if mark else ""


def _check_units(lab: Lab) -> None:
    for number, name in enumerate(HOSTS):
        host = lab[name]
        for unit in (f"dledger@n{number}", f"dledger-nameserver@ns{number}"):
            host.run(f"systemd-analyze security --threshold={int(EXPOSURE * 10)} {unit}.service")
            shown = host.run(f"systemctl show --property=MainPID,ActiveState,WatchdogUSec,NRestarts {unit}").stdout
            found = dict(line.split("=", 1) for line in shown.splitlines())
            assert (found["ActiveState"], found["WatchdogUSec"], found["NRestarts"]) == ("active", "30s", "0"), shown
            status = host.path(f"/proc/{found['MainPID']}/status").read_text()
            assert re.search(r"CapEff:\s0+$", status, re.MULTILINE), status
            assert re.search(r"NoNewPrivs:\s1$", status, re.MULTILINE), status
            assert host.run(f"stat --format=%U /proc/{found['MainPID']}").stdout == "dledger\n"
