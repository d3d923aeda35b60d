"""Reads that a follower may answer: first, to spare the leader, or only while there is no leader.

Owns which follower is asked, and how far behind one may be.  A client that spares leaders keeps to one follower of a group, so that what it
reads does not go back; one that fails or is too far behind is asked after the leader for some seconds.  Other reads of committed state ask
the leader first, because only it knows everything that was acknowledged; without a leader, the follower that has applied most.  Once a
group was found without a leader, later reads do not wait for one until it has one again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from dledger_client.cluster.node_metadata import ASK_TIMEOUT_S
from dledger_client.cluster.retry import is_retriable, until
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import Node, ReplicaGroup
from dledger_wire._pb import types_pb2
from dledger_wire.errors import (
    DeadlineExceededError,
    DledgerError,
    NotLeaderError,
    TopicNotFoundError,
    TopicPermissionError,
    UnreachableError,
)
from dledger_wire.rpc.methods import UnaryMethod

Request = TypeVar("Request", bound=Message)


Answer = TypeVar("Answer", bound=Message)


LEADER_TIMEOUT_MS = 3000  # longer than an election takes


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
            await router.leaders.find(group)
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


MAX_LAG_ENTRIES = 1_000  # as many as /readyz allows
MAX_SILENT_MS = 3_000  # since a leader was heard: some elections
AVOID_MS = 10_000


@dataclass(frozen=True, slots=True)
class ReadAt:
    """The replica that answered a read, and how old its answer may be.

    Attributes:
        node: Id of the replica.
        leader: Whether it was the leader.
        lag_entries: Committed entries that it had not applied, by the newest commit index that it had received.
        leader_silent_ms: How long ago it had heard from a leader, in milliseconds; None when that is not known.
    """

    node: str
    leader: bool
    lag_entries: int = 0
    leader_silent_ms: int | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it follows, and has not heard from a leader for so long that it may miss what was written since."""
        return not self.leader and (self.leader_silent_ms is None or self.leader_silent_ms > MAX_SILENT_MS)

    @property
    def is_current(self) -> bool:
        """Whether it is the leader, or no further behind than a follower may be that is asked before the leader."""
        return self.leader or (self.lag_entries <= MAX_LAG_ENTRIES and not self.is_silent)

    @property
    def age(self) -> tuple[int, int]:
        """To compare two answers: the one that is further behind has the greater one."""
        silent_ms = self.leader_silent_ms
        return (0, 0) if self.leader else (1 << 62 if silent_ms is None else silent_ms // 1000, self.lag_entries)


def is_silence(error: DledgerError) -> bool:
    """Whether a node could not be reached, or hangs: another one may answer."""
    return isinstance(error, UnreachableError | DeadlineExceededError)


def may_be_answered_elsewhere(error: DledgerError) -> bool:
    """Whether it is worth asking another node."""
    return is_silence(error) or is_retriable(error)


def read_at(answer: Message) -> ReadAt:
    """Which replica gave ``answer``, and how old that may be."""
    replica: types_pb2.AnsweringReplica = cast("Any", answer).replica  # which every answer of a read has
    return ReadAt(
        replica.node, replica.master, replica.lag_entries, replica.leader_silent_ms if replica.HasField("leader_silent_ms") else None
    )


class FollowersFirst:
    """Asks for one client."""

    def __init__(self, router: Router, committed_state: CommittedState) -> None:
        self._router, self._committed_state = router, committed_state
        self._kept: dict[str, str] = {}  # replica group -> address of the follower that answered last
        self._avoided: dict[str, int] = {}  # address -> until when it is asked last

    async def ask(self, group: str, method: UnaryMethod[Request, Answer], request: Request, deadline_ms: int) -> tuple[Answer, ReadAt]:
        """The answer of a follower that is not too far behind; or else the leader's; or else, while there is no leader, that of the
        follower that is the least behind.

        Whatever a follower does not know counts as unknown only when the leader says so: TopicNotFoundError is the leader's.
        """
        view = await self._router.ensure_group(group, deadline_ms)
        fresh, avoided = self._followers(view)
        late: list[tuple[Answer, ReadAt]] = []
        found = await self._first(group, fresh, method, request, deadline_ms, late)
        if found is not None:
            return found
        try:
            answer = await self._committed_state.at_leader(group, method, request, self._share(deadline_ms) if avoided else deadline_ms)
        except DledgerError as error:
            if not may_be_answered_elsewhere(error):
                raise
            found = await self._first(group, avoided, method, request, deadline_ms, late)
            if found is None and not late:
                raise
            self._committed_state.note_leaderless(group, error)
            return found or min(late, key=lambda each: each[1].age)
        return answer, read_at(answer)

    def in_order(self, view: ReplicaGroup) -> list[Node]:
        """The nodes to ask one after the other: followers, the leader, and last the followers that are avoided."""
        fresh, avoided = self._followers(view)
        return [*fresh, *(node for node in view.nodes if node.address == view.leader_address), *avoided]

    def avoid(self, node: Node) -> None:
        """It is silent, or too far behind."""
        self._avoided[node.address] = self._router.clock.monotonic_ms() + AVOID_MS

    def _followers(self, view: ReplicaGroup) -> tuple[list[Node], list[Node]]:
        """The one that answered last before the others; and those that are avoided."""
        now_ms, kept = self._router.clock.monotonic_ms(), self._kept.get(view.name)
        followers = [node for node in view.nodes if node.address != view.leader_address]
        followers.sort(key=lambda node: (node.address != kept, not node.voter))
        avoided = [node for node in followers if self._avoided.get(node.address, 0) > now_ms]
        return [node for node in followers if node not in avoided], avoided

    async def _first(
        self,
        group: str,
        nodes: Sequence[Node],
        method: UnaryMethod[Request, Answer],
        request: Request,
        deadline_ms: int,
        late: list[tuple[Answer, ReadAt]],
    ) -> tuple[Answer, ReadAt] | None:
        """The first answer that is not too old; others are added to ``late``."""
        for node in nodes:
            answer = await self._ask(node, method, request, self._share(deadline_ms))
            if answer is None:
                continue
            source = read_at(answer)
            if source.leader:
                self._router.cache.leader_is(group, node.address)  # the next read spares it
            elif source.is_current:
                self._kept[group] = node.address
            if source.is_current:
                return answer, source
            late.append((answer, source))
            self.avoid(node)
        return None

    def _share(self, deadline_ms: int) -> int:
        """Half of the time that is left, so that another node can still be asked."""
        now_ms = self._router.clock.monotonic_ms()
        return now_ms + max(0, deadline_ms - now_ms) // 2

    async def _ask(self, node: Node, method: UnaryMethod[Request, Answer], request: Request, deadline_ms: int) -> Answer | None:
        """A node's answer; None when it is down, refuses because it does not lead, or lags so far that it does not know the topic."""
        left_s = (deadline_ms - self._router.clock.monotonic_ms()) / 1000
        if left_s <= 0:
            return None
        try:
            return await method.call(self._router.channel(node.address), request, timeout_s=min(ASK_TIMEOUT_S, left_s))
        except (TopicNotFoundError, TopicPermissionError):
            return None
        except DledgerError as error:
            if not may_be_answered_elsewhere(error):
                raise
            if is_silence(error):
                self.avoid(node)
            return None
