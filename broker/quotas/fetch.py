"""The quotas that one Fetch request meets: those of its user, of its consumer group and of the topic it reads.

A request waits before it is served, and between its chunks.  No wait is longer than clients wait for an answer: chunks become small enough
to be paid for in a part of that, the smaller the more readers wait.
"""

from __future__ import annotations

import math

from broker.quotas.quotas import Limited, Quotas
from broker.quotas.stream import StreamQuota, user_of
from dledger_wire.names import is_system_topic
from dledger_wire.rpc.transport import CallContext
from store.commands.quotas import FETCH, Limit, Subject

CHUNK_S = 0.1  # of the rate in one chunk, of all readers that wait together
MOST_S = 1.0  # clients take a replica for silent after 2.5 s by default


class FetchQuota(StreamQuota):
    """Of one request; ``is_limited`` says whether any rule counts for it."""

    def __init__(self, quotas: Quotas, caller: CallContext, group: str, topic: str) -> None:
        super().__init__(quotas, FETCH)
        self._names = user_of(caller) + ([(Subject.CONSUMER_GROUP, group)] if group else [])
        self._names += [] if is_system_topic(topic) else [(Subject.TOPIC, topic)]
        self._limited: list[Limited] = []
        self.given(0, 0)  # what others overdrew is waited for, too

    @classmethod
    async def paid(cls, quotas: Quotas, caller: CallContext, group: str, topic: str) -> FetchQuota | None:
        """That of a request, after the wait for what is owed by it; None when no rule counts for it."""
        if not quotas.limits_fetch:
            return None
        quota = cls(quotas, caller, group, topic)
        await quota.wait()
        return quota if quota.is_limited else None

    @property
    def is_limited(self) -> bool:
        return bool(self._limited)

    def given(self, size_bytes: int, messages: int) -> None:
        """The reader got so much."""
        taken = (self._take(subject, name, size_bytes, messages) for subject, name in self._names)
        self._limited = [limited for limited in taken if limited is not None]

    def most_messages(self, otherwise: int) -> int:
        """How many the next chunk may have, at least one."""
        return self._most(Limit.FETCH_MESSAGES, otherwise)

    def most_bytes(self, otherwise: int) -> int:
        """How many the next chunk may have."""
        return self._most(Limit.FETCH_BYTES, otherwise)

    def _most(self, limit: Limit, otherwise: int) -> int:
        rates = (each.buckets[limit].rate / (each.waiting + 1) for each in self._limited if limit in each.buckets)
        slowest = min(rates, default=math.inf) * CHUNK_S
        return otherwise if slowest >= otherwise else max(1, int(slowest))

    async def wait(self) -> None:
        """Until nothing is owed, or for as long as a client waits."""
        if self.is_overdrawn:
            await self.pay(lambda: False, MOST_S)
