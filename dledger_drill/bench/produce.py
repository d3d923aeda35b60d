"""Producing as fast as one process can: every acknowledgement is looked at, and what was acknowledged is read back.

Owns the sending (``_send`` is the one place of it), the sample of latencies, and the account of the run.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dledger_cli.output import error_line
from dledger_drill.bench.account import NumberSet, ReadAccount
from dledger_drill.bench.bodies import Bodies
from dledger_drill.bench.report import Figures, Progress

if TYPE_CHECKING:
    from dledger_client import Producer
    from dledger_client.fetch.records import QueueOffsets

SAMPLE_EVERY = 997  # a prime: latencies of messages at changing places in their batches
# The client's loop thread takes turns with the sending one; at the default 5 ms each waits long for the other.
SWITCH_INTERVAL_S = 0.0005
# Messages come and go by the hundred thousand: at the default 700 the collector walks over those in flight again and again.
COLLECT_AFTER = 100_000

Held = dict[tuple[str, int], "QueueOffsets"]


@dataclass(slots=True)
class Produced:
    """One run: its figures, and the numbers that were acknowledged."""

    figures: Figures = field(default_factory=Figures)
    acknowledged: NumberSet = field(default_factory=NumberSet)
    checked: int = 0  # acknowledgements looked at, in the order of sending


def tune_interpreter() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def make_topic(bootstrap: str, topic: str, queues: int) -> None:
    from dledger_client import Admin

    with Admin(bootstrap) as admin:
        admin.create_topic(topic, queues=queues, if_not_exists=True)


def produce_messages(bootstrap: str, topic: str, bodies: Bodies, messages: int) -> Produced:
    """Send the bodies 0 to ``messages`` without waiting for acknowledgements, and look at each when it is there."""
    from dledger_client import Message, Producer

    tune_interpreter()
    produced = Produced()
    figures = produced.figures
    with Producer(bootstrap, group="dledger-bench", compress_type="none") as producer:
        producer.send(Message(topic, bodies.make(messages)))  # routes and session are known before the clock starts
        progress = Progress(messages, "messages")
        futures: deque[Any] = deque()
        start = time.perf_counter()
        for first in range(0, messages, SAMPLE_EVERY):
            _send(producer, topic, bodies, range(first, min(first + SAMPLE_EVERY, messages)), futures, figures)
            _check_done(futures, produced)
            progress.update(first, figures.acknowledged)
        producer.flush()
        figures.took_s = time.perf_counter() - start
        progress.end()
    _check_done(futures, produced)
    figures.failed += len(futures)  # neither stored nor refused: there are none after a flush
    figures.bytes = bodies.bytes_in(produced.acknowledged.numbers())
    return produced


def _send(producer: Producer, topic: str, bodies: Bodies, numbers: range, futures: deque[Any], figures: Figures) -> None:
    """Send some messages; the time of the first is taken."""
    from dledger_client import Message

    send, add, make = producer.send_async, futures.append, bodies.make
    begun = time.perf_counter()
    sampled = send(Message(topic, make(numbers[0])))
    sampled.add_done_callback(lambda _future: figures.latencies_ms.append((time.perf_counter() - begun) * 1e3))
    add(sampled)
    for number in numbers[1:]:
        add(send(Message(topic, make(number))))


def _check_done(futures: deque[Any], produced: Produced) -> None:
    """Look at the acknowledgements that are there, oldest first."""
    figures, stored_from = produced.figures, produced.checked
    while futures and futures[0].done():
        error = futures.popleft().exception()
        if error is not None:
            produced.acknowledged.mark_range(stored_from, produced.checked)
            stored_from = produced.checked + 1
            figures.failed += 1
            if figures.failed == 1:
                error_line(str(error), error)
        produced.checked += 1
    produced.acknowledged.mark_range(stored_from, produced.checked)
    figures.acknowledged = produced.acknowledged.marks


def queue_ends(bootstrap: str, topic: str) -> Held:
    """What every queue of the topic holds."""
    from dledger_client import PullConsumer

    with PullConsumer(bootstrap) as consumer:
        return consumer.offsets(topic)


def read_back(bootstrap: str, topic: str, before: Held) -> ReadAccount:
    """Everything that the queues got since they were as ``before``."""
    from dledger_client import PullConsumer

    account = ReadAccount()
    with PullConsumer(bootstrap) as consumer:
        for (group, queue_id), held in consumer.offsets(topic).items():
            known = before.get((group, queue_id))
            first = max(held.min_offset, known.max_offset if known else 0)
            for chunk in consumer.read_chunks(topic, queue_id, first, held.max_offset, replica_group=group):
                account.read(chunk)
    return account
