"""Questions to the other nodes of a replica group while its leader is silent: whether another one leads in a newer term.

Owns the pace of the questions.  A leader that was paused or cut off keeps its connections open, and only the other nodes can name the
next one.  They are asked one after the other, so that an answer which never comes holds up nothing, with at most one question under way
to each.  The first ``QUICK`` questions are asked every ``GAP_S``, what follows every ``LONGEST_GAP_S``: a thousand clients of a leader that
is only slow must not take the time of followers which may have to elect another one.  For the same reason an answer that took long is
followed by a longer pause.

The answers go to the cache, like every answer of a node: callers that wait for a newer leader learn it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from dledger_client.cluster.node_metadata import NodeMetadata
from dledger_client.cluster.routes import RouteCache
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

GAP_S = 0.025
LONGEST_GAP_S = 0.25
QUICK = 40  # a second of quick questions; one more is earned in each LONGEST_GAP_S
KEEP_MS = 100  # questions end when no caller has wanted them for that long
GAP_BY_ANSWER = 10  # a question a node is at most a tenth of its time at work for this client


@dataclass(slots=True)
class _Questions:
    """Of one replica group."""

    silent: str = ""  # the leader that does not answer
    wanted_until_ms: int = 0
    quick: float = QUICK
    counted_ms: int = 0  # when ``quick`` was right
    answer_s: float = 0.0  # how long the last answer took
    is_running: bool = False
    asked_last: str = ""
    under_way: set[str] = field(default_factory=set)


class SilentLeaders:
    """Asks for one client, on its event loop."""

    def __init__(self, nodes: NodeMetadata, cache: RouteCache, clock: Clock) -> None:
        self._nodes, self._cache, self._clock = nodes, cache, clock
        self._questions: dict[str, _Questions] = {}
        self._tasks = BackgroundTasks("silent leaders")

    def ask_others(self, group: str, silent: str) -> None:
        """The leader at ``silent`` does not answer: ask the other nodes for a moment.  To be repeated while it is silent."""
        if group not in self._cache.groups:
            return
        now_ms = self._clock.monotonic_ms()
        questions = self._questions.get(group)
        if questions is None:
            questions = self._questions[group] = _Questions(counted_ms=now_ms)
        questions.silent, questions.wanted_until_ms = silent, now_ms + KEEP_MS
        if not questions.is_running and not self._is_settled(group, questions):
            questions.is_running = True
            self._tasks.spawn(self._run(group, questions), group)

    async def close(self) -> None:
        """Ask no more.  Idempotent."""
        await self._tasks.stop()

    def _is_settled(self, group: str, questions: _Questions) -> bool:
        """Whether another leader is known already."""
        known = self._cache.groups.get(group)
        return known is not None and bool(known.leader_address) and known.leader_address != questions.silent

    async def _run(self, group: str, questions: _Questions) -> None:
        try:
            while self._clock.monotonic_ms() < questions.wanted_until_ms and not self._is_settled(group, questions):
                address = self._next(self._nodes.addresses_of(group), questions)
                if address is not None:
                    questions.under_way.add(address)
                    questions.asked_last = address
                    self._tasks.spawn(self._ask(address, questions), address)
                await asyncio.sleep(self._gap_s(questions))
        finally:
            questions.is_running = False

    def _next(self, addresses: Sequence[str], questions: _Questions) -> str | None:
        """The one after the last that was asked; None while all have a question under way."""
        start = addresses.index(questions.asked_last) + 1 if questions.asked_last in addresses else 0
        in_turn = [*addresses[start:], *addresses[:start]]
        return next((each for each in in_turn if each != questions.silent and each not in questions.under_way), None)

    async def _ask(self, address: str, questions: _Questions) -> None:
        begun_ms = self._clock.monotonic_ms()
        try:
            await self._nodes.ask(address, [])
            questions.answer_s = (self._clock.monotonic_ms() - begun_ms) / 1000
        except DledgerError:
            pass  # another one may know
        finally:
            questions.under_way.discard(address)

    def _gap_s(self, questions: _Questions) -> float:
        """How long to wait after a question."""
        now_ms = self._clock.monotonic_ms()
        earned = (now_ms - questions.counted_ms) / (LONGEST_GAP_S * 1000)
        questions.quick, questions.counted_ms = min(QUICK, questions.quick + earned), now_ms
        questions.quick = max(-1.0, questions.quick - 1)
        if questions.quick < 0:
            return LONGEST_GAP_S
        return min(LONGEST_GAP_S, max(GAP_S, GAP_BY_ANSWER * questions.answer_s))
