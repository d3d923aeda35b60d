"""What ``dledger up`` refuses to do with a data folder that is in use for something else."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.config.cluster_file import ClusterConfig
from broker.process.data_dir_lock import DataFolderLock, holder_pid
from dledger_cli.app import app
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_wire.errors import DataDirectoryError
from tests.cluster.harness import ROOT
from tests.waiting import wait_until

FILE = "cluster: c\ngroups: [{name: g0, nodes: [{id: n0, address: 192.0.2.1:1}]}]\n"  # no address of this machine: nothing is started
MORE = FILE.replace("groups: [", "groups: [{name: g1, nodes: [{id: m0, address: 192.0.2.1:2}]}, ")


@pytest.fixture
def used(tmp_path: Path) -> Iterator[Path]:
    """The data folder of a cluster of two nodes, of which one runs."""
    data = tmp_path / "data"
    running = DataFolderLock(str(data / "m0"))
    running.acquire()
    (data / "cluster.yaml").write_text(MORE)
    for node in ("n0", "m0"):
        (data / node).mkdir(exist_ok=True)
        (data / node / "identity.json").write_text('{"cluster": "c"}')
    yield data
    running.release()


def refused(data: Path, text: str) -> str:
    """What ``up`` says of a cluster file for the folder; what is there stays."""
    file = data.parent / "new.yaml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["up", "--config", str(file), "--data", str(data)])
    assert isinstance(result.exception, DataDirectoryError), result.output
    assert (data / "cluster.yaml").read_text() == MORE
    return result.exception.message.replace(f"{data.parent}/", "")


def test_the_file_of_another_cluster_is_not_put_in_its_place(used: Path) -> None:
    """Its nodes would not start any more; those that run would be called healthy."""
    other = MORE.replace("cluster: c", "cluster: other")
    assert (
        refused(used, other) == "data is the data folder of cluster c, and new.yaml is of cluster other; expected another folder (--data)"
    )


def test_a_node_that_runs_is_not_forgotten(used: Path) -> None:
    """As a replica group that was added while the user's own file does not name it: ``down`` would not find it."""
    assert (
        refused(used, FILE)
        == f"m0 (pid {os.getpid()}) runs, and new.yaml does not name it; stop it first (dledger down --data data --id m0)"
    )


def test_down_says_what_it_does_not_stop(used: Path) -> None:
    """As a node whose line was taken out of the folder's cluster file while it ran."""
    (used / "cluster.yaml").write_text(FILE)
    result = CliRunner().invoke(app, ["down", "--data", str(used)])
    assert result.exit_code == 1
    said = f"m0 runs here, and neither {used}/cluster.yaml nor a pid file names it: kill {os.getpid()} stops it"
    assert said in result.stderr


@pytest.mark.parametrize("text", [FILE, "cluster: c\ngroups:\n  - {name: g0\n", None], ids=["not named", "no YAML", "no file"])
def test_down_stops_what_up_started_whatever_the_cluster_file_is(tmp_path: Path, text: str | None) -> None:
    """An edit that went wrong must not leave nodes that no command stops."""
    data = tmp_path / "data"
    data.mkdir()
    if text is not None:
        (data / "cluster.yaml").write_text(text)
    code = (
        f"import signal; from broker.process.data_dir_lock import DataFolderLock; DataFolderLock({str(data / 'm0')!r}).acquire();"
        " signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as node:
        wait_until(lambda: holder_pid(str(data / "m0")) == node.pid, "the node does not run")
        (data / "m0.pid").write_text(f"{node.pid}\n")
        (data / "m1.pid").write_text(f"{os.getpid()}\n")  # left behind; the process is another one
        result = CliRunner().invoke(app, ["down", "--data", str(data), "--timeout", "60"])
        assert node.wait() == -signal.SIGTERM
    assert (result.exit_code, "m0 stopped" in result.stderr) == (0, True), result.output
    assert ("by its pid files" in result.stderr) == (text != FILE)
    assert not (data / "m0.pid").exists()


@pytest.mark.parametrize("restored", [False, True])
def test_a_folder_in_which_nothing_of_the_old_cluster_is_takes_another_file(used: Path, restored: bool) -> None:
    """As after a first attempt with a mistake in the file, or a restore into the folder under another name."""
    for node in ("n0", "m0"):
        shutil.rmtree(used / node)
    if restored:
        (used / "n0").mkdir()
        (used / "n0" / "identity.json").write_text('{"cluster": "other"}')
    file = used.parent / "new.yaml"
    file.write_text(FILE.replace("cluster: c", "cluster: other"))
    CliRunner().invoke(app, ["up", "--config", str(file), "--data", str(used)])
    assert "cluster: other" in (used / "cluster.yaml").read_text()


@pytest.mark.parametrize(("security", "mode"), [("", 0o644), ("security: {cluster_secret_file: s, users: {}}\n", 0o600)])
def test_the_log_of_a_node_is_as_private_as_its_data_folder(tmp_path: Path, security: str, mode: int) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("192.0.2.1:1", address) + security)
    local = LocalCluster(ClusterConfig.load(str(file)), tmp_path)
    for log in (local.log_file("n0"), tmp_path / "made before"):
        before = os.umask(0o022)
        try:
            if log.name == "made before":
                local.log_file("n0").chmod(0o644)
            process = local.spawn("n0", file)
        finally:
            os.umask(before)
        process.kill()
        process.wait()
        assert stat.S_IMODE(local.log_file("n0").stat().st_mode) == mode
