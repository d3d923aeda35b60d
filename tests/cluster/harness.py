"""Clusters of real processes for tests: the product's private cluster with small segments, and the command line beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from dledger_cli.local.private_cluster import PrivateCluster
from dledger_drill.cluster.cuttable import CuttableCluster
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"store": {"mappedFileSizeCommitLog": "4MiB", "maxMessageSize": "1MiB"}}


def dledger(
    *arguments: str, timeout_s: float = LIMIT_S, stdin: bytes | None = None, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Any:
    """Run a command of ours; returns the CompletedProcess with text output."""
    environment = {key: value for key, value in os.environ.items() if key != "DLEDGER_CONFIG"}
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), environment.get("PYTHONPATH", "")) if part)
    result: Any = subprocess.run(
        [sys.executable, "-P", "-m", "dledger_cli", *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        env=environment | (env or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else None,
        check=False,
    )
    result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode()
    return result


class Cluster(PrivateCluster):
    """A private cluster with the command line pointed at it."""

    limit_s = LIMIT_S

    def __init__(self, data: Path, **options: Any) -> None:
        settings = SMALL | options.pop("settings", {})
        super().__init__(data, settings=settings, **options)

    def cli(self, *arguments: str, timeout_s: float = LIMIT_S, stdin: bytes | None = None) -> Any:
        return dledger(*arguments, timeout_s=timeout_s, stdin=stdin, env={"DLEDGER_CONFIG": str(self.local.file)})

    def cli_ok(self, *arguments: str, timeout_s: float = LIMIT_S, stdin: bytes | None = None) -> str:
        """Run a command that must succeed; its output."""
        result = self.cli(*arguments, timeout_s=timeout_s, stdin=stdin)
        assert result.returncode == 0, f"{arguments}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return str(result.stdout)

    def status_json(self) -> dict[str, Any]:
        result = self.cli("status", "--json")
        return dict(json.loads(result.stdout))

    def produce(self, topic: str, bodies: list[bytes], timeout_s: float = LIMIT_S) -> dict[str, Any]:
        """Send bodies by the command line; its figures."""
        text = b"".join(body + b"\n" for body in bodies)
        return dict(json.loads(self.cli_ok("produce", topic, "--json", "--compress", "none", stdin=text, timeout_s=timeout_s)))

    def consume(self, topic: str, count: int, *options: str, timeout_s: float = LIMIT_S) -> list[bytes]:
        """Read the topic from its start by the command line until ``count`` messages came or nothing comes any more."""
        arguments = ("consume", topic, "--group", "t", "--from", "first", "--max", str(count), "--idle-exit", "3", *options)
        return [line.encode() for line in self.cli_ok(*arguments, timeout_s=timeout_s).splitlines()]

    def end(self) -> None:
        """Kill every node, also those that ``dledger up`` started."""
        self.kill_all()
        for pid in self.local.running().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log_text(self, node_id: str) -> str:
        return self.local.log_file(node_id).read_text(errors="replace")


class CutCluster(Cluster, CuttableCluster):
    """Its nodes can be cut off from each other."""


def send_garbage(address: str, data: bytes) -> None:
    """Write bytes at a port and hang up; the other side may hang up first."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as connection, contextlib.suppress(OSError):
        connection.settimeout(1.0)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def listening_addresses(pid: int) -> list[str]:
    """Every TCP address the process listens on, also those no configuration names."""
    listening = [one.laddr for one in psutil.Process(pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return sorted(f"{address.ip.removeprefix('::ffff:')}:{address.port}" for address in listening)
