"""Options of the Spark source and sink, checked before any job starts.

Owns names, defaults and what belongs together; docs/reference/spark.md has them in one table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger_client.fetch.subscription import parse_tags
from dledger_client.runtime.argument_ranges import MAX_U32
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group, check_topic
from pyspark_dledger.options.access import ACCESS_KNOWN, AccessOptions, parse_access
from pyspark_dledger.options.kafka_names import READ_ALIASES, READ_HINTS, WRITE_ALIASES, WRITE_HINTS
from pyspark_dledger.options.parser import OptionParser
from pyspark_dledger.options.read_bounds import EARLIEST, LATEST, ReadBound, parse_assigned, parse_read_bound
from pyspark_dledger.schema import COLUMNS, checked_columns

STAGING_TOPIC = "spark-staging"
READ_FROM = ("follower", "leader", "any")
WRITE_MODES = ("staged", "direct")
NO_LAG_LIMIT = -1
NO_END = 1 << 63
METADATA_TIMEOUT_MS = 15_000  # of each question of a driver to the cluster

KNOWN = (
    "bootstrap",
    "topic",
    "topicPattern",
    "assign",
    "tags",
    "keys",
    "queues",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "readFrom",
    "replica",
    "localFiles",
    "repair",
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
    "maxOutageMs",
    *ACCESS_KNOWN,
)
WRITE_KNOWN = ("bootstrap", "topic", "writeMode", "sendTimeoutMs", "stagingTopic", "txnAppId", "txnVersion", *ACCESS_KNOWN)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which messages of the topics are read.

    Empty ``tags`` and ``keys`` and ``queues`` None select everything.  ``queues`` are (topic, replica group, queue id);
    an empty topic or group matches any.  The other fields come from filter push-down; upper bounds are exclusive.
    ``fewer_topics``: it left topics out, which may have been those that have a queue of ``queues``.
    """

    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    queues: frozenset[tuple[str, str, int]] | None = None
    queue_ids: frozenset[int] | None = None
    least_offset: int = 0
    end_offset: int = NO_END
    since_ms: int | None = None
    until_ms: int | None = None
    fewer_topics: bool = False

    @property
    def every_queue(self) -> bool:
        """Whether they select every queue."""
        return self.queues is None and self.queue_ids is None

    def has_queue(self, topic: str, group: str, queue_id: int) -> bool:
        if self.queue_ids is not None and queue_id not in self.queue_ids:
            return False
        if self.queues is None:
            return True
        return any((name, where, queue_id) in self.queues for name in (topic, "") for where in (group, ""))


NO_FILTERS = Filters()


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of one micro-batch; 0 means no limit.  A backlog below ``min_messages`` waits for at most
    ``max_delay_ms``.
    """

    max_messages: int = 0
    max_bytes: int = 0
    min_messages: int = 0
    max_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read; sizes in bytes, times in milliseconds.  Either ``topics`` or ``topic_pattern`` is set."""

    bootstrap: str
    topics: tuple[str, ...]
    topic_pattern: str
    filters: Filters
    start: ReadBound
    end: ReadBound
    read_from: str
    replica: str
    local_files: bool
    repair: bool
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
    max_outage_ms: int
    access: AccessOptions = field(default_factory=AccessOptions)

    @property
    def tag_expression(self) -> str:
        return " || ".join(self.filters.tags) or "*"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write; ``topic`` is empty if every row has its own.

    ``application`` and ``version`` (txnAppId and txnVersion, as in Delta Lake) identify a batch write, so that a
    repeated run stores nothing twice.  If empty, every run is a new write.  ``direct``: rows are not staged.
    """

    bootstrap: str
    topic: str
    send_timeout_ms: int
    staging_topic: str
    application: str
    version: int
    checkpoint: str
    access: AccessOptions = field(default_factory=AccessOptions)
    direct: bool = False


def parse_read_options(options: Mapping[str, str], columns: tuple[str, ...] | None = None, *, stream: bool = False) -> ReadOptions:
    """Parse and check the options of a read.  ``columns``: the columns of a schema that the user passed, if any.

    ``stream``: also what only a stream may have, which a source that does not know yet what it is used for accepts, too.
    """
    given = OptionParser(options, KNOWN, READ_ALIASES, READ_HINTS)
    topics, pattern = _topics(given)
    if given.optional("replica") and given.optional("readFrom"):
        raise InvalidArgumentError("options replica and readFrom are mutually exclusive")
    group_id = given.optional("groupId")
    given.choice("startingOffsetsByTimestampStrategy", ("latest",))
    start, end = parse_read_bound(given, "starting", EARLIEST, both=stream), parse_read_bound(given, "ending", LATEST, both=False)
    if start.timestamp_ms is not None and end.timestamp_ms is not None and end.timestamp_ms < start.timestamp_ms:
        text = given.optional("endingTimestamp")
        raise InvalidArgumentError(f"option endingTimestamp: {text!r}; expected a time not before startingTimestamp")
    return ReadOptions(
        bootstrap=given.text("bootstrap"),
        topics=topics,
        topic_pattern=pattern,
        filters=_filters(given),
        start=start,
        end=end,
        read_from=given.choice("readFrom", READ_FROM),
        replica=given.optional("replica") or "",
        local_files=given.flag("localFiles", False),
        repair=given.flag("repair", True),
        max_lag=given.number("maxLagMessages", NO_LAG_LIMIT, least=0),
        linearizable=given.flag("linearizable", False),
        min_partitions=given.number("minPartitions", 0, least=1),
        max_records_per_partition=given.number("maxRecordsPerPartition", 0, least=1),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        filter_pushdown=given.flag("filterPushdown", False),
        group_id=check_group(group_id) if group_id else "",
        limits=_limits(given),
        columns=columns if columns is not None else _wanted_columns(given),
        fetch_bytes=given.size("fetchBytes", 32 << 20, least=64 << 10, most=MAX_U32),
        read_timeout_ms=given.duration_ms("readTimeoutMs", 120_000, least=100, most=MAX_U32),
        max_outage_ms=given.duration_ms("maxOutageMs", 600_000, least=0),
        access=parse_access(given),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a write."""
    given = OptionParser(options, WRITE_KNOWN, WRITE_ALIASES, WRITE_HINTS)
    application, version = given.optional("txnAppId") or "", given.number("txnVersion", 0, least=0)
    if (given.optional("txnVersion") is not None) != bool(application):
        raise InvalidArgumentError("options txnAppId and txnVersion are required together")
    if version >= 1 << 32:
        raise InvalidArgumentError(f"option txnVersion: {version}; expected a number below {1 << 32}")
    return WriteOptions(
        bootstrap=given.text("bootstrap"),
        topic=given.optional("topic") or "",
        send_timeout_ms=given.duration_ms("sendTimeoutMs", 120_000, least=100, most=MAX_U32),
        staging_topic=check_topic(given.text("stagingTopic", STAGING_TOPIC)),
        application=application,
        version=version,
        checkpoint=given.optional("checkpointLocation") or "",
        access=parse_access(given),
        direct=given.choice("writeMode", WRITE_MODES) == "direct",
    )


