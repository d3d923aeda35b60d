"""Options of the Spark source and sink, checked before any job starts.

Owns names, defaults and what belongs together; docs/spark.md has them in one table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group, check_topic
from pyspark_dledger.given import Given
from pyspark_dledger.schema import COLUMNS, checked_columns

STAGING_TOPIC = "spark-staging"
EARLIEST = -2
LATEST = -1
READ_FROM = ("follower", "leader", "any")
NO_LAG_LIMIT = -1
NO_END = 1 << 63

# (group, queue) -> offset, of one topic
QueueOffsets = dict[tuple[str, int], int]

KNOWN = (
    "bootstrap",
    "topic",
    "topicPattern",
    "tags",
    "keys",
    "queues",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "readFrom",
    "replica",
    "localFiles",
    "mend",
    "maxLagMessages",
    "linearizable",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelayMs",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "filterPushdown",
    "groupId",
    "columns",
    "includeBody",
    "includeProperties",
    "fetchBytes",
    "readTimeoutMs",
)
# What the Kafka source calls them.
ALIASES = {
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minOffsetsPerTrigger": "minMessagesPerTrigger",
    "subscribe": "topic",
    "subscribePattern": "topicPattern",
}
WRITE_KNOWN = ("bootstrap", "topic", "sendTimeoutMs", "stagingTopic", "txnAppId", "txnVersion")


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or end: ``fallback`` (EARLIEST or LATEST) for every queue ``queues`` does not name, unless ``timestamp_ms`` rules."""

    fallback: int
    queues: dict[str, QueueOffsets] = field(default_factory=dict)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Filters:
    """What is read of the topics.  Empty means everything; ``queues`` are (group, queue), group "" for any.

    Offsets and store times are bounds beside those of the positions, the upper ones exclusive; conditions of a query become them.
    """

    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    queues: frozenset[tuple[str, int]] = frozenset()
    least_offset: int = 0
    end_offset: int = NO_END
    since_ms: int | None = None
    until_ms: int | None = None

    def has_queue(self, group: str, queue_id: int) -> bool:
        return not self.queues or (group, queue_id) in self.queues or ("", queue_id) in self.queues


