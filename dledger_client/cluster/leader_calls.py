"""Calls to the leader of a replica group, wherever it is, until a deadline.

Owns the search for the leader: the one that is known, or the best claim among the nodes of the group.  A leader that failed counts again
only if it claims to lead itself, or leads in a newer term.  Owns the attempts of a call: where the next one goes, when a silent leader is
given up, and the error when an attempt may have been carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.channels import Channels, drop, refused
from dledger_client.cluster.node_metadata import NodeAnswer, NodeMetadata, info_of
from dledger_client.cluster.retry import is_retriable, until
from dledger_client.cluster.route_watch import RouteWatch
from dledger_client.cluster.routes import ReplicaGroup, RouteCache
from dledger_client.cluster.silent_leaders import SilentLeaders
from dledger_wire._pb import broker_pb2
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import AuthenticationFailedError, DledgerError, NotLeaderError, PermissionDeniedError, UnreachableError
from dledger_wire.rpc.methods import METADATA, QUEUE_OFFSETS, UnaryMethod

HANGS_S = 0.05  # a search that takes longer waits for a node that hangs; meanwhile the others may get a leader


class LeaderSearch:
    """Searches for one client."""

    def __init__(self, nodes: NodeMetadata, cache: RouteCache, watch: RouteWatch, silent: SilentLeaders) -> None:
        self._nodes, self._cache, self._watch, self._silent = nodes, cache, watch, silent

    async def leader(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """The known leader of ``group``; searched for when there is none, or when it is ``failed`` in no term after ``failed_term``."""
        known = self._cache.groups.get(group)
        return known if known is not None and _may_lead(known, failed, failed_term) else await self.find(group, failed, failed_term)

    async def find(self, group: str, failed: str = "", failed_term: int = 0, silent: str = "") -> ReplicaGroup:
        """The leader of ``group`` now, by asking its nodes; one search.  ``failed`` counts as leader only if it says so, or in a term
        after ``failed_term``; ``silent`` hardly answers.  Raises NotLeaderError when no node is known to lead, and why the nodes refuse the
        caller when that is all they say."""
        self._watch.doubt()
        search = asyncio.ensure_future(self._among_nodes(group, failed, failed_term))
        named = asyncio.ensure_future(self._named(group, failed, failed_term))
        try:
            while not (await asyncio.wait([search, named], timeout=HANGS_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if failed or silent:
                    self._silent.ask_others(group, failed or silent)
            return search.result() if search.done() else named.result()
        finally:
            drop(search, named)

    async def _named(self, group: str, failed: str, failed_term: int) -> ReplicaGroup:
        """A leader in a newer term than the one known now, as soon as a node names it."""
        known = self._cache.groups.get(group)
        term = known.term if known is not None else 0
        while True:
            found = await self._cache.led_after(group, term)
            if _may_lead(found, failed, failed_term):
                return found
            term = found.term

    async def _among_nodes(self, group: str, failed: str, failed_term: int) -> ReplicaGroup:
        addresses = self._nodes.addresses_of(group)
        known = self._cache.groups.get(group)
        known_term = known.term if known is not None and known.leader_address else 0

        def claim(answer: NodeAnswer) -> ReplicaGroup | None:
            address, response = answer
            info = info_of(group, response)
            if info is None or not info.leader_address:
                return None
            leads = info.leader_address == address or _may_lead(info, failed, failed_term)
            return self._cache.group_of(info, address) if leads else None

        def enough(answer: NodeAnswer) -> bool:
            found = claim(answer)
            return found is not None and found.term >= known_term

        problems: list[DledgerError] = []
        answers = await self._nodes.survey(addresses, [], enough, problems)
        if not answers and (refusal := refused(problems)) is not None:
            raise refusal
        claims = [found for answer in answers if (found := claim(answer)) is not None]
        best = max(claims, key=lambda found: found.term, default=None)
        if best is None or (best.term < known_term and not _refutes(answers, group, known_term, len(addresses))):
            raise NotLeaderError(_without_leader(group, addresses, answers), leader_address="")
        self._cache.set_group(best)
        return best

    async def leads(self, group: str, address: str) -> bool:
        """Whether the node at ``address`` itself says that it leads now."""
        try:
            return is_leader(group, address, await self._nodes.ask(address, []))
        except DledgerError:
            return False

    async def confirm(self, group: str, address: str) -> None:
        """Ask the nodes for the leader.  UnreachableError when another node than ``address`` does, NotLeaderError when none is known to."""
        try:
            leader = (await self.find(group, silent=address)).leader_address
        except (AuthenticationFailedError, PermissionDeniedError) as error:  # it says nothing of what ``address`` was asked before
            raise NotLeaderError(error.message) from error
        if leader != address:
            raise UnreachableError(f"no response from {address}; {leader} is the new leader", address=address)


def is_leader(group: str, address: str, response: broker_pb2.MetadataResponse) -> bool:
    """Whether the node at ``address``, which answered so, leads."""
    info = info_of(group, response)
    return info is not None and info.leader_address == address


def _without_leader(group: str, members: Sequence[str], answers: Sequence[NodeAnswer]) -> str:
    if not answers:
        return f"replica group {group}: no node reachable at {', '.join(members)}"
    answered = {address for address, _ in answers}
    count = f"{len(answered.intersection(members))} of its {len(members)} nodes"
    if (leader := _named_leader(group, answers)) and leader not in answered:  # as behind a firewall that lacks one of the nodes
        return f"replica group {group}: its leader {leader} does not answer ({count} do)"
    text = f"replica group {group} has no leader now ({count} answered"
    full = sorted(address for address, response in answers if response.disk_full)
    return f"{text}; full disks: {', '.join(full)})" if full else f"{text})"


def _named_leader(group: str, answers: Sequence[NodeAnswer]) -> str:
    """The leader by nodes of the newest term; empty when they know none."""
    infos = [info for _, response in answers if (info := info_of(group, response)) is not None]
    newest = max(infos, key=lambda info: (info.term, info.leader_address), default=None)
    return newest.leader_address if newest is not None else ""


def _may_lead(claimed: ReplicaGroup | broker_pb2.GroupInfo, failed: str, failed_term: int) -> bool:
    """Whether nodes name a leader that is not the failed one, or is, in a newer term."""
    return bool(claimed.leader_address) and (claimed.leader_address != failed or claimed.term > failed_term)


def _refutes(answers: Sequence[NodeAnswer], group: str, term: int, nodes: int) -> bool:
    """Whether there was no leader of ``term``: a majority of the nodes, of which some must have voted for it, has not seen that term."""
    seen = [info.term for _, response in answers if (info := info_of(group, response)) is not None]
    return 2 * len(seen) > nodes and max(seen) < term


CALL_SILENCE_S = 1.0  # a call without a response for that long: all nodes are asked for the leader
ASK_OTHERS_S = 0.2  # and after that long the others, whether they have a newer leader
LOOK_S = 0.05  # how often is looked whether that is still so
MOVED_S = 0.1  # how long a leader may take to answer, from the call on, when another one leads already
LAST_WORD_S = 0.02  # a leader that is no longer one answers its calls when it learns of that
ATTEMPT_S = 25.0  # longer than any service works on a call: a change of members waits for two commits, 10 s each at most

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class LeaderCalls:
    """Calls for one client."""

    def __init__(
        self, channels: Channels, cache: RouteCache, leaders: LeaderSearch, silent: SilentLeaders, clock: Clock, random: Random
    ) -> None:
        self._channels, self._cache, self._leaders, self._silent = channels, cache, leaders, silent
        self._clock, self._random = clock, random

    async def call(
        self,
        group: str,
        method: UnaryMethod[Request, Response],
        request: Request,
        *,
        deadline_ms: int,
        again: Request | None = None,
        done: Callable[[DledgerError], Response | None] | None = None,
        lost: list[DledgerError] | None = None,
    ) -> Response:
        """See ``Router.call_leader``."""
        lost = [] if lost is None else lost
        try:
            answer = await self._until_done(group, method, request, deadline_ms, again, lost)
        except DledgerError as error:
            found = done(error) if lost and done is not None else None
            if found is not None:
                return found
            is_of_last = is_retriable(error) or isinstance(error, AuthenticationFailedError)
            if lost and is_of_last and not error.outcome_unknown:
                raise lost[-1] from error  # the last attempt failed for certain, that one may have been carried out
            raise
        return method.parse_response(answer, group)

    async def _until_done(
        self,
        group: str,
        method: UnaryMethod[Request, Response],
        request: Request,
        deadline_ms: int,
        again: Request | None,
        lost: list[DledgerError],
    ) -> bytes:
        """``lost`` takes the error of the last attempt that may have been carried out."""
        failed, term = "", 0

        async def pause(seconds: float) -> None:
            await self._cache.pause(group, term, seconds)

        async for attempt in until(deadline_ms, self._clock, self._random, sleep=pause):
            with attempt:
                view = await self._leaders.leader(group, failed, term)
                left_s = max(0.05, (deadline_ms - self._clock.monotonic_ms()) / 1000)
                try:
                    answer = await self._watched(view, method, request, left_s)
                    _check_leads(view, method, answer)
                    return answer
                except DledgerError as error:
                    failed, term = view.leader_address, view.term
                    if isinstance(error, NotLeaderError) and error.leader_address:
                        self._cache.leader_is(group, error.leader_address)
                    if error.outcome_unknown and not _was_never_sent(error):
                        lost[:] = [error]
                        request = request if again is None else again
                    raise
        raise NotLeaderError(f"replica group {group}: no attempt was made before the deadline")

    async def _watched(self, leader: ReplicaGroup, method: UnaryMethod[Request, Response], request: Request, left_s: float) -> bytes:
        """One call.  A leader that does not respond may have been paused or partitioned: the call fails when another node leads."""
        address, loop = leader.leader_address, asyncio.get_running_loop()
        call = asyncio.ensure_future(method.call_bytes(self._channels.to(address), request, timeout_s=left_s))
        moved = asyncio.ensure_future(self._moved(leader, loop.time() + MOVED_S))
        begun_s = loop.time()
        waits_s = getattr(request, "wait_ms", 0) / 1000  # a long poll is silent for so long
        confirm_s, pause_s = begun_s + waits_s + CALL_SILENCE_S, waits_s + ASK_OTHERS_S
        try:
            while not (await asyncio.wait([call, moved], timeout=pause_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                self._silent.ask_others(leader.name, address)
                pause_s = LOOK_S
                if loop.time() < confirm_s:
                    continue
                try:
                    await self._leaders.confirm(leader.name, address)
                except NotLeaderError:
                    pass  # an election is running, or the leader is only slow
                except UnreachableError:
                    if not call.done():
                        raise
                confirm_s = loop.time() + CALL_SILENCE_S
                waited_s = loop.time() - begun_s
                if waited_s >= waits_s + ATTEMPT_S and not call.done():
                    raise UnreachableError(f"no response from {address} to {method.path} within {waited_s:g} s", address=address)
            if not call.done():
                raise UnreachableError(f"no response from {address}; {moved.result()} is the new leader", address=address)
            return call.result()
        finally:
            drop(call, moved)

    async def _moved(self, leader: ReplicaGroup, patient_until_s: float) -> str:
        """Return the address of a later leader, a moment after it is known: the old one may still answer."""
        found = await self._cache.led_after(leader.name, leader.term)
        while found.leader_address == leader.leader_address:
            found = await self._cache.led_after(leader.name, found.term)
        await asyncio.sleep(max(LAST_WORD_S, patient_until_s - asyncio.get_running_loop().time()))
        return found.leader_address


def _was_never_sent(error: DledgerError) -> bool:
    """Whether no connection was made, which networks give as the reason."""
    return isinstance(error, UnreachableError) and "reason" in error.details


def _check_leads(view: ReplicaGroup, method: UnaryMethod[Request, Response], answer: bytes) -> None:
    """Metadata and offsets are what any node answers: NotLeaderError when this one does not lead, and so may lag.

    The node that named it as the leader may be mistaken: only the node itself knows.
    """
    address, leads = view.leader_address, True
    if method.path == METADATA.path:
        leads = is_leader(view.name, address, METADATA.parse_response(answer, address))
    elif method.path == QUEUE_OFFSETS.path:
        leads = QUEUE_OFFSETS.parse_response(answer, address).master
    if not leads:
        raise NotLeaderError(f"{address} does not lead group {view.name} now")
