"""A push consumer's settings: their defaults, their limits, and the names RocketMQ gives them.

Owns the table of names.  Every setting may be given by either name; times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dledger_client.consumer.allocation import Strategy, strategy
from dledger_client.runtime.argument_ranges import FIRST_TIME_MS, MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.security import SecuritySettings
from dledger_wire.errors import InvalidArgumentError

FIRST, LAST, TIMESTAMP = "first", "last", "timestamp"
BROADCAST_ATTEMPTS = 16
MIB = 1 << 20

# RocketMQ's name of a setting -> ours.
UPSTREAM_NAMES = {
    "messageModel": "broadcast",
    "consumeMessageBatchMaxSize": "consume_message_batch_max_size",
    "consumeThreadMin": "consume_threads",
    "consumeThreadMax": "consume_threads",
    "pullBatchSize": "pull_batch_size",
    "pullThresholdForQueue": "pull_threshold_for_queue",
    "pullThresholdSizeForQueue": "pull_threshold_size_for_queue",
    "consumeConcurrentlyMaxSpan": "consume_concurrently_max_span",
    "consumeFromWhere": "consume_from_where",
    "consumeTimestamp": "consume_timestamp",
    "allocateMessageQueueStrategy": "allocate_strategy",
    "maxReconsumeTimes": "max_reconsume_times",
    "suspendCurrentQueueTimeMillis": "suspend_current_queue_time_ms",
    "persistConsumerOffsetInterval": "persist_offset_interval_ms",
    "awaitTerminationMillisWhenShutdown": "await_termination_ms",
}
_UPSTREAM_VALUES: dict[str, dict[str, Any]] = {
    "consumeFromWhere": {"CONSUME_FROM_FIRST_OFFSET": FIRST, "CONSUME_FROM_LAST_OFFSET": LAST, "CONSUME_FROM_TIMESTAMP": TIMESTAMP},
    "messageModel": {"BROADCASTING": True, "CLUSTERING": False},
}


class PushSettings(SecuritySettings, total=False):
    """Settings of a push consumer, with those of ``SecuritySettings``. Times are milliseconds, sizes bytes. The names in
    camel case are RocketMQ's names of the same settings.

    Attributes:
        orderly: One batch of a queue at a time, at one consumer of the group at a time. Default: False.
        broadcast: Every consumer gets every message; offsets are kept in a file under ``offset_folder``. Default:
            False.
        consume_message_batch_max_size: Messages per listener call. Default: 1.
        consume_threads: Listener calls at once. Default: 20.
        pull_batch_size: Messages per fetch. Default: 256.
        pull_threshold_for_queue: Messages of a queue fetched ahead of its listeners. Default: 1000.
        pull_threshold_size_for_queue: Bytes of a queue fetched ahead of its listeners. Default: 100 MiB.
        consume_concurrently_max_span: How far the newest fetched offset may be ahead of the oldest unfinished one.
            Default: 2000.
        consume_from_where: Where to start in queues without committed offset: ``first``, ``last`` (the end as it is before
            ``start`` returns) or ``timestamp``.
            Default: ``first``.
        consume_timestamp: For ``timestamp``: milliseconds since 1970. Default: 0.
        allocate_strategy: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, MACHINE_ROOM, MACHINE_ROOM_NEARBY, or a function
            such as ``by_config``
            returns. The same for all members of the group. Default: AVG.
        allocate_options: Options of a strategy given by name: ``virtual_nodes``, ``rooms``, ``inner``.
        max_reconsume_times: Redeliveries before the dead-letter topic; -1: the group's setting (orderly: no limit).
            Default: -1.
        suspend_current_queue_time_ms: Pause of an orderly queue before messages are redelivered. Default: 1000.
        persist_offset_interval_ms: How often offsets are committed. Default: 1000.
        await_termination_ms: How long ``shutdown`` waits for running listeners. Default: 5000.
        offset_folder: Folder of the offset files of broadcast consumers. Default: ``~/.dledger_offsets``.
        user: See ``SecuritySettings``, as the next three.
        password: Password of the user.
        password_file: File with the password.
        tls: The authorities that the client trusts, and its certificate.
    """

    orderly: bool
    broadcast: bool
    consume_message_batch_max_size: int
    consume_threads: int
    pull_batch_size: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    consume_concurrently_max_span: int
    consume_from_where: str
    consume_timestamp: int
    allocate_strategy: str | Strategy
    allocate_options: dict[str, str]
    max_reconsume_times: int
    suspend_current_queue_time_ms: int
    persist_offset_interval_ms: int
    await_termination_ms: int
    offset_folder: str
    messageModel: str
    consumeMessageBatchMaxSize: int
    consumeThreadMin: int
    consumeThreadMax: int
    pullBatchSize: int
    pullThresholdForQueue: int
    pullThresholdSizeForQueue: int
    consumeConcurrentlyMaxSpan: int
    consumeFromWhere: str
    consumeTimestamp: int
    allocateMessageQueueStrategy: str | Strategy
    maxReconsumeTimes: int
    suspendCurrentQueueTimeMillis: int
    persistConsumerOffsetInterval: int
    awaitTerminationMillisWhenShutdown: int


@dataclass(frozen=True, slots=True)
class PushOptions:
    """See ``dledger_client.aio.PushConsumer`` for what each of them means."""

    orderly: bool = False
    broadcast: bool = False
    consume_message_batch_max_size: int = 1
    consume_threads: int = 20
    pull_batch_size: int = 256
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100 << 20
    consume_concurrently_max_span: int = 2000
    consume_from_where: str = FIRST
    consume_timestamp: int = 0
    allocate_strategy: str | Strategy = "AVG"
    allocate_options: dict[str, str] = field(default_factory=dict)
    max_reconsume_times: int = -1
    suspend_current_queue_time_ms: int = 1000
    persist_offset_interval_ms: int = 1000
    await_termination_ms: int = 5000
    offset_folder: str = ""

    def __post_init__(self) -> None:
        for name in ("orderly", "broadcast"):
            if not isinstance(getattr(self, name), bool):  # any text would count as True
                raise InvalidArgumentError(f"{name} {getattr(self, name)!r}: expected True or False")
        for name in ("consume_message_batch_max_size", "consume_threads", "pull_batch_size", "pull_threshold_for_queue"):
            within(1, MAX_U32, **{name: getattr(self, name)})
        for name in ("pull_threshold_size_for_queue", "consume_concurrently_max_span", "persist_offset_interval_ms"):
            within(1, MAX_OFFSET, **{name: getattr(self, name)})
        for name in ("consume_timestamp", "suspend_current_queue_time_ms", "await_termination_ms"):
            within(0, MAX_OFFSET, **{name: getattr(self, name)})
        within(-1, MAX_U32, max_reconsume_times=self.max_reconsume_times)  # -1: the group's setting
        if self.consume_from_where not in (FIRST, LAST, TIMESTAMP):
            raise InvalidArgumentError(f"consume_from_where {self.consume_from_where!r}: expected {FIRST}, {LAST} or {TIMESTAMP}")
        if 0 < self.consume_timestamp < FIRST_TIME_MS:
            raise InvalidArgumentError(f"consume_timestamp {self.consume_timestamp}: expected milliseconds since 1970, of 13 digits")
        if not isinstance(self.offset_folder, str | os.PathLike):
            raise InvalidArgumentError(f"offset_folder {self.offset_folder!r}: expected the path of a folder")
        if not isinstance(self.allocate_options, Mapping):
            raise InvalidArgumentError(f"allocate_options {self.allocate_options!r}: expected options by name")
        self.strategy()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> PushOptions:
        """The options out of settings by either name.  TypeError for an unknown name, InvalidArgumentError for one given twice."""
        given: dict[str, Any] = {}
        for name, value in settings.items():
            own = UPSTREAM_NAMES.get(name, name)
            if own not in cls.__dataclass_fields__:
                raise TypeError(f"a push consumer has no setting {name!r}")
            if name in ("consumeThreadMin", "consumeThreadMax"):  # threads are there from the start: as many as there may be
                within(1, MAX_U32, **{name: value})
                value = max(value, given.get(own, 0))
            elif own in given:
                raise InvalidArgumentError(f"{name}: {own} is given twice")
            given[own] = _own_value(name, value)
        return cls(**given)

    def strategy(self) -> Strategy:
        """How queues are shared out."""
        chosen = self.allocate_strategy
        if isinstance(chosen, str):
            return strategy(chosen, self.allocate_options)
        if not callable(chosen):
            raise InvalidArgumentError(f"allocate_strategy {chosen!r}: expected a strategy's name, or a function")
        return chosen

    @property
    def strategy_name(self) -> str:
        chosen = self.allocate_strategy
        return chosen if isinstance(chosen, str) else "CONFIG"


def _own_value(name: str, value: Any) -> Any:
    """The value in our terms: upstream's constants, and its one size in MiB."""
    if name == "pullThresholdSizeForQueue":
        within(1, MAX_U32, pullThresholdSizeForQueue=value)
        return value * MIB
    names = _UPSTREAM_VALUES.get(name)
    if names is None:
        return value
    if not isinstance(value, str) or value not in names:
        raise InvalidArgumentError(f"{name} {value!r}: expected {' or '.join(names)}")
    return names[value]
