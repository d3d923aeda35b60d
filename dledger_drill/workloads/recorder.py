"""Takes what workloads did: writes it to the history, counts what was acknowledged, and knows what consumers were not given yet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from dledger_drill.history.records import PROBE, Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_wire.errors import DledgerError


def outcome_of(error: DledgerError) -> Outcome:
    """What an error of a call says of the call: the error's class decides, which is a promise of the product."""
    return Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAILED


class Undelivered:
    """Values that were acknowledged, or committed, and not given to each consumer group of their topic.

    A delivery may be seen before its acknowledgement, so both are noted, and a pair is forgotten.
    """

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = defaultdict(set)  # by topic
        self._expected: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._delivered: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._changed = asyncio.Event()

    def subscribe(self, topic: str, consumer_group: str) -> None:
        self._groups[topic].add(consumer_group)

    def expect(self, topic: str, value: str) -> None:
        for group in self._groups[topic]:
            if value in self._delivered[topic, group]:
                self._delivered[topic, group].remove(value)
            else:
                self._expected[topic, group].add(value)

    def delivered(self, topic: str, consumer_group: str, value: str) -> None:
        expected = self._expected[topic, consumer_group]
        if value in expected:
            expected.remove(value)
            self._changed.set()
        else:
            self._delivered[topic, consumer_group].add(value)

    def sent_back(self, topic: str, consumer_group: str, value: str) -> None:
        """It was given to the consumer group, and has to be once more."""
        self._expected[topic, consumer_group].add(value)

    @property
    def count(self) -> int:
        return sum(map(len, self._expected.values()))

    def examples(self, most: int = 3) -> list[str]:
        return [f"{value} ({group})" for (_, group), values in self._expected.items() for value in sorted(values)[:most]][:most]

    async def wait_for_none(self, timeout_s: float) -> None:
        """TimeoutError when consumers are given none of them for so long: a slow machine takes its time, and goes on."""
        while self.count:
            self._changed.clear()
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()


class Recorder:
    """``round`` is what operations are of that begin now."""

    def __init__(self, writer: HistoryWriter) -> None:
        self.round = 0
        self.undelivered = Undelivered()
        self._writer = writer
        self._acknowledged: Counter[str] = Counter()
        self._probed: Counter[str] = Counter()
        self._probed_ns: dict[str, int] = {}  # when each probe was acknowledged last
        self._pauses_ns: dict[str, int] = {}  # replica group -> the longest time between two of them in this round
        self._pauses_of = 0

    def record(
        self, process: str, kind: OperationKind, invoked_ns: int, outcome: Outcome, data: dict[str, Any], *, of_round: int | None = None
    ) -> None:
        """An operation that ends now."""
        returned_ns = time.monotonic_ns()
        round_now = self.round if of_round is None else of_round
        self._writer.write(Operation(process, kind, invoked_ns, returned_ns, outcome, round_now, data))
        if kind in (OperationKind.SEND, OperationKind.DELAYED, OperationKind.TRANSACTION) and outcome is Outcome.OK:
            self._acknowledged[data["group"]] += 1
            if process.startswith(PROBE):
                self._note_pause(process, data["group"], returned_ns)

    def _note_pause(self, process: str, group: str, now_ns: int) -> None:
        if self._pauses_of != self.round:
            self._pauses_of = self.round
            self._pauses_ns.clear()
        self._probed[group] += 1
        pause_ns = now_ns - self._probed_ns.get(process, now_ns)
        self._pauses_ns[group] = max(pause_ns, self._pauses_ns.get(group, 0))
        self._probed_ns[process] = now_ns

    def write(self, operations: Iterable[Operation]) -> None:
        """Deliveries: operations of one listener call, with the same times."""
        for operation in operations:
            self._writer.write(operation)
            read = operation.data["topic"], operation.data["consumer_group"], operation.data["value"]
            self.undelivered.delivered(*read)
            if operation.data.get("sent_back"):
                self.undelivered.sent_back(*read)

    def report(self) -> dict[str, Any]:
        """What happened since the last report."""
        report = {
            "round": self.round,
            "acknowledged": dict(self._acknowledged),
            "probed": dict(self._probed),
            "pause_ms": {group: round(ns / 1e6) for group, ns in self._pauses_ns.items() if self._pauses_of == self.round},
        }
        self._acknowledged.clear()
        self._probed.clear()
        return report
