"""What the pages about cluster and nodes ask: one sampler a user for all of them, and why leaders changed.

Owns when nodes are asked for their accounts of changes of leader: only when what they say of themselves differs from the last look.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.admin.consumer_checks import GROUP_LAG, ConsumersStatus, Finding
from dledger_client.admin.status_checks import find, parse_checks
from dledger_client.admin.status_text import sentence
from dledger_client.aio import Admin, DledgerError, LeaderChange
from dledger_console.history.cluster import ClusterHistory
from dledger_console.history.sampler import REFUSED_S, Sampler
from dledger_wire.errors import PermissionDeniedError

STATUS_S, CONSUMERS_S = 2.0, 5.0
NODE_TIMEOUT_MS = 1_500
SETTLE_S = 10.0  # after a change: each node has an account of its own, and some come late


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cluster in one sentence.

    Attributes:
        text: The sentence, as ``dledger status`` says it.
        kind: good, warn or bad.
        findings: What is wrong, a line each.
    """

    text: str
    kind: str
    findings: tuple[Finding, ...]


class LeaderChanges:
    """Why leaders changed, by the accounts of all nodes.  They are asked when a term, a role or the reach of a node has changed, and again
    with every look for some seconds after that; then not at all, so that a quiet cluster is left alone."""

    def __init__(self, admin: Admin, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin, self._clock = admin, clock
        self._seen: object = None
        self._until_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self.newest: Sequence[LeaderChange] = ()  # the oldest first

    def look(self, groups: Sequence[ReplicaGroupStatus]) -> None:
        """The nodes have said this.  Returns at once: a node that hangs would hold up what the others say."""
        seen = [(group.name, node.id, node.term, node.role, node.reachable) for group in groups for node in group.nodes]
        if seen != self._seen:
            self._seen, self._until_s = seen, self._clock() + SETTLE_S
        if self._clock() < self._until_s and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask(), name="console-leader-changes")

    async def _ask(self) -> None:
        try:
            self.newest = await self._admin.leader_history()
        except DledgerError:  # no node answers, which the state of the nodes says, too
            self._until_s = self._clock() + SETTLE_S

    async def asked(self) -> None:
        """Wait for the answer to what was asked last."""
        if self._asking is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()


class ClusterSamplers:
    """The samplers of a session that see the cluster, and what they saw."""

    def __init__(self, admin: Admin) -> None:
        self.history = ClusterHistory()
        self.leader_changes = LeaderChanges(admin)
        self._asked_s = 0.0  # for what consumers do

        async def status() -> Sequence[ReplicaGroupStatus]:
            return await admin.cluster_status(timeout_ms=NODE_TIMEOUT_MS)

        async def consumers() -> ConsumersStatus:
            """A user without a right is refused again only after a while: each refusal is in the audit log."""
            seen = self.consumers
            refused = seen.newest is not None and any(isinstance(each, PermissionDeniedError) for each in seen.newest.problems.values())
            if refused and seen.newest is not None and time.monotonic() - self._asked_s < REFUSED_S:
                return seen.newest
            self._asked_s = time.monotonic()
            return await admin.consumers_status()

        self.status: Sampler[Sequence[ReplicaGroupStatus]] = Sampler(status, self._take_status, STATUS_S)
        self.consumers: Sampler[ConsumersStatus] = Sampler(consumers, self._take_consumers, CONSUMERS_S)
        self.known = ConsumersStatus()  # the newest in which consumer groups are known
        self.known_ms = 0

    def _take_consumers(self, at_ms: int, found: ConsumersStatus) -> None:
        is_known = GROUP_LAG not in found.problems
        if is_known:
            self.known, self.known_ms = found, at_ms
        groups = [progress.group for progress in found.groups]
        self.history.take_consumers(at_ms, groups, complete=is_known and not found.groups.unanswered)

    def attention(self) -> list[Finding]:
        """What is wrong, as far as nodes and consumers have said."""
        checks, nodes, consumers = parse_checks("all"), self.status.newest, self.consumers.newest
        return find(nodes or (), checks, int(time.time() * 1000), consumers=consumers)

    def _take_status(self, at_ms: int, groups: Sequence[ReplicaGroupStatus]) -> None:
        self.history.take_status(at_ms, groups)
        self.leader_changes.look(groups)

    def close(self) -> None:
        """Ask no more."""
        self.leader_changes.close()
        self.status.close()
        self.consumers.close()


def unknown_text(error: DledgerError | None, groups: Sequence[ReplicaGroupStatus]) -> str:
    """Why something is not known; empty when it is.  ``groups``: what the nodes say, if they do."""
    if error is None:
        return ""
    is_silent = not any(node.reachable for group in groups for node in group.nodes)
    return "not known: no node answers" if is_silent else f"not known: {error.message}"


def verdict(groups: Sequence[ReplicaGroupStatus]) -> Verdict:
    """What the nodes say, in words."""
    findings = tuple(find(groups, parse_checks("all"), int(time.time() * 1000)))
    stopped = not all(group.takes_messages for group in groups)
    healthy = all(group.healthy for group in groups)
    return Verdict(sentence(groups), "bad" if stopped else "good" if healthy and not findings else "warn", findings)
