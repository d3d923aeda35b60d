"""The metrics of clients: name, kind, unit, labels, meaning.  ``docs/reference/client-metrics.md`` is made from this list.

Owns the names, which are promises.  Seconds and bytes are base units, and counters end in ``_total``, as in the metrics of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dledger_wire.measures import COUNTS

OTHER_TOPICS = "(other)"  # the topic of everything behind the first topics of a process
MAX_TOPICS = 100

# Clients read clocks in whole milliseconds.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class MetricKind(Enum):
    """What a metric is.

    Attributes:
        COUNTER: A number that only grows.
        HISTOGRAM: A distribution of values.
        GAUGE: A number that is read when it is collected.
    """

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the clients.

    Attributes:
        name: Its full name.
        kind: Counter, histogram or gauge.
        unit: ``seconds``, ``bytes``, or what is counted.
        labels: Names of its labels.
        help: What it says.
        bounds: Upper bounds of a histogram, rising.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()


_TOPIC, _PRODUCER = ("topic",), ("producer_group",)
_GROUP, _GROUP_TOPIC = ("consumer_group",), ("topic", "consumer_group")
_COUNTER, _HISTOGRAM, _GAUGE = MetricKind.COUNTER, MetricKind.HISTOGRAM, MetricKind.GAUGE

SENT = Metric(
    *("dledger_client_sent_messages_total", _COUNTER, "messages", ("topic", "result")),
    "Messages whose send ended: result stored, failed (not stored), or unknown (an attempt may have stored it)",
)
SENT_BYTES = Metric(
    *("dledger_client_sent_bytes_total", _COUNTER, "bytes", _TOPIC), "Bytes of stored messages: bodies as sent, keys, properties and heads"
)
SEND_SECONDS = Metric(
    *("dledger_client_send_seconds", _HISTOGRAM, "seconds", _TOPIC),
    "Time from a batch's first message to its acknowledgement",
    bounds=SECONDS,
)
BATCH_MESSAGES = Metric(
    *("dledger_client_batch_messages", _HISTOGRAM, "messages", _TOPIC),
    "Messages of each stored batch",
    bounds=tuple(float(count) for count in COUNTS),
)
RESENT = Metric(
    *("dledger_client_resent_batches_total", _COUNTER, "batches", _TOPIC),
    "Attempts to send a batch again, after a lost connection or leader",
)
BUFFERED = Metric(
    *("dledger_client_buffered_bytes", _GAUGE, "bytes", _PRODUCER),
    "Bytes of messages that are not acknowledged, of all producers of the group",
)
RECEIVED = Metric(*("dledger_client_received_messages_total", _COUNTER, "messages", _GROUP_TOPIC), "Messages that a consumer fetched")
RECEIVED_BYTES = Metric(
    *("dledger_client_received_bytes_total", _COUNTER, "bytes", _GROUP_TOPIC),
    "Bytes of those messages as they are stored, compressed ones too",
)
FETCH_FAILURES = Metric(
    *("dledger_client_fetch_failures_total", _COUNTER, "fetches", _GROUP_TOPIC),
    "Fetches of a push consumer that failed, and are tried again",
)
PROCESSED = Metric(
    *("dledger_client_processed_messages_total", _COUNTER, "messages", ("topic", "consumer_group", "result")),
    "Messages that a listener was called with: result consumed or redelivered",
)
PROCESS_SECONDS = Metric(
    *("dledger_client_process_seconds", _HISTOGRAM, "seconds", _GROUP_TOPIC), "Time of each call of a listener", bounds=SECONDS
)
DELIVERY_SECONDS = Metric(
    *("dledger_client_delivery_seconds", _HISTOGRAM, "seconds", _GROUP_TOPIC),
    "Age of the oldest message of each listener call since it was stored, by the clocks of leader and consumer",
    bounds=SECONDS,
)
WAITING = Metric(
    *("dledger_client_waiting_messages", _GAUGE, "messages", _GROUP),
    "Messages fetched and not finished, of all push consumers of the group here",
)
ASSIGNED = Metric(*("dledger_client_assigned_queues", _GAUGE, "queues", _GROUP), "Queues that push consumers of the group here consume")

CATALOG = (
    *(SENT, SENT_BYTES, SEND_SECONDS, BATCH_MESSAGES, RESENT, BUFFERED, RECEIVED, RECEIVED_BYTES, FETCH_FAILURES),
    *(PROCESSED, PROCESS_SECONDS, DELIVERY_SECONDS, WAITING, ASSIGNED),
)
