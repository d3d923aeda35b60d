"""Options of the Spark source, checked before any job starts.

Owns names, defaults and the one line each mistake gets: option, value, what was expected.  Spark hands options over with keys in lower
case; the names here are compared without regard to case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_topic
from pyspark_dledger.schema import COLUMNS, checked_columns

STAGING_TOPIC = "spark-staging"
EARLIEST = -2
LATEST = -1
READ_FROM = ("follower", "leader", "any")

# (group, queue) -> offset, of one topic
QueueOffsets = dict[tuple[str, int], int]

KNOWN = (
    "bootstrap",
    "topic",
    "tags",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "readFrom",
    "maxMessagesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "columns",
    "includeBody",
    "includeProperties",
    "fetchBytes",
    "readTimeoutMs",
)
WRITE_KNOWN = ("bootstrap", "topic", "sendTimeoutMs", "stagingTopic", "txnAppId", "txnVersion")
# Spark adds these by itself.
_SPARK_OWN = ("path", "paths", "checkpointLocation")


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or end: ``fallback`` (EARLIEST or LATEST) for every queue ``queues`` does not name, unless ``timestamp_ms`` rules."""

    fallback: int
    queues: dict[str, QueueOffsets] = field(default_factory=dict)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a read needs to know; sizes in bytes, times in milliseconds."""

    bootstrap: str
    topics: tuple[str, ...]
    tags: str
    start: Position
    end: Position
    read_from: str
    min_partitions: int
    max_records_per_partition: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    fetch_bytes: int
    read_timeout_ms: int


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


class _Given:
    """The options as given, looked up without regard to case, with typed and checked reading."""

    def __init__(self, options: Mapping[str, str], known_names: tuple[str, ...] = KNOWN) -> None:
        self._values = {key.lower(): value for key, value in options.items()}
        known = {name.lower() for name in (*known_names, *_SPARK_OWN)}
        for key in sorted(self._values):
            if key not in known:
                raise InvalidArgumentError(f"option {key}: unknown; expected one of {', '.join(known_names)}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name.lower(), default)
        if value is None or not value.strip():
            raise InvalidArgumentError(f"option {name}: missing; expected a value")
        return value.strip()

    def optional(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return value.strip() if value is not None and value.strip() else None

    def number(self, name: str, default: int, *, least: int) -> int:
        value = self.optional(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise InvalidArgumentError(f"option {name}: {value!r}; expected a whole number of at least {least}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.optional(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"option {name}: {value!r}; expected true or false")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, choices[0])
        if value not in choices:
            raise InvalidArgumentError(f"option {name}: {value!r}; expected one of {', '.join(choices)}")
        return value


def parse_read_options(options: Mapping[str, str], columns: tuple[str, ...] | None = None) -> ReadOptions:
    """Check everything at once; ``columns`` is the projection of a schema the user gave, if he gave one."""
    given = _Given(options)
    start = _position(given, "startingOffsets", "startingTimestamp", EARLIEST)
    end = _position(given, "endingOffsets", "endingTimestamp", LATEST)
    return ReadOptions(
        bootstrap=given.text("bootstrap"),
        topics=_topics(given.text("topic")),
        tags=given.text("tags", "*"),
        start=start,
        end=end,
        read_from=given.choice("readFrom", READ_FROM),
        min_partitions=given.number("minPartitions", 0, least=1),
        max_records_per_partition=given.number("maxRecordsPerPartition", 0, least=1),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        columns=columns if columns is not None else _wanted_columns(given),
        fetch_bytes=given.number("fetchBytes", 32 << 20, least=64 << 10),
        read_timeout_ms=given.number("readTimeoutMs", 120_000, least=100),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write."""
    given = _Given(options, WRITE_KNOWN)
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


def parse_trigger_limit(options: Mapping[str, str]) -> int:
    """Option ``maxMessagesPerTrigger`` of a stream; 0 is no limit.  A stream has no end, so options that name one are refused."""
    given = _Given(options)
    for name in ("endingOffsets", "endingTimestamp"):
        if given.optional(name) is not None:
            raise InvalidArgumentError(f"option {name}: a stream has no end; expected it in batch reads only")
    return given.number("maxMessagesPerTrigger", 0, least=1)


def wanted_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns chosen by options alone: what ``DataSource.schema`` announces."""
    return _wanted_columns(_Given(options))


def _wanted_columns(given: _Given) -> tuple[str, ...]:
    chosen = given.optional("columns")
    names = checked_columns(chosen) if chosen else tuple(COLUMNS)
    dropped = {name for name, option in (("body", "includeBody"), ("properties", "includeProperties")) if not given.flag(option, True)}
    kept = tuple(name for name in names if name not in dropped)
    if not kept:
        raise InvalidArgumentError("options columns, includeBody, includeProperties: no column is left")
    return kept


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise InvalidArgumentError(f"option topic: {text!r}; expected one or more topic names separated by commas")
    return topics


def _position(given: _Given, offsets_name: str, timestamp_name: str, default: int) -> Position:
    """A timestamp takes precedence over offsets, as in the Kafka source."""
    timestamp = given.optional(timestamp_name)
    if timestamp is not None:
        return Position(default, timestamp_ms=given.number(timestamp_name, 0, least=0))
    text = given.optional(offsets_name)
    if text is None:
        return Position(default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return _checked_word(offsets_name, text, words[text.lower()], default)
    return Position(default, queues=parse_offsets(offsets_name, text))


def _checked_word(name: str, text: str, value: int, default: int) -> Position:
    # A batch that starts at the end, or ends at the start, reads nothing: surely a mistake.
    if value != default:
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


def _require(condition: object, name: str, found: str, expected: str, error: Callable[[str], Exception] = InvalidArgumentError) -> None:
    if not condition:
        raise error(f"option {name}: {found}; expected {expected}")
