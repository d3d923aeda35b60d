"""All replicated state of a store, wired together: topics, offsets, locks, delays, transactions, producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from store.settings import StoreSettings
from store.state.consumer_offsets import ConsumerOffsets
from store.state.delays import DelayOffsets
from store.state.feature_level import FeatureLevelState
from store.state.offset_history import OffsetHistory
from store.state.pop import Pop
from store.state.producers import ProducerRegistrations
from store.state.queue_locks import QueueLocks
from store.state.quotas import QuotaState
from store.state.replica_group import ReplicaGroupState
from store.state.security import SecurityState
from store.state.send_backs import SendBacks
from store.state.sequences import QueueKey, SequenceTable
from store.state.state_machine import ReplicatedState, StateMachineSection
from store.state.subscription_groups import SubscriptionGroups
from store.state.timers import Timers
from store.state.topics import Topics
from store.state.transactions import Transactions


class ForgetsTopics(Protocol):
    """State kept under names of topics: it forgets a topic that is deleted."""

    def forget_topic(self, topic: str) -> None: ...


class StoreState:
    """``max_offset``: returns the end of a queue."""

    def __init__(self, settings: StoreSettings, max_offset: Callable[[QueueKey], int]) -> None:
        self._max_offset = max_offset
        self.feature_level = FeatureLevelState(settings.levels)
        self.replica_group = ReplicaGroupState()
        self.security = SecurityState()
        self.quotas = QuotaState()
        self.topics = Topics(self._undrained, self._stored, self.replica_group)
        self.sequences = SequenceTable(settings.max_producers, settings.producer_expiry_ms)
        self.queue_locks = QueueLocks(self._has_queue, lambda *queue: self.pop.drop(*queue))
        self.offset_history = OffsetHistory()
        self.consumer_offsets = ConsumerOffsets(
            self._created_pos, self.queue_locks.epoch, on_commit=self.offset_history.committed, on_reset=self._was_reset
        )
        self.pop = Pop(self.consumer_offsets, self.queue_locks.epoch)
        self.delays = DelayOffsets()
        self.timers = Timers()
        self.subscription_groups = SubscriptionGroups()
        self.send_backs = SendBacks(self.consumer_offsets.position)
        self.transactions = Transactions()
        sections: list[StateMachineSection] = [
            self.topics,
            self.consumer_offsets,
            self.queue_locks,
            self.delays,
            self.timers,
            self.subscription_groups,
            self.send_backs,
            self.transactions,
            self.offset_history,
            self.replica_group,
            self.security,
            self.quotas,
            self.feature_level,
            self.pop,
        ]
        self.machine = ReplicatedState(sections, [ProducerRegistrations(self.sequences)])

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: one created later under its name starts without this state."""
        forgetting: Sequence[ForgetsTopics] = (
            self.sequences,
            self.consumer_offsets,
            self.queue_locks,
            self.send_backs,
            self.offset_history,
            self.pop,
        )
        for state in forgetting:
            state.forget_topic(topic)

    def _created_pos(self, name: str) -> int | None:
        topic = self.topics.get(name)
        return topic.created_pos if topic is not None else None

    def _has_queue(self, name: str, queue_id: int) -> bool:
        topic = self.topics.get(name)
        return topic is not None and queue_id < topic.read_queues

    def _undrained(self, topic: str, first: int, end: int) -> str:
        """What some consumer group has not read of these queues, as text; empty when there is nothing."""
        return self.consumer_offsets.unread(topic, {queue_id: self._max_offset((topic, queue_id)) for queue_id in range(first, end)})

    def _stored(self, topic: str, queues: int) -> int:
        """How many messages these queues ever got."""
        return sum(self._max_offset((topic, queue_id)) for queue_id in range(queues))

    def _was_reset(self, group: str, topic: str, queue_id: int) -> None:
        self.send_backs.went_back(group, topic, queue_id)
        self.pop.drop(group, topic, queue_id)
        position = self.consumer_offsets.known_position(group, topic, queue_id)  # None: the group was deleted, of which nothing is kept
        self.offset_history.went_to(group, topic, queue_id, -1 if position is None else position)
