"""Dead letters of consumer groups: how many wait, what they are, and sending them again at a rate.

Owns a redrive that runs: it goes on in the background while pages look at it, and stops on request.  Dead letters are sent in their
order; the cluster keeps how far it came, so none is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dledger_client.admin.calls import Listed
from dledger_client.aio import Admin, DeadLetters, DledgerError
from dledger_console.data.browse import MessagePage, Start, page
from dledger_wire.errors import InvalidArgumentError

SLICE_S = 0.5  # a redrive can be stopped that often
SLICE_MESSAGES = 200
MAX_RATE = 100_000.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LetterRow:
    """The dead letters of one consumer group, of all replica groups.

    Attributes:
        consumer_group: The consumer group.
        stored: How many are stored.
        waiting: How many of them were not sent again.
        readable: Whether consumers may read them.
        parts: By replica group.
    """

    consumer_group: str
    stored: int
    waiting: int
    readable: bool
    parts: Sequence[DeadLetters]


async def list_letters(admin: Admin, consumer_group: str = "", *, at_leader: bool = False) -> Listed[LetterRow]:
    """Of one consumer group, or of all.  ``at_leader``: before something is done with them."""
    found = await admin.dead_letters(consumer_group, partial=True, at_leader=at_leader)
    parts: dict[str, list[DeadLetters]] = {}
    for each in found:
        parts.setdefault(each.consumer_group, []).append(each)
    rows = [
        LetterRow(
            name,
            sum(each.max_offset - each.min_offset for each in of_group),
            sum(each.waiting for each in of_group),
            all(each.readable for each in of_group),
            of_group,
        )
        for name, of_group in parts.items()
    ]
    return Listed(sorted(rows, key=lambda row: (-row.waiting, row.consumer_group)), found.unanswered, found.read_at)


async def newest_row(admin: Admin, consumer_group: str) -> LetterRow | None:
    """Those of one consumer group as the leaders have them, before something is done with them; None when there are none."""
    return next(iter(await list_letters(admin, consumer_group, at_leader=True)), None)


async def look(admin: Admin, letters: DeadLetters, start: Start | None = None, *, rows: int = 50) -> MessagePage:
    """The dead letters of one replica group that wait, the next one to be sent first.

    Raises TopicPermissionError while they may not be read."""
    if start is None:
        start = Start({(letters.replica_group, 0): letters.redriven_end}, False)
    return await page(admin, letters.topic, start, rows=rows)


def upto(letters: DeadLetters, offset: int) -> int:
    """How many are sent when a redrive ends behind the letter at ``offset``; 0 when it was sent already."""
    return max(0, offset + 1 - letters.redriven_end)


class Redrive:
    """Sends dead letters of one consumer group again.  ``run`` returns when it is done, stopped or has failed.

    ``count``: how many; 0 for all that wait now.  ``rate``: messages a second; 0 for no limit.  ``to_group``: to the consumer group alone.
    """

    def __init__(self, admin: Admin, parts: Sequence[DeadLetters], *, count: int = 0, rate: float = 0, to_group: bool = False) -> None:
        if count < 0 or not 0 <= rate <= MAX_RATE:
            raise InvalidArgumentError(f"count {count}, rate {rate:g}: expected a count of 0 or more and a rate of 0 to {MAX_RATE:,.0f}")
        self._admin, self._parts, self._rate, self._to_group = admin, parts, rate, to_group
        every = sum(part.waiting for part in parts)
        self.total = min(count, every) if count else every
        self.sent = 0
        self.done = False
        self.error: DledgerError | None = None
        self._stop = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Send no more than what is on its way."""
        self._stop.set()

    @property
    def text(self) -> str:
        """What it has done, in words."""
        sent = f"{self.sent:,} of {self.total:,} dead letters were sent again"
        if self.error is not None:
            return f"{sent}, then: {self.error.message}"
        return f"{sent}; stopped" if self.stopped and self.sent < self.total else sent

    async def run(self, on_progress: Callable[[], object] = lambda: None) -> None:
        try:
            for part in self._parts:
                await self._run_part(part, on_progress)
        except DledgerError as error:
            self.error = error
        except Exception as error:
            _logger.exception("dead letters could not be sent again")
            self.error = DledgerError(f"it failed: {type(error).__name__}; the console's log says why")
        finally:
            self.done = True
            on_progress()

    async def _run_part(self, part: DeadLetters, on_progress: Callable[[], object]) -> None:
        count = max(1, min(SLICE_MESSAGES, int(self._rate * SLICE_S))) if self._rate else SLICE_MESSAGES
        while (left := min(part.max_offset - part.redriven_end, self.total - self.sent)) > 0 and not self.stopped:
            started_s = asyncio.get_running_loop().time()
            sent = await self._admin.redrive(part, count=min(count, left), rate=self._rate, to_retry_topic=self._to_group)
            if not sent:
                return  # the rest has expired
            self.sent += sent
            part = replace(part, redriven_end=part.redriven_end + sent)
            on_progress()
            if self._rate and left > sent:
                pause_s = sent / self._rate - (asyncio.get_running_loop().time() - started_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), max(0.0, pause_s))
