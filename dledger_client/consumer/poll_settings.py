"""A polled consumer's settings, and what Kafka's clients call them.

Owns the table of Kafka's names: a setting that is given by one of them is refused with ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from dledger_client.consumer.allocation import MessageQueue, Strategy
from dledger_client.consumer.settings import PushOptions
from dledger_client.consumer.topic_patterns import Pattern
from dledger_client.runtime.security import SecuritySettings
from dledger_wire.errors import InvalidArgumentError

Topics: TypeAlias = str | Pattern | Iterable[str | Pattern]
RebalanceCallback: TypeAlias = Callable[[list[MessageQueue]], Any]

# A setting of kafka-python, aiokafka or confluent-kafka -> what to write here.
KAFKA_NAMES = {
    "bootstrap_servers": "bootstrap",
    "group_id": "group",
    "topic": "topics",
    "enable_auto_commit": "auto_commit",
    "auto_commit_interval_ms": "persist_offset_interval_ms",
    "auto_offset_reset": 'consume_from_where="first" or "last"',
    "max_poll_records": "the argument max_messages of poll",
    "partition_assignment_strategy": "allocate_strategy",
    "fetch_max_bytes": "pull_threshold_size_for_queue",
    "max_partition_fetch_bytes": "pull_threshold_size_for_queue",
    "queued_min_messages": "pull_threshold_for_queue",
    "request_timeout_ms": "timeout_ms",
    "consumer_timeout_ms": "the argument timeout_ms of poll",
    "client_rack": "allocate_strategy",
    "security_protocol": "tls",
    "ssl_cafile": "tls",
    "sasl_mechanism": "user and password",
    "sasl_plain_username": "user",
    "sasl_plain_password": "password",
    "on_assign": "on_assigned",
    "on_revoke": "on_revoked",
    "value_deserializer": "message.body, which is bytes",
    "key_deserializer": "message.keys, which is text",
    "session_timeout_ms": "nothing: a member that is dead is noticed after 1.3 s",
    "heartbeat_interval_ms": "nothing: the cluster chooses it",
    "isolation_level": "nothing: only what is committed is ever read",
}


class ConsumerSettings(SecuritySettings, total=False):
    """Settings of a polled consumer, with those of ``SecuritySettings``. Times are milliseconds, sizes bytes.

    Attributes:
        consume_from_where: Where a new group starts: ``first``, ``last`` (the end as it is before ``start`` returns) or ``timestamp``.
            Default: ``first``.
        consume_timestamp: For ``timestamp``: milliseconds since 1970. Default: 0.
        persist_offset_interval_ms: How often offsets are committed in the background. Default: 1000.
        pull_batch_size: Messages per fetch. Default: 256.
        pull_threshold_for_queue: Messages of a queue fetched ahead. Default: 1000.
        pull_threshold_size_for_queue: Bytes of a queue fetched ahead. Default: 100 MiB.
        allocate_strategy: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, MACHINE_ROOM, MACHINE_ROOM_NEARBY, or a function such as ``by_config``
            returns. The same for all members of the group. Default: AVG.
        allocate_options: Options of a strategy given by name: ``virtual_nodes``, ``rooms``, ``inner``.
        await_termination_ms: How long ``close`` waits for the cluster. Default: 5000.
    """

    consume_from_where: str
    consume_timestamp: int
    persist_offset_interval_ms: int
    pull_batch_size: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    allocate_strategy: str | Strategy
    allocate_options: dict[str, str]
    await_termination_ms: int


def check_names(bootstrap: object, settings: Mapping[str, Any]) -> None:
    """TypeError for an unknown setting, with our name of it where Kafka's clients have it.  Confluent's gives all of them in one dict."""
    given = [str(name).replace(".", "_") for name in bootstrap] if isinstance(bootstrap, Mapping) else [*settings]
    for name in given:
        if name not in ConsumerSettings.__annotations__ and name not in SecuritySettings.__annotations__:
            ours = KAFKA_NAMES.get(name)
            raise TypeError(f"a consumer has no setting {name!r}" + (f"; here it is {ours}" if ours else ""))


def poll_options(settings: Mapping[str, Any]) -> PushOptions:
    """The options of the engine."""
    return PushOptions(orderly=True, **settings)


def check_topics(topics: Topics) -> list[str | Pattern]:
    """The names and patterns of topics.  InvalidArgumentError for anything else."""
    found = [topics] if isinstance(topics, str | re.Pattern) else topics
    if not isinstance(found, Iterable) or isinstance(found, bytes | Mapping):
        raise InvalidArgumentError(f"topics {topics!r}: expected a topic or a list of topics")
    return list(found)