def _limits(given: OptionParser) -> TriggerLimits:
    """Rate limits; batch reads ignore them."""
    found = TriggerLimits(
        given.number("maxMessagesPerTrigger", 0, least=1),
        given.size("maxBytesPerTrigger", 0, least=1),
        given.number("minMessagesPerTrigger", 0, least=1),
        given.duration_ms("maxTriggerDelayMs", 15 * 60_000, least=1),
    )
    if found.max_messages and found.min_messages > found.max_messages:
        raise InvalidArgumentError(
            f"option minMessagesPerTrigger: {found.min_messages}; expected at most maxMessagesPerTrigger, {found.max_messages}"
        )
    return found


def _wanted_columns(given: OptionParser) -> tuple[str, ...]:
    chosen = given.optional("columns")
    names = checked_columns(chosen) if chosen else tuple(COLUMNS)
    dropped = {name for name, option in (("body", "includeBody"), ("properties", "includeProperties")) if not given.flag(option, True)}
    kept = tuple(name for name in names if name not in dropped)
    if not kept:
        raise InvalidArgumentError("options columns, includeBody, includeProperties: they select no column")
    return kept


def _topics(given: OptionParser) -> tuple[tuple[str, ...], str]:
    """(topic names, "") or ((), pattern)."""
    text, pattern, assigned = (given.optional(name) for name in ("topic", "topicPattern", "assign"))
    if [text, pattern, assigned].count(None) != 2:
        given_any = text or pattern or assigned
        wrong = (
            "options topic, topicPattern and assign are mutually exclusive" if given_any else "expected one of topic, topicPattern, assign"
        )
        raise InvalidArgumentError(wrong)
    if assigned is not None:
        return tuple(dict.fromkeys(topic for topic, _, _ in parse_assigned("assign", assigned))), ""
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


def _filters(given: OptionParser) -> Filters:
    try:
        wanted = parse_tags(given.text("tags", "*"))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"option {error.message}") from None
    return Filters(tuple(wanted), given.words("keys"), _queues(given))


def _queues(given: OptionParser) -> frozenset[tuple[str, str, int]] | None:
    """(topic, group, queue), "" for any; None for all."""
    words, assigned = given.words("queues"), given.optional("assign")
    if words and assigned is not None:
        raise InvalidArgumentError("options queues and assign are mutually exclusive")
    if assigned is not None:
        return frozenset(parse_assigned("assign", assigned))
    queues = set()
    for word in words:
        group, _, number = word.rpartition(":")
        if not (number.isascii() and number.isdecimal()):
            raise InvalidArgumentError(f'option queues: {word!r}; expected numbers such as 0,3 or "group:queue" such as g0:0,g0:3')
        queues.add(("", group, int(number)))
    return frozenset(queues) or None
