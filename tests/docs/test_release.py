"""What ``scripts/release`` builds: checked, with sums; installed in a clean environment it runs a cluster from an empty folder.

``scripts/test docs`` builds it into ``release`` beside this folder (``scripts/lib/wheel.sh``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from dledger_cli.local.ports import free_ports
from tests.docs.test_split_wheels import environment, install, others, wheel

ROOT = Path(__file__).resolve().parents[2]
NODES = ("n0", "n1", "n2")

pytestmark = pytest.mark.docs


@pytest.fixture
def release() -> Path:
    """The folder of a release of this checkout."""
    return wheel("release/dledger-*.whl").parent


def test_a_release_has_wheels_sources_and_their_sums(release: Path) -> None:
    version = next(release.glob("dledger_client-*.whl")).name.split("-")[1]
    names = ("dledger", "dledger_client", "dledger_drill")
    files = {f"{name}-{version}{end}" for name in names for end in ("-py3-none-any.whl", ".tar.gz")}
    assert {file.name for file in release.iterdir()} == files | {"SHA256SUMS"}
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=release, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == sorted(f"{file}: OK" for file in files)
    again = subprocess.run([str(ROOT / "scripts" / "release"), str(release)], capture_output=True, text=True, check=False)
    assert (again.returncode, "is not empty; expected a folder for this release alone" in again.stderr) == (1, True)


@pytest.mark.timeout(900)
def test_a_clean_environment_runs_a_cluster_from_an_empty_folder(release: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "clean", others())
    install(python, *release.glob("*.whl"))
    shared = tmp_path / "clean" / "share" / "dledger"
    assert (shared / "hosts-3.yaml").is_file()
    assert (shared / "prometheus" / "alerts.yml").is_file()
    folder = tmp_path / "empty"
    folder.mkdir()
    nodes = "".join(f"      - {{id: {node}, address: 127.0.0.1:{port}}}\n" for node, port in zip(NODES, free_ports(3), strict=True))
    (folder / "cluster.yaml").write_text(f"cluster: released\ngroups:\n  - name: g0\n    nodes:\n{nodes}", encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DLEDGER_CONFIG")}

    def dledger(*arguments: str, stdin: str = "") -> str:
        command = [str(python.parent / "dledger"), *arguments]
        done = subprocess.run(command, cwd=folder, env=variables, input=stdin, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    try:
        assert "3 of 3 nodes up" in dledger("up", "--config", "cluster.yaml")
        dledger("topic", "create", "orders", "--queues", "2")
        assert json.loads(dledger("produce", "orders", "--json", stdin="one\ntwo\n"))["acknowledged"] == 2
        leader = json.loads(dledger("status", "--json"))["groups"][0]["leader"]
        os.kill(int((folder / "data" / f"{leader}.pid").read_text()), signal.SIGKILL)
        assert json.loads(dledger("produce", "orders", "--json", stdin="three\n"))["acknowledged"] == 1
        consumed = dledger("consume", "orders", "--group", "g", "--from", "first", "--max", "3", "--idle-exit", "30")
        assert sorted(consumed.split()) == ["one", "three", "two"]
    finally:
        subprocess.run([str(python.parent / "dledger"), "down", "--kill"], cwd=folder, env=variables, capture_output=True, check=False)
