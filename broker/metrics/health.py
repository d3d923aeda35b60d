"""Whether a process lives, and whether it is ready: each check with its name and, when it fails, the reason.

Alive: its event loop turned lately and it has not stopped by itself; a process that is not should be restarted.  Ready: clients may be
sent to it.  Owns what is checked, and the line that reports it to a service manager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.nameserver.node import NameServerNode
from broker.node import BrokerNode
from broker.process.service_manager import Notice
from dledger.core.types import Role
from dledger_wire.status import REMOVED

LOOP_S = 5.0
APPLIED_ENTRIES = 1_000  # a node at work is always some behind what is committed


@dataclass(frozen=True, slots=True)
class Check:
    """One check; ``problem`` is empty when it passes."""

    name: str
    problem: str = ""

    def __str__(self) -> str:
        return f"[-]{self.name} failed: {self.problem}" if self.problem else f"[+]{self.name} ok"


def loop_check(silent_s: float) -> Check:
    """Of the event loop; may be made on any thread."""
    return Check("loop", f"the event loop has not turned for {silent_s:.1f} s" if silent_s > LOOP_S else "")


def stopped_check(failure: Callable[[], BaseException | None]) -> Check:
    """Of a process that stops by itself when its disk fails or its state is not sound; may be made on any thread."""
    error = failure()
    return Check("running", "" if error is None else f"stopped: {error}")


def node_checks(node: BrokerNode) -> list[Check]:
    """Whether clients may be sent to a node."""
    if not node.is_open:
        return [Check("open", "the node is starting")]
    raft = node.raft
    behind = raft.commit_index - node.store.applied_index
    removed = node.store.replica_group.state == REMOVED
    return [
        Check("open"),
        Check("leader", "" if raft.leader is not None else f"no leader of replica group {node.settings.group.name} is known here"),
        Check("applied", f"{behind} committed entries are not applied" if behind > APPLIED_ENTRIES else ""),
        Check("member", "its replica group was removed from the cluster" if removed else ""),
    ]


def name_server_checks(server: NameServerNode) -> list[Check]:
    """Whether clients may be sent to a name server."""
    if not server.is_open:
        return [Check("open", "the name server is starting")]
    return [Check("open"), Check("quorum", "" if server.quorum.state().has_majority else "no majority of the name servers is connected")]


def node_notice(node: BrokerNode) -> Notice:
    """A node's status line for its service manager."""
    if not node.is_open:
        return Notice(ready=False, text="recovers its log and what is derived from it")
    problems = [check.problem for check in node_checks(node) if check.problem]
    status = node.raft.status()
    role = status.role.value.replace("_", "-")
    text = f"{role} of replica group {status.group}, term {status.term}"
    if status.leader is not None and status.role is not Role.LEADER:
        text += f", leader {status.leader}"
    return Notice(not problems, "; ".join([text, *problems, *([status.copying] if status.copying else [])]))


def name_server_notice(server: NameServerNode) -> Notice:
    """A name server's status line for its service manager."""
    problems = [check.problem for check in name_server_checks(server) if check.problem]
    if not server.is_open:
        return Notice(ready=False, text="; ".join(problems))
    return Notice(not problems, "; ".join([f"{server.quorum.state().role} of the name servers", *problems]))


def spare_notice() -> Notice:
    """The status line, for its service manager, of a spare node that no replica group has taken in; it is ready once it listens."""
    return Notice(ready=True, text="spare node, waits for a replica group")
