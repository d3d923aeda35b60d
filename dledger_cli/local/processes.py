"""Node processes of one data folder: starting them in the background, finding and stopping them.

Owns the layout of ``DATA``: ``cluster.yaml``, ``up.lock``, ``ID/`` (the node's own folder with its lock), ``ID.pid``, ``ID.log``.
Whether a node runs is decided by the lock of its folder alone, so a stale pid file never names another process.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from broker.config.cluster_file import ClusterConfig
from broker.config.values import split_address
from broker.process.allocator import MALLOC_SETTINGS
from broker.process.data_dir_lock import holder_pid
from broker.process.identity import IDENTITY_FILE
from broker.process.private_folder import FILE_MODE
from dledger_cli.connection import connection
from dledger_cli.local.local_process import LocalProcess, last_words
from dledger_cli.local.ports import why_not_listened
from dledger_wire import strict_json
from dledger_wire.errors import AddressInUseError, DataDirectoryError

POLL_S = 0.1
SEEN_S = 30.0


@dataclass(frozen=True)
class LocalCluster:
    """The nodes of a cluster file that live under one data folder on this machine."""

    config: ClusterConfig
    data: Path

    @property
    def file(self) -> Path:
        return self.data / "cluster.yaml"

    def node_ids(self) -> list[str]:
        """Of all replica groups, then of spare nodes."""
        return [*(node.id for _, node in self.config.all_nodes()), *(spare.id for spare in self.config.spares)]

    def name_server_ids(self) -> list[str]:
        return [server.id for server in self.config.name_server_processes]

    def all_ids(self) -> list[str]:
        """Of everything that runs here, in the order in which it is started: name servers, then nodes."""
        return [*self.name_server_ids(), *self.node_ids()]

    def running(self) -> dict[str, int]:
        """Pid of every node and every name server that runs now, by id."""
        found = {name: holder_pid(str(self.data / name)) for name in self.all_ids()}
        return {node_id: pid for node_id, pid in found.items() if pid}

    def new_groups(self) -> list[str]:
        """Replica groups of which no node has been started here yet."""
        groups = self.config.groups
        return [group.name for group in groups if not any((self.data / node.id / IDENTITY_FILE).exists() for node in group.nodes)]

    def belongs(self, node_id: str) -> bool:
        """Whether there is a folder of this cluster's node."""
        try:
            return bool(strict_json.parse((self.data / node_id / IDENTITY_FILE).read_bytes())["cluster"] == self.config.cluster)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def unnamed(self) -> dict[str, int]:
        """Pid of everything else that runs in the folder, by the name of its own folder."""
        names = sorted({lock.parent.name for lock in self.data.glob("*/lock")}.difference(self.all_ids()))
        return {name: pid for name in names if (pid := holder_pid(str(self.data / name)))}

    def recorded(self) -> dict[str, int]:
        """Of those what ``spawn`` started: their pid files name the process."""
        return {name: pid for name, pid in self.unnamed().items() if self._recorded_pid(name) == pid}

    def _recorded_pid(self, name: str) -> int | None:
        try:
            return int((self.data / f"{name}.pid").read_bytes())
        except (OSError, ValueError):
            return None

    def is_name_server(self, name: str) -> bool:
        """By the cluster file, or by its folder when the file does not name it."""
        return name in self.name_server_ids() or (name not in self.node_ids() and not (self.data / name / IDENTITY_FILE).is_file())

    def log_file(self, node_id: str) -> Path:
        return self.data / f"{node_id}.log"

    def start(self, names: Sequence[str]) -> dict[str, LocalProcess]:
        """Start those that do not run, and wait until each has the lock of its folder, by which others see that it runs, or has ended; also
        when the next one cannot be started.  None is started where the port of one is taken: some alone may have no majority."""
        running = self.running()
        wanted = [name for name in names if name not in running]
        for name in wanted:
            check_addresses_free(name, self.config.addresses_of(name))
        started: dict[str, LocalProcess] = {}
        try:
            for name in wanted:
                started[name] = self.spawn(name)
        finally:
            self._wait_seen(started)
        return started

    def ended(self, started: Mapping[str, LocalProcess]) -> str:
        """The first of those processes that has ended, with its last words; empty while all run."""
        for name, process in started.items():
            if process.poll() is not None:
                kind = "name server" if name in self.name_server_ids() else "node"
                words = last_words(self.log_file(name)) or f"exit status {process.poll()}"
                return f"{kind} {name} ended: {words} (log: {self.log_file(name)})"
        return ""

    def _wait_seen(self, started: dict[str, LocalProcess]) -> None:
        deadline = time.monotonic() + SEEN_S
        while time.monotonic() < deadline:
            running = self.running()
            if all(name in running or process.poll() is not None for name, process in started.items()):
                return
            time.sleep(POLL_S)

    def spawn(self, node_id: str, file: Path | None = None) -> LocalProcess:
        """Start a node or a name server, with a cluster ``file`` of its own if given.  AddressInUseError names the holder of its port."""
        kind = "nameserver" if node_id in self.name_server_ids() else "node"
        check_addresses_free(node_id, self.config.addresses_of(node_id))
        # -P: nothing is imported from the folder that the command is given in, whatever it holds.
        command = [sys.executable, "-P", "-m", "dledger_cli", kind]
        command += ["--config", str((file or self.file).resolve()), "--id", node_id, "--data", str(self.data.resolve())]
        with self._open_log(node_id) as log:
            process = LocalProcess(command, log=log, environment=connection().given | MALLOC_SETTINGS | import_path())
        (self.data / f"{node_id}.pid").write_text(f"{process.pid}\n")
        return process

    def _open_log(self, node_id: str) -> BinaryIO:
        """To append to.  With a block ``security`` it is as private as the data folder."""
        mode = FILE_MODE if self.config.security is not None else 0o666
        log = open(self.log_file(node_id), "ab", opener=lambda path, flags: os.open(path, flags, mode))  # noqa: SIM115
        if self.config.security is not None:  # it may be from before the block
            os.fchmod(log.fileno(), FILE_MODE)
        return log

    def signal(self, node_id: str, number: signal.Signals) -> bool:
        """Send a signal to a running node; False when it does not run."""
        pid = holder_pid(str(self.data / node_id))
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_stopped(self, node_id: str, timeout_s: float) -> bool:
        """Whether the node has ended within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while holder_pid(str(self.data / node_id)) is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        (self.data / f"{node_id}.pid").unlink(missing_ok=True)
        return True


def check_addresses_free(name: str, addresses: Sequence[str]) -> None:
    """AddressInUseError names the holder of a port that ``name`` wants to listen on, or says why none can listen there."""
    for address in addresses:
        error = why_not_listened(address)
        if error is None:
            continue
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"{address} ({name}) is taken{_taken_by(address)}")
        text = f"{address} ({name}): cannot listen: {error.strerror}"
        if error.errno != errno.EACCES:  # not of this machine, or a name that is not known here
            text += f"; to listen at another address, set listen of {name}"
        raise AddressInUseError(text)


def _taken_by(address: str) -> str:
    """`` by pid 123 (name)``, as far as we may know."""
    import psutil

    port = split_address(address)[1]
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port and connection.pid:
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except (psutil.Error, OSError):
        pass
    return " by another process"


def make_data_folder(data: str) -> Path:
    folder = Path(data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataDirectoryError(f"cannot create data folder {folder}: {error.strerror}") from error
    return folder


def import_path() -> dict[str, str]:
    """Environment by which Python processes import what this one does, also from a checkout that is not installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        return {}
    return {"PYTHONPATH": os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH", "")) if part)}
