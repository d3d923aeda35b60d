"""A cluster with TLS and users, made as the guide says: by commands, from nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_client import Admin
from tests.cluster.harness import dledger

ADMIN = "admin"


class SecuredCluster:
    """Replica groups g0, g1, ... of as many nodes as ``sizes`` says; ``folder`` has the cluster file, certificates and passwords."""

    def __init__(self, folder: Path, sizes: tuple[int, ...] = (3,)) -> None:
        self.folder = folder
        ports = iter(free_ports(sum(sizes)))
        self.addresses = {f"n{number}": f"127.0.0.1:{next(ports)}" for number in range(sum(sizes))}
        ids = iter(self.addresses)
        lines = ["cluster: shop", "groups:"]
        for group, size in enumerate(sizes):
            lines += [f"  - name: g{group}", "    nodes:"]
            lines += [f"      - {{id: {node}, address: {self.addresses[node]}}}" for node in [next(ids) for _ in range(size)]]
        lines += ["store: {mappedFileSizeCommitLog: 4MiB, maxMessageSize: 1MiB}"]
        self.file = folder / "cluster.yaml"
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.ok("certs", "create", "certs", "--user", "reporting")
        block = self.ok("security", "init", ADMIN, "--password-file", f"{ADMIN}.password", "--certs", "certs")
        with self.file.open("a", encoding="utf-8") as file:
            file.write(block)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def ca(self) -> str:
        return str(self.folder / "certs" / "ca.crt")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def password_file(self, user: str) -> str:
        return str(self.folder / f"{user}.password")

    def password(self, user: str) -> str:
        return Path(self.password_file(user)).read_text(encoding="utf-8").strip()

    def who(self, user: str) -> dict[str, Any]:
        """Of a Python client."""
        return {"user": user, "password_file": self.password_file(user), "tls": self.ca}

    def cli(self, *arguments: str, user: str = "", stdin: bytes | None = None, env: dict[str, str] | None = None) -> Any:
        """A command as a user, or as nobody, in the folder of the cluster file."""
        named = {"DLEDGER_USER": user, "DLEDGER_PASSWORD_FILE": self.password_file(user)} if user else {}
        found = {"DLEDGER_CONFIG": str(self.file)} | named | (env or {})
        return dledger(*arguments, stdin=stdin, env=found, cwd=self.folder)

    def ok(self, *arguments: str, user: str = "", stdin: bytes | None = None) -> str:
        result = self.cli(*arguments, user=user, stdin=stdin)
        assert result.returncode == 0, f"{arguments}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return str(result.stdout)

    def refused(self, *arguments: str, user: str = "", stdin: bytes | None = None, env: dict[str, str] | None = None) -> str:
        """The one line that a command says which ends with exit code 1."""
        result = self.cli(*arguments, user=user, stdin=stdin, env=env)
        assert result.returncode == 1, f"{arguments}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        lines = str(result.stderr).splitlines()
        assert len(lines) == 1, result.stderr
        return lines[0].removeprefix("dledger: ")

    def add_user(self, name: str, password: str) -> None:
        file = Path(self.password_file(name))
        file.touch(0o600)
        file.write_text(password + "\n", encoding="utf-8")
        with Admin(self.bootstrap, **self.who(ADMIN)) as admin:
            admin.create_user(name, password)

    def local(self) -> LocalCluster:
        return LocalCluster(ClusterConfig.load(str(self.data / "cluster.yaml")), self.data)

    def end(self) -> None:
        """Kill what still runs."""
        if not (self.data / "cluster.yaml").exists():
            return
        for pid in self.local().running().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
