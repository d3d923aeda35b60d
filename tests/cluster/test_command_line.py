"""The command line without a running cluster: help, usage errors, wrong configs, unreachable nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.process.data_dir_lock import DataFolderLock
from dledger_cli.local.ports import free_ports
from dledger_wire.feature_levels import MAX_LEVEL
from tests.cluster.harness import ROOT, Cluster, dledger
from tests.waiting import LIMIT_S, wait_until

GOOD = """\
cluster: t
groups:
  - name: g0
    nodes:
      - {{id: n0, address: "127.0.0.1:{0}"}}
      - {{id: n1, address: "127.0.0.1:{1}"}}
      - {{id: n2, address: "127.0.0.1:{2}"}}
"""


def write(folder: Path, text: str) -> str:
    file = folder / "bad.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("cluster: t\n", "", "bad.yaml:1: cluster: required setting is missing"),
        ("name: g0", "nam: g0", "bad.yaml:3: groups[0].nam: unknown setting; did you mean name?"),
        (
            "id: n2",
            "id: n1",
            "bad.yaml:7: groups[0].nodes[2].id: expected an id no other node has, got 'n1' again (first in replica group g0)",
        ),
        ("127.0.0.1:{2}", "127.0.0.1", "bad.yaml:7: groups[0].nodes[2].address: expected host:port, got '127.0.0.1'"),
        (
            "groups:",
            "store: {{flushDiskTyp: SYNC_FLUSH}}\ngroups:",
            "bad.yaml:2: store.flushDiskTyp: unknown setting; did you mean flushDiskType?",
        ),
        ("groups:", "groups: [", "bad.yaml:"),
    ],
)
@pytest.mark.parametrize("command", [["up", "--data", "d"], ["node", "--id", "n0", "--data", "d"], ["status"]])
def test_a_wrong_cluster_file_is_told_with_line_and_setting(tmp_path: Path, command: list[str], old: str, new: str, expected: str) -> None:
    config = write(tmp_path, GOOD.replace(old, new).format(*free_ports(3)))
    result = dledger(*command, "--config", config, cwd=tmp_path)
    assert result.returncode == 1
    assert expected in result.stderr
    assert result.stdout == "" or command == ["status"], "only status asks the nodes whose addresses can be read"
    assert not (tmp_path / "d" / "n0").exists()


def test_a_missing_cluster_file_and_an_unknown_node(tmp_path: Path) -> None:
    result = dledger("up", "--config", "gone.yaml", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (1, "dledger: gone.yaml: cannot read the cluster file: No such file or directory\n")
    config = write(tmp_path, GOOD.format(*free_ports(3)))
    result = dledger("node", "--config", config, "--id", "n7", "--data", "d", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (1, "dledger: no node 'n7' in this cluster file; it has n0, n1, n2\n")


@pytest.mark.parametrize("arguments", [["statu"], ["topic", "create"], ["produce"], ["status", "--until", "x"], ["node", "--id", "n0"]])
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    result = dledger(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""


def test_help_is_quick_and_names_every_command() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", "-m", "dledger_cli", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    heavy = [name for name in ("grpc", "numpy", "rich", "pydantic", "yaml", "google.protobuf") if f" {name}\n" in result.stderr]
    assert heavy == []
    for name in ("up", "down", "node", "status", "topic", "produce", "consume", "leader", "member", "verify", "dump", "bench"):
        assert f" {name} " in result.stdout


def test_a_node_without_tls_and_metrics_loads_nothing_that_these_need(tmp_path: Path) -> None:
    """And it is what it is after one start of the interpreter: with the allocator's settings before it loads anything of a node."""
    [port] = free_ports(1)
    config = write(tmp_path, f"cluster: t\ngroups: [{{name: g0, nodes: [{{id: n0, address: '127.0.0.1:{port}'}}]}}]\n")
    command = [sys.executable, "-P", "-X", "importtime", "-m", "dledger_cli", "node", "--config", config, "--id", "n0", "--data", "d"]
    with (
        open(tmp_path / "log", "w+") as log,
        subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=log) as node,
    ):
        wait_until(lambda: dledger("status", "--config", config).returncode == 0, "the node leads")
        node.terminate()
    loaded = [line.rpartition("|")[2].strip() for line in (tmp_path / "log").read_text().splitlines() if line.startswith("import time:")]
    assert loaded.count("broker.main") == loaded.count("numpy") == 1
    never = {"pydantic", "pydantic_core", "cryptography", "aiohttp", "jinja2", "fsspec", "pysyncobj", "nicegui", "pyarrow", "opentelemetry"}
    assert never & set(loaded) == set()


