"""What both writers ask before and during a write: whether rows may be written, to which queues, how large, and the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dledger_client import PullConsumer
from dledger_client.cluster.topic_lookup import may_not
from dledger_client.runtime.environment import ClientEnvironment, environment_for
from dledger_wire.errors import InvalidArgumentError, PermissionDeniedError, TopicPermissionError
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.names import is_system_topic
from dledger_wire.status import Perm
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS, WriteOptions
from pyspark_dledger.write.staged_batches import MAX_BODY_BYTES, FrameStamp, TargetQueue, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FEWER_QUEUES = (
    "the topic had more write queues when this write began: give it as many again (dledger topic update --write-queues) until the "
    "write is done"
)


def check_write(schema: StructType, default_topic: str, *, overwrite: bool) -> None:
    """Check what can be checked without the cluster.  Raises InvalidArgumentError."""
    if overwrite:
        raise InvalidArgumentError("mode overwrite (complete): messages cannot be overwritten; expected mode append")
    check_schema(schema, default_topic)


def driver_consumer(options: WriteOptions) -> PullConsumer:
    """For what the driver asks before and after its tasks."""
    return PullConsumer(options.bootstrap, timeout_ms=min(METADATA_TIMEOUT_MS, options.send_timeout_ms), **options.access.client())


def writable_queues(consumer: PullConsumer, topic: str) -> list[TargetQueue]:
    """The writable queues of a topic.  Raises TopicNotFoundError, TopicPermissionError, PermissionDeniedError, and
    InvalidArgumentError for a topic of the system.
    """
    if is_system_topic(topic):  # brokers refuse rows there at the commit, when others may be stored already
        raise InvalidArgumentError(f"topic {topic} belongs to the system; expected one of your own", topic=topic)
    try:
        found = sorted(consumer.topic(topic), key=lambda queues: queues.replica_group)
    except PermissionDeniedError as error:  # it may not even know of the topic, for which the right to write would do
        raise may_not(f"user {error.details.get('user', '')}", "write", topic) from None
    queues = [TargetQueue(q.replica_group, topic, number) for q in found if q.perm & Perm.WRITE for number in range(q.write_queues)]
    if not queues:
        raise TopicPermissionError(f"topic {topic}: writing is not permitted (perm {found[0].perm})", topic=topic, perm=found[0].perm)
    return queues


@contextmanager
def explaining_fewer_queues() -> Iterator[None]:
    """Say what happened when a row's queue takes no messages any more."""
    try:
        yield
    except InvalidArgumentError as error:
        if "queues" not in error.details:
            raise
        raise InvalidArgumentError(f"{error.message}; {FEWER_QUEUES}", **error.details) from None


class Targets:
    """What is known of the topics that are written to; each is asked for once."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._queues: dict[str, list[TargetQueue]] = {}
        self._limits: dict[str, int] = {}

    @property
    def topics(self) -> frozenset[str]:
        """Those whose queues were asked for: a row goes to one of them."""
        return frozenset(self._queues)

    def queues_of(self, topic: str) -> Sequence[TargetQueue]:
        if topic not in self._queues:
            self._queues[topic] = writable_queues(self._consumer, topic)
        return self._queues[topic]

    def max_body_bytes_of(self, topic: str) -> int:
        if topic not in self._limits:
            limits = [queues.max_message_bytes for queues in self._consumer.topic(topic)]
            self._limits[topic] = min(limits, default=MAX_BODY_BYTES)
        return self._limits[topic]


def frame_stamp(options: WriteOptions, make_ids: Callable[[ClientEnvironment], UniqueIds] = ClientEnvironment.unique_ids) -> FrameStamp:
    """Ids, host and clock of this process."""
    environment = environment_for(options.bootstrap, **options.access.client())
    return FrameStamp(make_ids(environment), pack_host(environment.address), environment.clock.wall_ms)
