"""Reads of committed state with a fallback to followers: offsets and topics stay known while a replica group has no majority.

Owns the order.  The leader is asked first, because only it knows everything that was acknowledged; without a leader, the follower that has
applied most.  Once a group was found without a leader, later reads do not wait for one until it has one again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.node_metadata import ASK_TIMEOUT_S
from dledger_client.cluster.retry import is_retriable, until
from dledger_client.cluster.router import Router
from dledger_wire.errors import DledgerError, NotLeaderError
from dledger_wire.rpc.methods import UnaryMethod

LEADER_TIMEOUT_MS = 3000  # longer than an election takes

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

_logger = logging.getLogger(__name__)


class CommittedState:
    """Asks for one client; ``replica``: the only follower to ask, if one is pinned."""

    def __init__(self, router: Router, replica: str | None = None) -> None:
        self._router, self._replica = router, replica
        self._leaderless: set[str] = set()

    def is_leaderless(self, group: str) -> bool:
        """Whether the last answer of the group was that of a follower."""
        return group in self._leaderless

    async def ask(
        self, group: str, method: UnaryMethod[Request, Answer], request: Request, applied: Callable[[Answer], int], deadline_ms: int
    ) -> Answer:
        """The leader's answer; without a leader, that of the follower whose ``applied`` is highest."""
        clock = self._router.clock
        async for attempt in until(deadline_ms, clock, self._router.random):
            with attempt:
                try:
                    return await self.at_leader(group, method, request, deadline_ms)
                except DledgerError as error:
                    if not is_retriable(error):
                        raise
                    answers = await self._at_followers(group, method, request)
                    if not answers:
                        raise
                    self.note_leaderless(group, error)
                    return max(answers, key=applied)
        raise NotLeaderError(f"replica group {group}: no attempt was made before the deadline")

    def note_leaderless(self, group: str, error: DledgerError) -> None:
        """The leader did not answer, and followers are used: later reads do not wait for it."""
        if group not in self._leaderless:
            self._leaderless.add(group)
            _logger.warning("%s; using what its followers have committed", error.message)

    async def at_leader(self, group: str, method: UnaryMethod[Request, Answer], request: Request, deadline_ms: int) -> Answer:
        """The leader's answer; an error soon when the group had none at the last read and has none now."""
        router = self._router
        if group in self._leaderless:
            await router.find_leader(group)
        timeout_ms = router.clock.monotonic_ms() + LEADER_TIMEOUT_MS
        answer = await router.call_leader(group, method, request, deadline_ms=min(deadline_ms, timeout_ms))
        self._leaderless.discard(group)
        return answer

    async def _at_followers(self, group: str, method: UnaryMethod[Request, Answer], request: Request) -> list[Answer]:
        """What every follower says that answers, asked at once."""
        nodes = self._router.groups[group].nodes
        asked = [self._ask(node.address, method, request) for node in nodes if self._replica in (None, node.id)]
        return [answer for answers in await asyncio.gather(*asked) for answer in answers]

    async def _ask(self, address: str, method: UnaryMethod[Request, Answer], request: Request) -> list[Answer]:
        """A node's answer; none when it is down, or lags so far that it does not know the topic."""
        try:
            return [await method.call(self._router.channel(address), request, timeout_s=ASK_TIMEOUT_S)]
        except DledgerError:
            return []
