"""Replaces a member that is away by a spare node, if the group's policy says so.  Runs on the master only.

    away for replaceAfter -> a spare node joins as a learner -> it has caught up: it becomes a voter -> the member that is away is removed

Every step is one committed change of the membership, made from the membership as it is, so a new master goes on where the old one was.
The log refuses to promote who has not caught up, and changes that leave no live majority.  When the member comes back before the spare
node is a voter, nothing of the group changes any more; when it comes back later, the spare node becomes a learner again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from broker.context import ServiceContext
from dledger.core.types import Membership, NodeId
from dledger_wire._pb import admin_pb2, routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Network
from dledger_wire.tasks import BackgroundTasks

CHECK_S = 1.0
CALL_TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 10.0
JITTER_S = 3.0  # two groups that lose a member with one host do not take spare nodes at the same moment

_logger = logging.getLogger(__name__)
Directory = Callable[[], Awaitable[routes_pb2.DirectoryReply | None]]


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done next: take a spare node in, or change the membership."""

    why: str
    membership: Membership | None = None  # None: take a spare node in


def next_step(now: Membership, spares: Collection[str], away: Collection[str], gone: Collection[str]) -> Step | None:
    """``spares``: ids of nodes that are or were spare; ``away``: members without contact; ``gone``: those who are for too long."""
    lost = [voter for voter in now.voters if voter in gone]
    if len(now.voters) % 2 == 0 and now.voters[-1] in spares and now.voters[-1] not in away:
        return _finish(now, lost, away)
    if not lost or len(now.voters) % 2 == 0:
        return None
    ready = [learner for learner in now.learners if learner in spares and learner not in away]
    if not ready:
        return Step(f"{lost[0]} is away: a spare node is taken in")
    promoted = Membership((*now.voters, ready[0]), tuple(learner for learner in now.learners if learner != ready[0]))
    return Step(f"{ready[0]} becomes a voter in place of {lost[0]}", promoted)


def _finish(now: Membership, lost: list[NodeId], away: Collection[str]) -> Step | None:
    """A spare node was promoted: the member that is away goes; when all are back, the spare node is one too many."""
    if lost:
        return Step(f"{lost[0]} is removed", Membership(tuple(voter for voter in now.voters if voter != lost[0]), now.learners))
    if any(voter in away for voter in now.voters):
        return None
    spare = now.voters[-1]
    return Step(f"{spare} becomes a learner again: all voters are back", Membership(now.voters[:-1], (*now.learners, spare)))


class SpareTaking:
    """Implements ``broker.leadership.role_manager.MasterService``."""

    name = "spare nodes"

    def __init__(self, context: ServiceContext, directory: Directory, network: Network) -> None:
        self._context, self._directory, self._network = context, directory, network
        self._spares = {spare.id for spare in context.settings.cluster.spares}
        self._away: dict[str, int] = {}  # member without contact -> since when
        self._told = ""

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        self._away.clear()  # a new master has waited for nobody yet
        tasks.spawn(self._watch(), "watch")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self._check()
            except DledgerError as error:
                self._tell(f"not done yet: {error.message}")

    async def _check(self) -> None:
        raft, after_ms = self._context.raft, self._context.wanted_replicas().replace_after_ms
        self._look_who_is_away()
        if not after_ms:
            return
        now_ms = self._context.env.clock.monotonic_ms()
        gone = [node for node, since_ms in self._away.items() if now_ms - since_ms >= after_ms]
        step = next_step(raft.membership, self._spares, self._away, gone)
        if step is None:
            return
        if step.membership is not None:
            self._tell(step.why)
            await raft.change_members(step.membership.voters, step.membership.learners, {}, CHANGE_TIMEOUT_S)
            return
        await asyncio.sleep(JITTER_S * self._context.env.random.randrange(0, 1000) / 1000)
        await self._take_one()

    def _look_who_is_away(self) -> None:
        status, now_ms = self._context.raft.status(), self._context.env.clock.monotonic_ms()
        timeout_ms = self._context.settings.cluster.raft.election_timeout_ms
        silent = {peer.node_id for peer in status.peers if peer.node_id != status.node_id and not peer.answers(timeout_ms)}
        self._away = {node: self._away.get(node, now_ms) for node in silent}

    async def _take_one(self) -> None:
        """Ask the spare node that shares the fewest hosts and racks to belong to this group, and add it as a learner."""
        found = await self._directory()
        if found is None:
            self._tell("no name server knows of all replica groups, so no spare node is known")
            return
        own = self._context.settings.group.name
        for group in found.groups:
            if group.name != own and any(node.id in self._spares and node.role == "learner" for node in group.nodes):
                self._tell(f"replica group {group.name} takes a spare node in; one group does at a time")
                return
        peers = {peer.node_id: peer.address for peer in self._context.raft.status().peers}
        present = [node for group in found.groups if group.name == own for node in group.nodes if node.id not in self._away]
        hosts, racks = {node.host for node in present}, {node.rack for node in present if node.rack}
        free = [spare for spare in found.spares if not spare.expired and spare.id not in peers]
        for spare in sorted(free, key=lambda spare: (spare.host in hosts, spare.rack in racks, spare.id)):
            if await self._join(spare):
                return
        self._tell("a member is away for too long, and no spare node is free")

    async def _join(self, spare: routes_pb2.RegisteredNode) -> bool:
        context, membership = self._context, self._context.raft.membership
        request = admin_pb2.TakeSpareRequest(cluster=context.settings.cluster.cluster, group=context.settings.group.name, node_id=spare.id)
        for voter in membership.voters:
            request.voters.add(id=voter, address=context.raft.address_of(voter))
        channel = self._network.connect(spare.address)
        try:
            await methods.TAKE_SPARE.call(channel, request, timeout_s=CALL_TIMEOUT_S)
        except DledgerError as error:
            self._tell(f"spare node {spare.id}: {error.message}")
            return False
        finally:
            await channel.close()
        self._spares.add(spare.id)
        learners = (*membership.learners, NodeId(spare.id))
        await context.raft.change_members(membership.voters, learners, {spare.id: spare.address}, CHANGE_TIMEOUT_S)
        self._tell(f"spare node {spare.id} joins as a learner")
        return True

    def _tell(self, text: str) -> None:
        """Log what is new."""
        if text != self._told:
            self._told = text
            _logger.info("%s: %s", self._context.settings.group.name, text)
