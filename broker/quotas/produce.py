"""The quotas that one Produce stream meets: those of its user, of its producer group and of the topics it sends to.

A stream that overdraws one of them is read no further until that is paid; what it has sent is answered meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.quotas.quotas import Quotas
from broker.quotas.stream import StreamQuota, user_of
from dledger_wire.names import is_system_topic
from dledger_wire.rpc.methods import PRODUCER_GROUP
from dledger_wire.rpc.transport import CallContext
from store.commands.quotas import PRODUCE, Subject


class ProduceQuota(StreamQuota):
    """Of one stream."""

    def __init__(self, quotas: Quotas, caller: CallContext) -> None:
        super().__init__(quotas, PRODUCE)
        group = caller.metadata.get(PRODUCER_GROUP, "")
        self._own = user_of(caller) + ([(Subject.PRODUCER_GROUP, group)] if group else [])

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
