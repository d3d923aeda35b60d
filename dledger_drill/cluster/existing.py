"""A cluster in use, to which a drill does what an operator does, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from dledger_cli.local.local_process import environment_with
from dledger_drill.cluster.cluster import NO_LOGIN, Cluster, not_of_one_in_use
from dledger_drill.hosts.shared_machines import SharedMachines
from dledger_wire.errors import DledgerError

START_S = 30.0
RESTART_S = 300.0
SAID_CHARS = 300


class ExistingCluster(Cluster):
    """By the nodes of its cluster file.

    ``restart_command``: a line for the shell that restarts the node ``$DLEDGER_NODE`` at ``$DLEDGER_ADDRESS`` and returns after that.
    """

    def __init__(
        self, nodes: Mapping[str, Mapping[str, str]], restart_command: str = "", client_environment: Mapping[str, str] = NO_LOGIN
    ) -> None:
        super().__init__()
        self.client_environment = client_environment
        self.groups = {group: list(members) for group, members in nodes.items()}
        self.addresses = {node: address for members in nodes.values() for node, address in members.items()}
        self.machines = SharedMachines({}, _not_started)
        self.logs = "on the nodes"
        self.described = {"cluster": "one in use, which this machine is a client of"}
        self._restart_command = restart_command

    def start_all(self) -> None:
        """A drill begins with a cluster that is whole."""
        self.wait_healthy(START_S)

    def restart_node(self, name: str) -> None:
        """DledgerError with the last line that the command said when it fails, and when the node is the process that it was."""
        if not self._restart_command:
            raise not_of_one_in_use("no command restarts a node")
        before = self._started(name)
        self._run_command(name)
        self.wait(lambda: self._started(name) not in (before, None), START_S, lambda: f"the command has not restarted {name}")

    def _started(self, name: str) -> tuple[int, int] | None:
        """Which process it is; None while it does not answer."""
        found = next((node for group in self.group_statuses() for node in group.nodes if node.id == name and node.reachable), None)
        return None if found is None else (found.pid, found.started_at_ms)

    def _run_command(self, name: str) -> None:
        added = {"DLEDGER_NODE": name, "DLEDGER_ADDRESS": self.addresses[name]}
        try:
            done = subprocess.run(  # noqa: S602 - the operator's own line
                self._restart_command,
                shell=True,
                env=environment_with({**self.client_environment, **added}),
                capture_output=True,
                text=True,
                timeout=RESTART_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DledgerError(f"the command that restarts {name} did not end within {RESTART_S:g} s") from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1][:SAID_CHARS]
            raise DledgerError(f"the command that restarts {name} ended with status {done.returncode} and said: {said}")


def _not_started(name: str) -> None:
    raise not_of_one_in_use(f"{name} is not started")
