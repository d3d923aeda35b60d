"""The quotas that one Produce stream meets: those of its user, of its producer group and of the topics it sends to.

Owns the wait.  A stream that overdraws one of them is read no further until that is paid; what it has sent is answered meanwhile, and no
error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.quotas.quotas import PRODUCE, Limited, Quotas
from dledger_wire.names import is_system_topic
from dledger_wire.rpc.methods import PRODUCER_GROUP
from dledger_wire.rpc.transport import CallContext
from dledger_wire.security.principal import Kind
from store.commands.quotas import Subject

SHORTEST_S = 0.001  # the clock counts these
LOOK_S = 1.0  # how often a wait looks whether the rule is still there


class ProduceQuota:
    """Of one stream; ``is_overdrawn`` says that ``pay`` has to be awaited."""

    def __init__(self, quotas: Quotas, caller: CallContext) -> None:
        self.is_overdrawn = False
        self._quotas = quotas
        principal, group = caller.principal, caller.metadata.get(PRODUCER_GROUP, "")
        self._own = [(Subject.USER, principal.name)] if principal.kind is Kind.USER else []
        self._own += [(Subject.PRODUCER_GROUP, group)] if group else []
        self._owed: dict[Limited, None] = {}

    def sent(self, batches: Iterable[tuple[str, int, int]]) -> None:
        """The stream sent these batches: topic, bytes and messages."""
        topics: dict[str, tuple[int, int]] = {}
        total_bytes = total_messages = 0
        for topic, size_bytes, messages in batches:
            total_bytes, total_messages = total_bytes + size_bytes, total_messages + messages
            if not is_system_topic(topic):
                known_bytes, known_messages = topics.get(topic, (0, 0))
                topics[topic] = known_bytes + size_bytes, known_messages + messages
        for subject, name in self._own:
            self._take(subject, name, total_bytes, total_messages)
        for topic, (size_bytes, messages) in topics.items():
            self._take(Subject.TOPIC, topic, size_bytes, messages)

    def _take(self, subject: Subject, name: str, size_bytes: int, messages: int) -> None:
        limited = self._quotas.take(subject, name, PRODUCE, size_bytes, messages)
        if limited is not None and self._quotas.debt_s(limited) > 0:
            self._owed[limited] = None
            self.is_overdrawn = True

    def owes(self) -> None:
        """Before the first request: what other streams of the same user and group overdrew is waited for, too."""
        if self._quotas.limits_produce:
            self.sent(())

    async def pay(self, is_over: Callable[[], bool]) -> None:
        """Wait until nothing is owed, or ``is_over``."""
        quotas, began_s = self._quotas, self._quotas.now_s()
        slowest = max(self._owed, key=quotas.debt_s)
        while not is_over() and (debt_s := max(map(quotas.debt_s, self._owed))) > 0:  # noqa: ASYNC110 - time is what is waited for
            await asyncio.sleep(min(max(debt_s, SHORTEST_S), LOOK_S))
        quotas.throttled(slowest, quotas.now_s() - began_s)
        self._owed.clear()
        self.is_overdrawn = False
