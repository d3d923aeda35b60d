"""The quotas that one Produce stream meets: those of its user, of its producer group and of the topics it sends to.

A stream that overdraws one of them is read no further until that is paid, nor is one whose user has too much that is not acknowledged;
what it has sent is answered meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from broker.quotas.quotas import Quotas
from broker.quotas.stream import StreamQuota, user_of
from broker.quotas.unacknowledged import Unacknowledged
from dledger_wire.names import is_system_topic
from dledger_wire.rpc.methods import PRODUCER_GROUP
from dledger_wire.rpc.transport import CallContext
from store.commands.quotas import PRODUCE, Subject


class ProduceQuota(StreamQuota):
    """Of one stream."""

    def __init__(self, quotas: Quotas, caller: CallContext) -> None:
        super().__init__(quotas, PRODUCE)
        group = caller.metadata.get(PRODUCER_GROUP, "")
        user = user_of(caller)
        self._own = user + ([(Subject.PRODUCER_GROUP, group)] if group else [])
        self._user = user[0][1] if user else ""
        self.unacknowledged = quotas.unacknowledged.setdefault(self._user, Unacknowledged()) if user else Unacknowledged()
        self.unacknowledged.streams += 1

    def close(self) -> None:
        """The stream is over, and what it sent is counted no more."""
        self.unacknowledged.streams -= 1
        if not self.unacknowledged.streams:
            self._quotas.unacknowledged.pop(self._user, None)

    @property
    def is_full(self) -> bool:
        """Whether the user has sent as much as may be unacknowledged.  To be asked while there is such a quota."""
        limited = self._quotas.take(Subject.USER, self._user, PRODUCE, 0, 0) if self._user else None
        self.unacknowledged.most = math.inf if limited is None else limited.most_unacknowledged
        return self.unacknowledged.size_bytes >= self.unacknowledged.most

    @contextmanager
    def waits(self, event: asyncio.Event) -> Iterator[None]:
        """A stream without room waits for ``event``, which is set as well when its user's quota has room again."""
        quotas = self._quotas
        if not (quotas.limits_unacknowledged and self.is_full):
            yield
            return
        limited, began_s = quotas.take(Subject.USER, self._user, PRODUCE, 0, 0), quotas.now_s()
        self.unacknowledged.waiting[event] = None
        try:
            yield
        finally:
            self.unacknowledged.waiting.pop(event, None)
            asyncio.get_running_loop().call_soon(self.unacknowledged.wake)  # behind the turn in which this stream takes its next request
            if limited is not None:
                quotas.throttled(limited, quotas.now_s() - began_s)

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

    def owes(self) -> None:
        """Before the first request: what other streams of the same user and group overdrew is waited for, too."""
        if self._quotas.limits_produce:
            self.sent(())
