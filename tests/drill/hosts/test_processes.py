"""Processes of machines: they end with the process that started them, not with the thread, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from dledger_drill.hosts.capabilities import probe
from dledger_drill.hosts.network import Network
from dledger_drill.hosts.processes import MachineProcess
from dledger_wire.errors import DeadlineExceededError
from tests import needs
from tests.cluster.harness import ROOT
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.cluster

SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
OWNER = """
import json, os, sys
from dledger_drill.hosts.network import Network
from dledger_drill.hosts.processes import MachineProcess
network = Network()
sleeper = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
pids = [network.links.pid]
for name in ("a", "b"):
    network.add(name)
    pids.append(MachineProcess(sleeper, namespace=network.namespace(name)).pid)
pids.append(MachineProcess(sleeper).pid)
spaces = [os.fstat(network.namespace(name)).st_ino for name in ("a", "b")]
print(json.dumps({"pids": pids, "ip": network.ip("drill"), "spaces": spaces}), flush=True)
sys.stdin.read()
"""
# The interpreter may lie where only root reads, so everything is loaded first.
WITHOUT_ROOT = """
import os, sys
from dledger_drill.hosts import preload
from dledger_drill.hosts.capabilities import probe
preload.missing()
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
found = probe()
print(found.network, found.loop_disks)
print("; ".join(f"{need}: {why}" for need, why in found.why_not.items()))
"""
NO_RECEIVER = 65534


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # whoever inherits it may be slow to take its exit status
    except psutil.NoSuchProcess:
        return False


def needs_network() -> None:
    capabilities = probe()
    if not capabilities.network:
        needs.lacking("; ".join(capabilities.why_not.values()))


def namespaces_in_use() -> set[int]:
    found = set()
    for process in psutil.process_iter():
        try:
            found.add(os.stat(f"/proc/{process.pid}/ns/net").st_ino)
        except OSError:  # ended meanwhile
            continue
    return found


def own_addresses() -> set[str]:
    return {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}


def test_a_process_is_paused_resumed_and_ended() -> None:
    process = MachineProcess(SLEEPER)
    try:
        process.pause()
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "the pause")
        process.resume()
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, "the end of the pause")
        with pytest.raises(DeadlineExceededError, match="still runs"):
            process.wait(0.01)
        process.pause()
        assert process.terminate(LIMIT_S) == -signal.SIGTERM
        process.kill()  # nothing is left to kill
        assert process.poll() == -signal.SIGTERM
    finally:
        process.kill()


def test_a_process_outlives_the_thread_that_asked_for_it() -> None:
    made: list[MachineProcess] = []
    thread = threading.Thread(target=lambda: made.append(MachineProcess(SLEEPER)))
    thread.start()
    thread.join()
    (process,) = made
    try:
        with pytest.raises(DeadlineExceededError):
            process.wait(0.5)
    finally:
        process.kill()


def test_a_command_that_is_not_there_is_said_in_the_log(tmp_path: Path) -> None:
    assert MachineProcess(["/no/such/program"], log=tmp_path / "log").wait(LIMIT_S) == 1
    assert (tmp_path / "log").read_text() == "/no/such/program: No such file or directory\n"


def test_children_of_a_process_are_killed_with_it(tmp_path: Path) -> None:
    script = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read(); input()"
    log = tmp_path / "log"
    process = MachineProcess([sys.executable, "-c", script, *SLEEPER], log=log, stdin=subprocess.PIPE)
    try:
        child = int(wait_until(lambda: log.read_text().strip(), "the child"))
        assert running(child)
    finally:
        process.kill()
        assert process.popen.stdin is not None
        process.popen.stdin.close()
    wait_until(lambda: not running(child), "the end of the child")


def test_nothing_is_left_of_an_owner_that_was_killed() -> None:
    needs_network()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as owner:
        try:
            assert owner.stdout is not None
            made: dict[str, Any] = json.loads(owner.stdout.readline())
            assert all(running(pid) for pid in made["pids"])
            assert made["ip"] in own_addresses()
            wait_until(lambda: set(made["spaces"]) <= namespaces_in_use(), "a process in each namespace")
        finally:
            owner.kill()
    wait_until(lambda: not any(running(pid) for pid in made["pids"]), "the end of its processes")
    wait_until(lambda: made["ip"] not in own_addresses(), "the end of its device")
    wait_until(lambda: not set(made["spaces"]) & namespaces_in_use(), "the end of its namespaces")


def test_two_networks_do_not_meet() -> None:
    needs_network()
    with Network() as one, Network() as other:
        ips = one.add("a"), other.add("a")
        assert len({*ips, one.ip("drill"), other.ip("drill")}) == 4
        script = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=1)"
        answers = {}
        for ip in (ips[0], ips[1]):
            with tempfile.NamedTemporaryFile() as log:
                MachineProcess([sys.executable, "-c", script, ip], log=Path(log.name), namespace=one.namespace("a")).wait(LIMIT_S)
                answers[ip] = Path(log.name).read_text()
        assert "ConnectionRefusedError" in answers[ips[0]]
        assert "Network is unreachable" in answers[ips[1]]
        with pytest.raises(ConnectionRefusedError):  # this process reaches both
            socket.create_connection((ips[1], 9), timeout=LIMIT_S)


def test_without_root_it_says_what_is_not_possible() -> None:
    needs.root()  # it becomes another user
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_ROOT, str(NO_RECEIVER)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    flags, reasons = done.stdout.splitlines()
    assert flags == "False False"
    assert "network namespaces: a private network is not possible" in reasons
    assert "loop disks: loop disks take root" in reasons
