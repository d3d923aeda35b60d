"""A producer's settings: their defaults, their limits, and the names RocketMQ gives them.

Owns the table of names.  Every setting may be given by either name; times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

from dledger_client.runtime.argument_ranges import check_kind, check_text, within
from dledger_client.runtime.security import SecuritySettings
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.compress import DEFAULT_LEVEL, MAX_BODY_BYTES, compression_of
from dledger_wire.names import AUTO_CREATE_TOPIC, check_producer_id, check_topic

LATENCY_MAX = (50, 100, 550, 1800, 3000, 5000, 15_000)
NOT_AVAILABLE_DURATION = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
UNLIMITED = -1

# RocketMQ's name of a setting -> ours.
UPSTREAM_NAMES = {
    "producerGroup": "group",
    "createTopicKey": "create_topic_key",
    "defaultTopicQueueNums": "default_topic_queues",
    "sendMsgTimeout": "send_timeout_ms",
    "maxMessageSize": "max_message_bytes",
    "retryTimesWhenSendFailed": "retry_times",
    "retryAnotherBrokerWhenNotStoreOK": "retry_another_group",
    "sendLatencyFaultEnable": "latency_fault",
    "latencyMax": "latency_max",
    "notAvailableDuration": "not_available_duration",
    "compressMsgBodyOverHowmuch": "compress_over_bytes",
    "compressType": "compress_type",
    "compressLevel": "compress_level",
}

# Of a producer of transactions only.
CHECK_NAMES = {
    "transactionCheckListener": "check_listener",
    "checkThreadPoolMinSize": "check_threads",
    "checkThreadPoolMaxSize": "check_threads",
    "checkRequestHoldMax": "check_requests_held",
}


class ProducerSettings(SecuritySettings, total=False):
    """Settings of a producer, with those of ``SecuritySettings``. Times are milliseconds, sizes bytes. The names in camel case are
    RocketMQ's names of the same settings.

    Attributes:
        producer_id: A name that stays the same when the application restarts, of A-Z a-z 0-9 _ - % |; see ``Producer.stored``. Default:
            none.
        send_timeout_ms: How long a message is tried before its future fails. Default: 10 000.
        linger_ms: How long an open batch waits for more messages; 0: only while others are in flight. Default: 0.
        batch_bytes: Size at which a batch is closed. Default: 1 MiB.
        sticky_messages: Messages without a key that go to one queue before the next is chosen. Default: 100.
        max_buffered_bytes: Bytes of unacknowledged messages; more have to wait. Default: 64 MiB.
        max_message_bytes: Largest message or batch, up to 64 MiB. Default: 4 MiB.
        retry_times: Resends after a broken connection, within the timeout; -1: no limit. Default: -1.
        retry_another_group: Messages without a key that were never sent go to another replica group as soon as theirs
            has no leader, not only when it had none for a second. Default: False.
        create_topic_key: The topic whose settings an automatically created topic gets. Default: TBW102.
        default_topic_queues: Queues of a topic that is created automatically. Default: 4.
        latency_fault: Avoid replica groups that responded slowly or not. Default: True.
        latency_max: Latencies in milliseconds from which a replica group is avoided.
        not_available_duration: For how many milliseconds, by the latencies of ``latency_max``.
        compress_over_bytes: Bodies larger than this are compressed. Default: 4096.
        compress_type: ``zlib``, ``lz4``, ``zstd`` or ``none``. Default: ``zlib``.
        compress_level: 1 (fast) to 9 (small). Default: 5.
        on_blocked: Called with the reason when messages begin to wait because an alarm of a leader, of its memory or disk, keeps
            them out; on the client's event loop, so it must not wait. Default: none.
        on_unblocked: Called when messages do not wait for an alarm any more. Default: none.
        user: See ``SecuritySettings``, as the next three.
        password: Password of the user.
        password_file: File with the password.
        tls: The authorities that the client trusts, and its certificate.
    """

    producer_id: str
    send_timeout_ms: int
    linger_ms: int
    batch_bytes: int
    sticky_messages: int
    max_buffered_bytes: int
    max_message_bytes: int
    retry_times: int
    retry_another_group: bool
    create_topic_key: str
    default_topic_queues: int
    latency_fault: bool
    latency_max: Sequence[int]
    not_available_duration: Sequence[int]
    compress_over_bytes: int
    compress_type: str
    compress_level: int
    on_blocked: Callable[[str], object] | None
    on_unblocked: Callable[[], object] | None
    producerGroup: str
    createTopicKey: str
    defaultTopicQueueNums: int
    sendMsgTimeout: int
    maxMessageSize: int
    retryTimesWhenSendFailed: int
    retryAnotherBrokerWhenNotStoreOK: bool
    sendLatencyFaultEnable: bool
    latencyMax: Sequence[int]
    notAvailableDuration: Sequence[int]
    compressMsgBodyOverHowmuch: int
    compressType: str
    compressLevel: int


class TransactionSettings(ProducerSettings, total=False):
    """Settings of a producer of transactions, with those of ``ProducerSettings``. The names in camel case are RocketMQ's names of the same
    settings.

    Attributes:
        check_threads: Checks answered at once. Default: 1.
        check_requests_held: Checks that may wait; further ones are asked again later. Default: 2000.
        check_topics: Topics that the group uses in transactions: checks are answered in their replica groups, and in those
            that this producer sends to. Default: in all replica groups, with a connection to each leader.
    """

    check_threads: int
    check_requests_held: int
    check_topics: Sequence[str] | None
    transactionCheckListener: Callable[..., Any]
    checkThreadPoolMinSize: int
    checkThreadPoolMaxSize: int
    checkRequestHoldMax: int


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The settings of one producer, checked."""

    group: str = ""
    producer_id: str = ""  # a name that stays the same when the client is started again
    send_timeout_ms: int = 10_000
    linger_ms: int = 0
    batch_bytes: int = 1 << 20
    sticky_messages: int = 100  # without a key: to one queue before the next one takes over
    max_buffered_bytes: int = 64 << 20
    max_message_bytes: int = 4 << 20
    retry_times: int = UNLIMITED  # as often as there is time
    retry_another_group: bool = False
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queues: int = 4
    latency_fault: bool = True
    latency_max: Sequence[int] = LATENCY_MAX
    not_available_duration: Sequence[int] = NOT_AVAILABLE_DURATION
    compress_over_bytes: int = 4096
    compress_type: str = "zlib"  # or lz4, zstd, none
    compress_level: int = DEFAULT_LEVEL
    on_blocked: Callable[[str], object] | None = None  # with the reason
    on_unblocked: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        for name in ("group", "producer_id", "create_topic_key", "compress_type"):
            check_text(**{name: getattr(self, name)})
        if self.producer_id:
            check_producer_id(self.producer_id)
        for name in (
            "send_timeout_ms",
            "batch_bytes",
            "sticky_messages",
            "max_buffered_bytes",
            "default_topic_queues",
        ):
            _at_least(1, name, getattr(self, name))
        within(1, MAX_BODY_BYTES, max_message_bytes=self.max_message_bytes)
        _at_least(0, "linger_ms", self.linger_ms)
        if self.linger_ms >= self.send_timeout_ms:
            expected = f"expected less than send_timeout_ms, {self.send_timeout_ms}"
            raise InvalidArgumentError(f"linger_ms {self.linger_ms}: {expected}; messages would wait until they fail")
        _at_least(0, "compress_over_bytes", self.compress_over_bytes)
        compression_of(self.compress_type)
        within(1, 9, compress_level=self.compress_level)
        _at_least(UNLIMITED, "retry_times", self.retry_times)
        for name in ("latency_max", "not_available_duration"):
            check_kind(Sequence, name, getattr(self, name))
            check_kind(Number, name, *getattr(self, name))
        rising = list(self.latency_max) == sorted(self.latency_max)
        if not rising or len(self.latency_max) != len(self.not_available_duration):
            raise InvalidArgumentError("latency_max: expected rising numbers, as many as not_available_duration has")

    @classmethod
    def of(cls, group: str, settings: Mapping[str, Any]) -> ProducerOptions:
        """The options out of settings by either name.  TypeError for an unknown name, InvalidArgumentError for one given twice."""
        given: dict[str, Any] = {"group": group} if group else {}
        for name, value in settings.items():
            own = UPSTREAM_NAMES.get(name, name)
            if is_of_checks(name):
                text = f"{name} is a setting of TransactionProducer; a plain producer gets no transaction checks"
                raise InvalidArgumentError(text)
            if own not in cls.__dataclass_fields__:
                near = difflib.get_close_matches(name, [*cls.__dataclass_fields__, *UPSTREAM_NAMES], 1)
                raise TypeError(f"a producer has no setting {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
            if own in given:
                raise InvalidArgumentError(f"{name}: {own} is given twice")
            given[own] = value
        return cls(**given)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Additional settings of a transactional producer."""

    check_listener: Callable[..., Any]
    check_threads: int = 1
    check_requests_held: int = 2000
    check_topics: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.check_topics, str) or not all(isinstance(topic, str) for topic in self.check_topics or ()):
            raise InvalidArgumentError(f"check_topics {self.check_topics!r}: expected a list of topics")
        for topic in self.check_topics or ():
            check_topic(topic)
        if not callable(self.check_listener):
            raise InvalidArgumentError(f"check_listener {self.check_listener!r}: expected a function of a message")
        _at_least(1, "check_threads", self.check_threads)
        _at_least(1, "check_requests_held", self.check_requests_held)

    @classmethod
    def of(cls, listener: Callable[..., Any] | None, settings: Mapping[str, Any]) -> CheckOptions:
        """The options among a producer's settings, by either name.  InvalidArgumentError without a listener, or for one given twice."""
        given: dict[str, Any] = {} if listener is None else {"check_listener": listener}
        for name in (*cls.__dataclass_fields__, *CHECK_NAMES):
            own, value = CHECK_NAMES.get(name, name), settings.get(name)
            if value is None:
                continue
            if name == "checkThreadPoolMaxSize" and settings.get("check_threads") is None:
                value = max(value, given.get(own, 0))  # beside the other bound: threads are there from the start, as many as there may be
            elif own in given:
                raise InvalidArgumentError(f"{name}: {own} is given twice")
            given[own] = value
        if "check_listener" not in given:
            raise InvalidArgumentError("a transactional producer needs a check_listener, which answers transaction checks")
        return cls(**given)


def is_of_checks(name: str) -> bool:
    return CHECK_NAMES.get(name, name) in CheckOptions.__dataclass_fields__


def _at_least(low: int, name: str, value: int) -> None:
    if not isinstance(value, int):
        raise InvalidArgumentError(f"{name} {value!r}: expected a whole number")
    if value < low:
        raise InvalidArgumentError(f"{name} {value}: expected at least {low}")
