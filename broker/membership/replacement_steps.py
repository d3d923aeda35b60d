"""Which step of a replacement comes next.  Pure: what the master sees goes in, one step comes out.

    away for replaceAfter -> its turn -> the replacement is in the log -> a spare node joins as a learner -> it has caught up
        -> the absent voter is removed -> the spare node becomes a voter -> the replacement ends

The replacement and the membership are replicated, so a new master finds the same next step.  The absent voter goes before the spare node
votes: a spare node that fails in between then costs no quorum, since the voters left are those that were there all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from broker.membership.membership_steps import without
from dledger.core.types import Membership, NodeId
from dledger_wire._pb import routes_pb2
from dledger_wire.status import Turn
from store.commands.replacement import Replacement


@dataclass(frozen=True, slots=True)
class Seen:
    """What the master knows of members: without contact now, for a while, for replaceAfter, for longer than a node takes to start; for as
    long behind, and no further, and of these those without room on the disk; caught up; spare once."""

    away: Collection[str] = ()
    settled: Collection[str] = ()
    gone: Collection[str] = ()
    late: Collection[str] = ()
    stuck: Collection[str] = ()
    full: Collection[str] = ()
    in_sync: Collection[str] = ()
    spares: Collection[str] = ()
    lacks_learners: bool = False  # for replaceAfter already


@dataclass(frozen=True, slots=True)
class Begin:
    """A replacement is to begin; ``ready``: a member that was spare and may be the one, now or if no spare node is free."""

    why: str
    absent: str
    voter: bool
    ready: str = ""
    at_once: bool = False  # ``ready`` is one learner more than wanted


@dataclass(frozen=True, slots=True)
class Take:
    """The spare node is to be bound to the group and to join as a learner."""

    why: str


@dataclass(frozen=True, slots=True)
class Change:
    """The membership is to change; ``dropped``: because the spare node failed, so that another one is to be chosen."""

    why: str
    membership: Membership
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Nothing is left to be done."""

    why: str


Step = Begin | Take | Change | End


def next_step(now: Membership, under_way: Replacement | None, wanted_learners: int, seen: Seen) -> Step | None:
    """None: there is nothing to do, or something to wait for."""
    if under_way is None:
        return _first_step(now, wanted_learners, seen)
    if under_way.spare in now.voters:
        return End(f"{under_way.spare} is a voter")
    if under_way.absent in now and under_way.absent not in seen.away:
        return End(f"{under_way.absent} is back")
    return _voter_step(now, under_way, seen) if under_way.voter else _learner_step(now, under_way, wanted_learners, seen)


def _first_step(now: Membership, wanted_learners: int, seen: Seen) -> Begin | None:
    if len(now.voters) % 2 == 0:
        return None  # an operator is between two steps
    live = [learner for learner in now.learners if learner not in seen.away]
    ready = next((learner for learner in live if learner in seen.spares), "")
    for voter in now.voters:
        if voter in seen.gone:
            return Begin(f"voter {voter} is away", voter, voter=True, ready=ready, at_once=len(live) > wanted_learners)
    lost = next((learner for learner in now.learners if learner in seen.gone), "")
    if lost and len(live) < wanted_learners:
        return Begin(f"learner {lost} is away", lost, voter=False)
    if seen.lacks_learners and len(now.learners) < wanted_learners:
        return Begin(f"{len(now.learners)} learners, {wanted_learners} wanted", "", voter=False)
    return None


def _voter_step(now: Membership, under_way: Replacement, seen: Seen) -> Step | None:
    spare, absent = under_way.spare, under_way.absent
    if absent not in now.voters and len(now.voters) % 2:
        return End("the group has its voters")  # an operator was faster
    if spare not in now.learners:
        return Take(f"{absent} is away")
    if spare in seen.late or spare not in seen.in_sync:
        return _given_up(now, spare, seen)
    if absent not in now.voters:
        learners = tuple(learner for learner in now.learners if learner != spare)
        return Change(f"{spare} becomes a voter in place of {absent}", Membership((*now.voters, NodeId(spare)), learners))
    if absent not in seen.settled:
        return None  # a new master listens for a while before it removes a member
    return Change(f"{absent} is removed, {spare} has caught up", without(now, absent))


def _given_up(now: Membership, spare: str, seen: Seen) -> Change | None:
    """The end of a spare node that will not catch up; None while it may."""
    if spare in seen.late:
        return Change(f"spare node {spare} is away, too", without(now, spare), dropped=True)
    if spare in seen.full:
        return Change(f"spare node {spare} has no room on its disk", without(now, spare), dropped=True)
    if spare in seen.stuck:
        return Change(f"spare node {spare} does not catch up", without(now, spare), dropped=True)
    return None


def _learner_step(now: Membership, under_way: Replacement, wanted_learners: int, seen: Seen) -> Step | None:
    spare, absent = under_way.spare, under_way.absent
    if spare not in now.learners:
        if absent not in now.learners and len(now.learners) >= wanted_learners:
            return End("the group has its learners")
        return Take("a learner is missing")
    if spare in seen.late or spare not in seen.in_sync:
        return _given_up(now, spare, seen)
    if absent in now.learners:
        return Change(f"learner {absent} is removed, {spare} has caught up", without(now, absent))
    return End(f"{spare} is a learner")


def turns_of_others(own: str, directories: Iterable[routes_pb2.DirectoryReply]) -> dict[str, int]:
    """Groups that have their turn or ask for it, by what any name server says."""
    found: dict[str, int] = {}
    for directory in directories:
        for group in directory.groups:
            if group.replacing and group.name != own:
                found[group.name] = max(found.get(group.name, 0), group.replacing)
    return found


def may_ask(others: Mapping[str, int]) -> bool:
    """No group asks, and none has its turn."""
    return not others


def must_give_way(own: str, others: Mapping[str, int]) -> bool:
    """Of groups that ask at once the one with the first name stays; it goes on when the others have given way."""
    return any(turn == Turn.HELD or name < own for name, turn in others.items())


def free_spares(
    directories: Iterable[routes_pb2.DirectoryReply], own: str, away: Collection[str], not_these: Collection[str]
) -> list[tuple[str, str]]:
    """Id and address of spare nodes that belong to no group, those first that share no host and no rack with members that are there."""
    present = [node for reply in directories for group in reply.groups if group.name == own for node in group.nodes if node.id not in away]
    hosts, racks = {node.host for node in present}, {node.rack for node in present if node.rack}
    free = {spare.id: spare for reply in directories for spare in reply.spares if not spare.expired and spare.id not in not_these}
    ordered = sorted(free.values(), key=lambda spare: (spare.host in hosts, spare.rack in racks, spare.id))
    return [(spare.id, spare.address) for spare in ordered]
