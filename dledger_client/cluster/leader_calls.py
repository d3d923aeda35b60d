"""Calls to the leader of a replica group, wherever it is, until a deadline.

Owns the attempts of a call: where the next one goes, when a silent leader is given up, and what the caller is told when an attempt may have
been carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.asking import drop
from dledger_client.cluster.channels import Channels
from dledger_client.cluster.leader_search import LeaderSearch, is_leader
from dledger_client.cluster.retry import is_retriable, until
from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.routes import ReplicaGroup
from dledger_client.cluster.silent_leaders import SilentLeaders
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import AuthenticationFailedError, DledgerError, NotLeaderError, UnreachableError
from dledger_wire.rpc.methods import METADATA, QUEUE_OFFSETS, UnaryMethod

CALL_SILENCE_S = 1.0  # a call without a response for that long: all nodes are asked who leads
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
    ) -> Response:
        """See ``Router.call_leader``."""
        lost: list[DledgerError] = []
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
        confirm_s, pause_s = begun_s + CALL_SILENCE_S, ASK_OTHERS_S
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
                if waited_s >= ATTEMPT_S and not call.done():
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
    """Whether no connection was made, which networks tell by the reason."""
    return isinstance(error, UnreachableError) and "reason" in error.details


def _check_leads(view: ReplicaGroup, method: UnaryMethod[Request, Response], answer: bytes) -> None:
    """Metadata and offsets are what any node answers: NotLeaderError when this one does not lead, and so may lag.

    Whoever named it as the leader may have been mistaken: only the node itself knows.
    """
    address, leads = view.leader_address, True
    if method.path == METADATA.path:
        leads = is_leader(view.name, address, METADATA.parse_response(answer, address))
    elif method.path == QUEUE_OFFSETS.path:
        leads = QUEUE_OFFSETS.parse_response(answer, address).master
    if not leads:
        raise NotLeaderError(f"{address} does not lead group {view.name} now")
