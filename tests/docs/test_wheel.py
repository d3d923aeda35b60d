"""What is in a wheel, what ``dledger demo`` shows and leaves, and that the command works where folders have the names of our packages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, PackagePath, files
from pathlib import Path

import pytest

from dledger_cli.local.ports import free_ports
from tests.waiting import LIMIT_S, wait_until

CLUSTER = """\
cluster: one
groups:
  - name: g0
    nodes:
      - {{id: n0, address: "127.0.0.1:{0}"}}
"""


def run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("DLEDGER_CONFIG", "PYTHONPATH")}
    if path:
        environment["PYTHONPATH"] = path
    command = [str(Path(sys.executable).parent / "dledger"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.docs
def test_without_a_cluster_file_the_command_takes_the_shipped_one(tmp_path: Path) -> None:
    done = run(tmp_path, "status", "--json")
    assert '"groups"' in done.stdout, done.stderr
    assert "cannot read" not in done.stderr


def installed_files(name: str) -> list[PackagePath]:
    try:
        return files(name) or []
    except PackageNotFoundError:
        return []


@pytest.mark.docs
def test_wheels_have_no_tests_and_what_type_checkers_look_for() -> None:
    names = {str(file) for name in ("dledger", "dledger-client", "dledger-drill") for file in installed_files(name)}
    assert not [name for name in names if name.startswith("tests/")]
    if "dledger_cli/app.py" in names:  # not so in an editable install
        assert {"dledger_cli/local-3.yaml", "dledger_client/py.typed"} <= names


@pytest.mark.cluster
@pytest.mark.parametrize("path", ["", "here"], ids=["in the folder", "on PYTHONPATH"])
def test_a_users_own_broker_and_store_are_not_imported(tmp_path: Path, path: str) -> None:
    for name in ("broker", "store", "dledger" if not path else "unrelated"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    (tmp_path / "cluster.yaml").write_text(CLUSTER.format(*free_ports(1)))
    try:
        done = run(tmp_path, "up", "--config", "cluster.yaml", path=str(tmp_path) if path else "")
        assert done.returncode == 0, done.stderr
        assert "1 of 1 node up" in done.stdout
    finally:
        run(tmp_path, "down", "--kill")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For temporary files."""
    return tmp_path_factory.mktemp("place")


def demo_environment(place: Path) -> dict[str, str]:
    """Without Java, and with a folder of its own for temporary files."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYTHONPATH", "DLEDGER_CONFIG")}
    return kept | {"PATH": str(Path(sys.executable).parent), "TMPDIR": str(place)}


def left_of(place: Path) -> list[str]:
    """What is left of a demo: files, and processes whose command line names them."""
    found = [
        str(file) for file in place.iterdir() if not file.name.startswith("dledger-ports-")
    ]  # empty: all runs of a user share its locks
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(place) in file.read_bytes():
                found.append(str(file))
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.docs
def test_the_demo_loses_its_leader_and_nothing_else_and_leaves_nothing(tmp_path: Path, place: Path) -> None:
    command = [str(Path(sys.executable).parent / "dledger"), "demo"]
    environment = demo_environment(place)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    shown = re.sub(r" +", " ", done.stdout)
    for line in (
        "sent 2000",
        "acknowledged 2000",
        "lost 0",
        "duplicated 0",
        "changed 0",
        "out of order 0",
        "checksum on all replicas equal",
    ):
        assert f"\n{line}\n" in shown, done.stdout
    assert "PASS: nothing acknowledged was lost, duplicated, changed or reordered" in shown
    assert re.search(r"took \d+\.\d s; the nodes were ended and their files removed\nnext: dledger up ", shown)
    killed = re.search(r"^killed (n\d) \(SIGKILL\) after \d+ acknowledged messages$", shown, re.MULTILINE)
    leader = re.search(r"^(n\d) leads now$", shown, re.MULTILINE)
    assert killed is not None
    assert leader is not None
    assert killed[1] != leader[1]
    read = re.search(r"^messages read 2000 from (.*) \(leader: (n\d)\)$", shown, re.MULTILINE)
    assert read is not None
    assert read[2] not in read[1].split(", ")
    assert list(tmp_path.iterdir()) == []
    assert left_of(place) == []
    without_java = subprocess.run(
        [*command, "--spark"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert without_java.returncode == 1
    assert re.fullmatch(r"dledger: --spark: (Java was not found|py\w+ is not installed).*\n", without_java.stderr)


@pytest.mark.docs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_nothing(tmp_path: Path, place: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "dledger"), "demo"],
        cwd=tmp_path,
        env={**demo_environment(place), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "leads, " in line:
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    if number == signal.SIGKILL:
        wait_until(lambda: not left_of(place), "the end of the nodes")
    else:
        assert process.returncode == 130
        assert errors == "interrupted; the nodes were ended and their files removed\n"
    assert left_of(place) == []