def test_status_of_a_cluster_that_is_down_keeps_its_rows_and_is_quick(tmp_path: Path) -> None:
    config = write(tmp_path, GOOD.format(*free_ports(3)))
    start = time.monotonic()
    result = dledger("status", "--config", config)
    assert time.monotonic() - start < LIMIT_S / 4
    assert result.returncode == 1
    assert result.stdout.count("unreachable: connection refused, start it: dledger up") == 3
    assert result.stdout.splitlines()[-1] == "1 group, 0 of 3 nodes up, no quorum in g0 (writes are stopped until another node returns)"
    nodes = json.loads(dledger("status", "--config", config, "--json").stdout)["groups"][0]["nodes"]
    assert [(node["id"], node["reachable"], node["term"]) for node in nodes] == [
        ("n0", False, None),
        ("n1", False, None),
        ("n2", False, None),
    ]


@pytest.mark.parametrize("command", [["topic", "list"], ["topic", "create", "t"], ["consume", "t"], ["leader", "transfer", "--to", "n1"]])
def test_a_cluster_that_is_down_is_told_in_one_line_with_its_addresses(tmp_path: Path, command: list[str]) -> None:
    ports = free_ports(3)
    result = dledger(*command, "--timeout", "1", "--config", write(tmp_path, GOOD.format(*ports)))
    assert (result.returncode, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert all(f"127.0.0.1:{port}" in result.stderr for port in ports)
    assert "UNAVAILABLE" not in result.stderr


def test_status_does_not_wait_for_a_node_that_never_answers(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = write(tmp_path, GOOD.format(silent.getsockname()[1], *free_ports(2)))
        start = time.monotonic()
        result = dledger("status", "--config", config)
        assert result.returncode == 1
        assert time.monotonic() - start < LIMIT_S / 4
        assert "unreachable: no answer within 2 s\n" in result.stdout or "timed out" in result.stdout


def test_a_taken_port_is_named_with_who_holds_it(make_cluster: object, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = write(tmp_path, GOOD.format(port, *free_ports(2)))
        result = dledger("up", "--config", config, "--data", str(tmp_path / "d"))
        assert result.returncode == 1
        assert f"dledger: 127.0.0.1:{port} (n0) is taken by pid {os.getpid()} (" in result.stderr
        direct = dledger("node", "--config", config, "--id", "n0", "--data", str(tmp_path / "d"))
        assert direct.returncode == 1
        assert f"127.0.0.1:{port}" in direct.stderr.splitlines()[-1]


def test_a_new_cluster_is_at_the_newest_feature_level(tmp_path: Path) -> None:
    """There is no older build to go back to, so nothing is left to be finished."""
    (port,) = free_ports(1)
    config = write(tmp_path, f"cluster: new\ngroups: [{{name: g0, nodes: [{{id: n0, address: 127.0.0.1:{port}}}]}}]\n")
    data = str(tmp_path / "d")
    try:
        assert dledger("up", "--config", config, "--data", data).returncode == 0
        finished = dledger("cluster", "upgrade-finish", "--yes", "--config", config)
        assert (finished.returncode, finished.stderr) == (0, f"replica group g0 is at feature level {MAX_LEVEL} already\n")
    finally:
        assert dledger("down", "--kill", "--data", data).returncode == 0


def test_down_without_anything_running(tmp_path: Path) -> None:
    result = dledger("down", "--data", str(tmp_path))
    assert result.returncode == 0
    assert "nothing to stop" in result.stderr
    Cluster(tmp_path / "c")
    result = dledger("down", "--data", str(tmp_path / "c"))
    assert (result.returncode, result.stderr) == (0, "no node is running\n")


def test_a_node_on_a_used_folder_says_one_line(tmp_path: Path) -> None:
    config = write(tmp_path, GOOD.format(*free_ports(3)))
    lock = DataFolderLock(str(tmp_path / "d" / "n0"))
    lock.acquire()
    try:
        result = dledger("node", "--config", config, "--id", "n0", "--data", str(tmp_path / "d"))
    finally:
        lock.release()
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"dledger: data folder {tmp_path}/d/n0 is in use by pid {os.getpid()}\n"