NO_FILTERS = Filters()


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much one trigger takes; 0 is no limit.  Less than ``min_messages`` waits, at most ``max_delay_ms``."""

    max_messages: int = 0
    max_bytes: int = 0
    min_messages: int = 0
    max_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a read needs to know; sizes in bytes, times in milliseconds.  Either ``topics`` or ``topic_pattern`` is given."""

    bootstrap: str
    topics: tuple[str, ...]
    topic_pattern: str
    filters: Filters
    start: Position
    end: Position
    read_from: str
    replica: str
    local_files: bool
    mend: bool
    max_lag: int
    linearizable: bool
    min_partitions: int
    max_records_per_partition: int
    fail_on_data_loss: bool
    filter_pushdown: bool
    group_id: str
    limits: TriggerLimits
    columns: tuple[str, ...]
    fetch_bytes: int
    read_timeout_ms: int

    @property
    def tag_expression(self) -> str:
        return " || ".join(self.filters.tags) or "*"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything a write needs to know; ``topic`` is empty when every row names its own.

    ``application`` and ``version`` name a batch write that may be repeated (Delta's txnAppId and txnVersion); empty: it is a new one.
    """

    bootstrap: str
    topic: str
    send_timeout_ms: int
    staging_topic: str
    application: str
    version: int
    checkpoint: str


def parse_read_options(options: Mapping[str, str], columns: tuple[str, ...] | None = None, *, stream: bool = False) -> ReadOptions:
    """Check everything at once; ``columns`` is the projection of a schema the user gave, if he gave one."""
    given = Given(options, KNOWN, ALIASES)
    topics, pattern = _topics(given)
    if given.optional("replica") and given.optional("readFrom"):
        raise InvalidArgumentError("options replica and readFrom: expected one of them")
    group_id = given.optional("groupId")
    return ReadOptions(
        bootstrap=given.text("bootstrap"),
        topics=topics,
        topic_pattern=pattern,
        filters=_filters(given),
        start=_position(given, "startingOffsets", "startingTimestamp", EARLIEST, both=stream),
        end=_position(given, "endingOffsets", "endingTimestamp", LATEST, both=False),
        read_from=given.choice("readFrom", READ_FROM),
        replica=given.optional("replica") or "",
        local_files=given.flag("localFiles", False),
        mend=given.flag("mend", True),
        max_lag=given.number("maxLagMessages", NO_LAG_LIMIT, least=0),
        linearizable=given.flag("linearizable", False),
        min_partitions=given.number("minPartitions", 0, least=1),
        max_records_per_partition=given.number("maxRecordsPerPartition", 0, least=1),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        filter_pushdown=given.flag("filterPushdown", False),
        group_id=check_group(group_id) if group_id else "",
        limits=_limits(given, stream=stream),
        columns=columns if columns is not None else _wanted_columns(given),
        fetch_bytes=given.number("fetchBytes", 32 << 20, least=64 << 10),
        read_timeout_ms=given.number("readTimeoutMs", 120_000, least=100),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write."""
    given = Given(options, WRITE_KNOWN)
    application, version = given.optional("txnAppId") or "", given.number("txnVersion", 0, least=0)
    if (given.optional("txnVersion") is not None) != bool(application):
        raise InvalidArgumentError("options txnAppId and txnVersion: expected both or none")
    if version >= 1 << 32:
        raise InvalidArgumentError(f"option txnVersion: {version}; expected a number below {1 << 32}")
    return WriteOptions(
        bootstrap=given.text("bootstrap"),
        topic=given.optional("topic") or "",
        send_timeout_ms=given.number("sendTimeoutMs", 120_000, least=100),
        staging_topic=check_topic(given.text("stagingTopic", STAGING_TOPIC)),
        application=application,
        version=version,
        checkpoint=given.optional("checkpointLocation") or "",
    )


def _limits(given: Given, *, stream: bool) -> TriggerLimits:
    """A stream's limits; in a batch they mean nothing."""
    found = TriggerLimits(
        given.number("maxMessagesPerTrigger", 0, least=1),
        given.number("maxBytesPerTrigger", 0, least=1),
        given.number("minMessagesPerTrigger", 0, least=1),
        given.number("maxTriggerDelayMs", 15 * 60_000, least=1),
    )
    if stream and found.max_messages and found.min_messages > found.max_messages:
        raise InvalidArgumentError(
            f"option minMessagesPerTrigger: {found.min_messages}; expected at most maxMessagesPerTrigger, {found.max_messages}"
        )
    return found


def wanted_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns chosen by options alone: what ``DataSource.schema`` announces."""
    return _wanted_columns(Given(options, KNOWN, ALIASES))


def _wanted_columns(given: Given) -> tuple[str, ...]:
    chosen = given.optional("columns")
    names = checked_columns(chosen) if chosen else tuple(COLUMNS)
    dropped = {name for name, option in (("body", "includeBody"), ("properties", "includeProperties")) if not given.flag(option, True)}
    kept = tuple(name for name in names if name not in dropped)
    if not kept:
        raise InvalidArgumentError("options columns, includeBody, includeProperties: no column is left")
    return kept


def _topics(given: Given) -> tuple[tuple[str, ...], str]:
    """(topic names, "") or ((), pattern)."""
    text, pattern = given.optional("topic"), given.optional("topicPattern")
    if (text is None) == (pattern is None):
        raise InvalidArgumentError("options topic and topicPattern: expected one of them")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidArgumentError(f"option topicPattern: {pattern!r}; expected a regular expression ({error})") from None
        return (), pattern
    topics = given.words("topic")
    if not topics:
        raise InvalidArgumentError(f"option topic: {text!r}; expected one or more topic names separated by commas")
    return topics, ""


def _filters(given: Given) -> Filters:
    tags = given.text("tags", "*")
    wanted = () if tags == "*" else tuple(dict.fromkeys(tag.strip() for tag in tags.split("||")))
    if not all(wanted):
        raise InvalidArgumentError(f"option tags: {tags!r}; expected tag || tag ..., or *")
    queues = set()
    for word in given.words("queues"):
        group, _, number = word.rpartition(":")
        if not (number.isascii() and number.isdecimal()):
            raise InvalidArgumentError(f'option queues: {word!r}; expected numbers such as 0,3 or "group:queue" such as g0:0,g0:3')
        queues.add((group, int(number)))
    return Filters(wanted, given.words("keys"), frozenset(queues))


def _position(given: Given, offsets_name: str, timestamp_name: str, default: int, *, both: bool) -> Position:
    """A timestamp takes precedence over offsets, as in the Kafka source.  ``both``: either word may be said, as at a stream's start."""
    timestamp = given.optional(timestamp_name)
    if timestamp is not None:
        return Position(default, timestamp_ms=given.number(timestamp_name, 0, least=0))
    text = given.optional(offsets_name)
    if text is None:
        return Position(default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return _checked_word(offsets_name, text, words[text.lower()], default, both=both)
    return Position(default, queues=parse_offsets(offsets_name, text))


def _checked_word(name: str, text: str, value: int, default: int, *, both: bool) -> Position:
    # A batch that starts at the end, or ends at the start, reads nothing: surely a mistake.
    if value != default and not both:
        opposite = "earliest" if default == EARLIEST else "latest"
        raise InvalidArgumentError(f"option {name}: {text!r} reads nothing in a batch; expected {opposite} or JSON offsets")
    return Position(value)


def parse_offsets(name: str, text: str) -> dict[str, QueueOffsets]:
    """``{"topic": {"group:queue": offset}}``; offset -2 is earliest, -1 latest.  Raises InvalidArgumentError naming what is wrong."""
    shape = 'earliest, latest or JSON {"topic":{"group:queue":offset}}'
    try:
        loaded = json.loads(text)
    except ValueError:
        raise InvalidArgumentError(f"option {name}: {text!r}; expected {shape}") from None
    _require(isinstance(loaded, dict) and loaded, name, text, shape)
    result: dict[str, QueueOffsets] = {}
    for topic, queues in loaded.items():
        _require(isinstance(queues, dict) and queues, name, f"{topic}: {queues}", 'an object {"group:queue":offset}')
        result[topic] = {_queue_key(name, key): _offset(name, key, value) for key, value in queues.items()}
    return result


def format_offsets(offsets: Mapping[str, QueueOffsets]) -> str:
    """The JSON text of offsets, keys sorted: what checkpoints and messages show."""
    plain = {
        topic: {f"{group}:{queue}": offset for (group, queue), offset in sorted(queues.items())}
        for topic, queues in sorted(offsets.items())
    }
    return json.dumps(plain)


def _queue_key(name: str, key: str) -> tuple[str, int]:
    group, separator, queue = key.rpartition(":")
    _require(bool(separator) and bool(group) and queue.isdecimal(), name, repr(key), 'a key "group:queue" such as "g0:3"')
    return group, int(queue)


def _offset(name: str, key: str, value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST
    _require(good, name, f"{key}: {value!r}", "an offset of 0 or more, -2 (earliest) or -1 (latest)")
    return int(value)


def _require(condition: object, name: str, found: str, expected: str) -> None:
    if not condition:
        raise InvalidArgumentError(f"option {name}: {found}; expected {expected}")
