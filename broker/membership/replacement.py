"""Replaces members that are away by spare nodes, if the group's policy says so.  Runs on the master; ``steps.py`` says what comes next.

Owns how a step is carried out: the group's turn among all groups, the spare node that is chosen, its binding, the changes of the
membership.  The log refuses to promote a learner that has not caught up, and changes that leave no live majority.

*One group at a time* spares disks and network; nothing unsafe happens without it.  A group registers that it asks for its turn, and looks
at the name service once a majority of the name servers has that.  Two majorities share a name server, so of two groups at least one sees
the other one.  A group without a majority of the name servers begins nothing, and goes on with what it began
(docs/adr/0016-a-replacement-is-in-the-log.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from broker.context import ServiceContext
from broker.membership.replacement_steps import (
    Begin,
    End,
    Seen,
    Step,
    Take,
    free_spares,
    may_ask,
    must_give_way,
    next_step,
    turns_of_others,
)
from dledger.core.types import NodeId
from dledger.settings import RaftStatus
from dledger_wire._pb import admin_pb2, routes_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Network
from dledger_wire.status import REMOVED
from dledger_wire.tasks import BackgroundTasks
from store.commands.replacement import Replacement, SetReplacement

CHECK_S = 1.0
CALL_TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 5.0
SETTLED_MS = 10_000  # so long a new master listens for a member that its predecessor found to be away, and a spare node has to begin

_logger = logging.getLogger(__name__)

Who = TypeVar("Who")


class Turns(Protocol):
    """What this node reports to name servers, and what they return."""

    def ask_turn(self, *, asks: bool) -> None: ...
    async def ask_majority(self) -> list[routes_pb2.DirectoryReply] | None: ...


class SpareReplacement:
    """Replaces members that are away.  Implements ``broker.context.MasterService``."""

    name = "spare nodes"

    def __init__(self, context: ServiceContext, turns: Turns, network: Network) -> None:
        self._context, self._turns, self._network = context, turns, network
        self._configured = {spare.id for spare in context.settings.cluster.spares}
        self._away: dict[str, int] = {}  # member without contact -> since when
        self._stuck: dict[tuple[str, int, int | None], int] = {}  # member behind, and how far it is -> since when
        self._full: set[str] = set()  # members without room on their disks
        self._failed: dict[str, int] = {}  # spare node that was of no use -> since when
        self._lacks_learners_since = self._unanswered_since = -1
        self._asks = False
        self._logged = ""

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        self._away.clear()  # a new master has waited for no member yet
        self._stuck.clear()
        self._failed.clear()
        self._lacks_learners_since = self._unanswered_since = -1
        tasks.spawn(self._watch(), "watch")

    async def stop(self) -> None:
        self._ask(asks=False)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                while await self._check():
                    pass
            except DledgerError as error:
                self._log(f"not done yet: {error.message}")

    async def _check(self) -> bool:
        """Carry one step out; whether the next one may follow at once."""
        context, wanted = self._context, self._context.wanted_replicas()
        group, now_ms = context.store.replica_group, context.env.clock.monotonic_ms()
        self._find_absent(now_ms)
        under_way = group.replacement
        if not wanted.replace_after_ms or group.state == REMOVED:
            self._ask(asks=False)
            if under_way is not None and (under_way.absent in context.raft.membership or not under_way.voter):
                await self._end(End("replaceAfter is off"))
            return False
        self._failed = {spare: since for spare, since in self._failed.items() if now_ms - since < wanted.replace_after_ms}
        seen = self._seen(now_ms, wanted.learners, wanted.replace_after_ms)
        step = next_step(context.raft.membership, under_way, wanted.learners, seen)
        if step is None or not isinstance(step, Begin):
            self._ask(asks=False)
        return step is not None and await self._carry_out(step, under_way)

    async def _carry_out(self, step: Step, under_way: Replacement | None) -> bool:
        if isinstance(step, Begin):
            return await self._begin(step)
        if isinstance(step, End):
            await self._end(step)
            return True
        if under_way is None:
            return False
        if isinstance(step, Take):
            return await self._take(under_way)
        self._log(step.why)
        await self._context.raft.change_members(step.membership.voters, step.membership.learners, {}, CHANGE_TIMEOUT_S)
        if step.dropped:
            await self._choose_again(under_way)
        return True

    # What is seen

    def _find_absent(self, now_ms: int) -> None:
        status = self._context.raft.status()
        timeout_ms = self._context.settings.cluster.raft.election_timeout_ms
        silent = {peer.node_id for peer in status.peers if peer.node_id != status.node_id and not peer.answers(timeout_ms)}
        self._away = {node: self._away.get(node, now_ms) for node in silent}
        in_sync = self._in_sync(status)
        self._full = {peer.node_id for peer in status.peers if peer.low_on_space}
        # Nothing is known of a member while it copies without reporting progress.
        behind = [peer for peer in status.peers if peer.node_id not in in_sync and (peer.low_on_space or peer.copied_bytes is not None)]
        places = [(peer.node_id, peer.match_index, peer.copied_bytes) for peer in behind]
        self._stuck = {place: self._stuck.get(place, now_ms) for place in places}

    def _in_sync(self, status: RaftStatus) -> list[str]:
        window = self._context.settings.cluster.raft.maxInflightMessages
        return [peer.node_id for peer in status.peers if peer.acknowledges and status.commit_index - peer.match_index <= window]

    def _seen(self, now_ms: int, wanted_learners: int, after_ms: int) -> Seen:
        context = self._context
        if len(context.raft.membership.learners) >= wanted_learners:
            self._lacks_learners_since = -1
        elif self._lacks_learners_since < 0:
            self._lacks_learners_since = now_ms
        stuck = [node for node, _, _ in _for(max(after_ms, SETTLED_MS), self._stuck, now_ms)]
        return Seen(
            away=self._away,
            settled=_for(min(after_ms, SETTLED_MS), self._away, now_ms),
            gone=_for(after_ms, self._away, now_ms),
            late=_for(max(after_ms, SETTLED_MS), self._away, now_ms),
            stuck=stuck,
            full=[node for node in stuck if node in self._full],
            in_sync=self._in_sync(context.raft.status()),
            spares={*self._configured, *context.store.replica_group.taken},
            lacks_learners=0 <= self._lacks_learners_since <= now_ms - after_ms,
        )

    # A replacement begins

    async def _begin(self, step: Begin) -> bool:
        directories = await self._turns.ask_majority()
        if directories is None:
            self._log(f"{step.why}; a majority of the name servers does not answer, so no spare node is taken in")
            return False
        others = turns_of_others(self._context.settings.group.name, directories)
        if others:
            self._log(f"{step.why}; replica group {min(others)} takes a spare node in, one group does at a time")
        if not self._asks:
            self._ask(asks=may_ask(others))
            return False
        if must_give_way(self._context.settings.group.name, others):
            self._ask(asks=False)
            return False
        if others:
            return False  # they give way
        chosen = (step.ready, "") if step.at_once and step.ready else self._choose(directories, step.ready)
        if chosen is None:
            self._log(f"{step.why}, and no spare node is free")
            self._ask(asks=False)
            return False
        self._log(f"{step.why}: {chosen[0]} is to take its place")
        await self._set(Replacement(chosen[0], chosen[1] or self._context.raft.address_of(NodeId(chosen[0])), step.absent, step.voter))
        return True

    def _choose(self, directories: Collection[routes_pb2.DirectoryReply], ready: str) -> tuple[str, str] | None:
        members = [peer.node_id for peer in self._context.raft.status().peers]
        found = free_spares(directories, self._context.settings.group.name, self._away, {*members, *self._failed})
        return found[0] if found else (ready, "") if ready else None

    async def _choose_again(self, under_way: Replacement) -> None:
        """The spare node is of no use.  A voter that was removed for it is still to be replaced; else everything starts again."""
        self._failed[under_way.spare] = self._context.env.clock.monotonic_ms()
        self._unanswered_since = -1
        if not under_way.voter or under_way.absent in self._context.raft.membership:
            await self._end(End(f"{under_way.spare} is of no use"))
            return
        directories = await self._turns.ask_majority()
        chosen = None if directories is None else self._choose(directories, "")
        if chosen is None:
            self._log(f"{under_way.spare} is of no use, and no other spare node is free")
            return
        await self._set(Replacement(*chosen, under_way.absent, under_way.voter))

    # And goes on

    async def _take(self, under_way: Replacement) -> bool:
        """Bind the spare node, which may be bound already, and add it as a learner."""
        context, spare = self._context, under_way.spare
        try:
            await self._bind(under_way)
        except InvalidArgumentError as error:
            self._log(f"spare node {spare}: {error.message}")
            await self._choose_again(under_way)
            return False
        except DledgerError as error:
            now_ms = context.env.clock.monotonic_ms()
            if self._unanswered_since < 0:
                self._unanswered_since = now_ms
            self._log(f"spare node {spare} does not answer: {error.message}")
            if now_ms - self._unanswered_since >= context.wanted_replicas().replace_after_ms:
                await self._choose_again(under_way)
            return False
        self._unanswered_since = -1
        membership = context.raft.membership
        learners = (*membership.learners, NodeId(spare))
        await context.raft.change_members(membership.voters, learners, {spare: under_way.address}, CHANGE_TIMEOUT_S)
        self._log(f"spare node {spare} joins as a learner")
        return True

    async def _bind(self, under_way: Replacement) -> None:
        context = self._context
        cluster, group = context.settings.cluster.cluster, context.settings.group.name
        request = admin_pb2.TakeSpareRequest(cluster=cluster, group=group, node_id=under_way.spare)
        for voter in context.raft.membership.voters:
            request.voters.add(id=voter, address=context.raft.address_of(voter))
        channel = self._network.connect(under_way.address)
        try:
            await methods.TAKE_SPARE.call(channel, request, timeout_s=CALL_TIMEOUT_S)
        finally:
            await channel.close()

    async def _set(self, replacement: Replacement) -> None:
        command = SetReplacement(spare=replacement.spare, address=replacement.address, absent=replacement.absent, voter=replacement.voter)
        await self._context.command(command, COMMAND_TIMEOUT_S)

    async def _end(self, step: End) -> None:
        await self._context.command(SetReplacement(), COMMAND_TIMEOUT_S)
        self._log(f"the replacement ends: {step.why}")

    def _ask(self, *, asks: bool) -> None:
        self._asks = asks
        self._turns.ask_turn(asks=asks)

    def _log(self, text: str) -> None:
        """Log what is new."""
        if text != self._logged:
            self._logged = text
            _logger.info("%s: %s", self._context.settings.group.name, text)


def _for(span_ms: int, since: Mapping[Who, int], now_ms: int) -> list[Who]:
    """The members for which something has held for that long."""
    return [member for member, since_ms in since.items() if now_ms - since_ms >= span_ms]
