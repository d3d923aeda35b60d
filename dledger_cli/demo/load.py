"""What the demo sends, and what was acknowledged of it.

Owns the lines (sample ones, or those of a file) and when each was sent and acknowledged.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dledger_client import Message, Producer
from dledger_wire.errors import InvalidArgumentError

TOPIC = "demo"
KEY = "line-"  # and the number of the line
SAMPLE_LINES = 2000
LEAST_SECONDS = 2.0  # a small input is spread over that long, so that the leader dies in the middle
WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """One message to send."""

    body: bytes
    tags: str = ""
    queue_key: str | None = None


def sample_lines() -> list[Line]:
    return [Line(f"order {number}: {number % 97 + 1} EUR".encode(), "paid") for number in range(1, SAMPLE_LINES + 1)]


def read_lines(path: Path, *, as_json: bool) -> list[Line]:
    """One message a line, byte for byte (a CR before the line end belongs to it).  JSON: every line must be a JSON value; of an object
    with a text ``body``, body, tags and queue_key are taken, anything else is sent as it stands."""
    raw = path.read_bytes().split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    if not raw:
        raise InvalidArgumentError(f"{path}: no lines to send")
    return [_json_line(body, f"{path}:{number}") for number, body in enumerate(raw, 1)] if as_json else [Line(body) for body in raw]


def _json_line(body: bytes, place: str) -> Line:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise InvalidArgumentError(f"{place}: not a JSON value: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("body"), str):
        return Line(value["body"].encode(), str(value.get("tags") or ""), value.get("queue_key"))
    return Line(body)


@dataclass
class Load:
    """Sends every line from a thread of its own, and records for each whether and when it was acknowledged."""

    producer: Producer
    lines: Sequence[Line]
    acknowledged: np.ndarray = field(init=False)
    errors: list[str] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.acknowledged = np.zeros(len(self.lines), dtype=bool)
        self._sent_at, self._acknowledged_at = np.zeros(len(self.lines)), np.zeros(len(self.lines))
        self._window = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()
        self._a_third = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="load", daemon=True)
        self._thread.start()

    def wait_for_a_third(self) -> None:
        """Until a third of all lines is acknowledged, or everything was sent."""
        while self._thread.is_alive() and not self._a_third.wait(0.1):
            pass

    def wait_for_all(self) -> None:
        self._thread.join()

    def _send_all(self) -> None:
        start = time.monotonic()
        pace_s = LEAST_SECONDS / len(self.lines)
        for number, line in enumerate(self.lines):
            ahead = start + number * pace_s - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)
            self._window.acquire()
            self._sent_at[number] = time.monotonic()
            message = Message(TOPIC, line.body, tags=line.tags, keys=f"{KEY}{number}")
            future = self.producer.send_async(message, queue_key=line.queue_key)
            future.add_done_callback(functools.partial(self._done, number))
        self.producer.flush()

    def _done(self, number: int, future: Any) -> None:
        self._window.release()
        error = future.exception()
        with self._lock:
            if error is not None:
                self.errors.append(f"line {number + 1}: {error}")
                return
            self._acknowledged_at[number] = time.monotonic()
            self.acknowledged[number] = True
            self.count += 1
            if self.count * 3 >= len(self.lines):
                self._a_third.set()

    def pause_ms(self, moment: float) -> float:
        """From ``moment`` to the acknowledgement of a message that was sent after it; not a number when there was none."""
        later = self.acknowledged & (self._sent_at > moment)
        return float(self._acknowledged_at[later].min() - moment) * 1000 if later.any() else float("nan")
