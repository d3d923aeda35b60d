"""Clients of a real cluster that write down what they do as operations of a drill's history: one queue, ``t`` of ``g0``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from dledger_client import Message, Producer, PullConsumer
from dledger_client.types import SendFuture
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_wire.errors import DledgerError
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

QUEUE = {"topic": "t", "group": "g0", "queue": 0}


class Clients:
    """Threads that work until the block ends; each has a name and a history of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = 0
        self._bootstrap = bootstrap
        self._stopped = threading.Event()
        self._operations: list[Operation] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def go_on(self, count: int) -> None:
        """Return when ``count`` more messages are acknowledged."""
        wanted = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= wanted, f"{count} more acknowledged", pause_s=0.002)

    def history(self) -> list[Operation]:
        """In the order in which operations began, with what the queue holds now."""
        done = list(self._operations)
        return [*sorted(done, key=lambda operation: operation.invoked_ns), stored(self._bootstrap)]

    def produce_without_waiting(self, name: str, pause_s: float) -> None:
        def run() -> None:
            with Producer(self._bootstrap, send_timeout_ms=LIMIT_MS) as producer:
                self._repeat(pause_s, lambda number: self._send(producer, name, number))

        self._start(name, run)

    def produce(self, name: str, pause_s: float) -> None:
        """One message after the other."""

        def run() -> None:
            with Producer(self._bootstrap, send_timeout_ms=LIMIT_MS) as producer:
                self._repeat(pause_s, lambda number: self._send(producer, name, number).exception(LIMIT_S))

        self._start(name, run)

    def read(self, name: str, pause_s: float, replica: str | None = None) -> None:
        """Linearizable reads of all that is new; of one replica if it is named."""

        def run() -> None:
            position = [0]
            with PullConsumer(self._bootstrap, replica=replica) as consumer:
                self._repeat(pause_s, lambda _: self._read(consumer, name, position))

        self._start(name, run)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, name=name))
        self._threads[-1].start()

    def _repeat(self, pause_s: float, do: Callable[[int], Any]) -> None:
        number = 0
        while not self._stopped.wait(pause_s):
            number += 1
            do(number)

    def _send(self, producer: Producer, name: str, number: int) -> SendFuture:
        value, invoked_ns = f"{name}/{number}", time.monotonic_ns()

        def note(future: SendFuture) -> None:
            data = QUEUE | {"key": None, "value": value, "idempotent": True}
            outcome = Outcome.UNKNOWN
            if future.exception() is None:
                data["offset"] = future.result().queue_offset
                outcome = Outcome.OK
            self._note(name, OperationKind.SEND, invoked_ns, outcome, data)
            self.acknowledged += outcome is Outcome.OK

        future = producer.send_async(Message("t", value.encode()), queue_id=0)
        future.add_done_callback(note)
        return future

    def _read(self, consumer: PullConsumer, name: str, position: list[int]) -> None:
        """One read: everything from the position on as of one moment, so as much as one answer holds."""
        invoked_ns, start = time.monotonic_ns(), position[0]
        try:
            messages = consumer.fetch("t", queue_id=0, offset=start, max_messages=100_000, linearizable=True)
        except DledgerError:
            return
        values = [message.body.decode() for message in messages]
        position[0] += len(values)
        data = QUEUE | {"mode": "linearizable", "from_offset": start, "end_offset": position[0], "values": values, "node": ""}
        self._note(name, OperationKind.READ, invoked_ns, Outcome.OK, data)

    def _note(self, name: str, kind: OperationKind, invoked_ns: int, outcome: Outcome, data: dict[str, Any]) -> None:
        self._operations.append(Operation(name, kind, invoked_ns, time.monotonic_ns(), outcome, 1, data))


def stored(bootstrap: str) -> Operation:
    """The whole queue."""
    values: list[str] = []
    with PullConsumer(bootstrap, timeout_ms=LIMIT_MS) as consumer:
        end = consumer.offsets("t")["g0", 0].max_offset
        while len(values) < end:
            values += [message.body.decode() for message in consumer.fetch("t", queue_id=0, offset=len(values), max_messages=1000)]
    data = QUEUE | {"first_offset": 0, "values": values, "keys": [None] * len(values)}
    now = time.monotonic_ns()
    return Operation("audit", OperationKind.STORED, now, now, Outcome.OK, 1, data)
