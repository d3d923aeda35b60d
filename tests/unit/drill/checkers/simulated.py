"""Histories that a correct cluster could give: a queue in memory with clients around it, every choice drawn from a seed.

Each operation takes effect at one moment inside its interval; moments only rise.  Times are nanoseconds, as in a real history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dledger_drill.history.records import Operation, OperationKind, Outcome
from tests.unit.drill.checkers.operations import MS, WALL_MS

Queue = tuple[str, int]
QUEUES: tuple[Queue, ...] = (("g0", 0), ("g0", 1), ("g1", 0))
TOPIC = "t"
ROUNDS = 32


@dataclass
class Reader:
    """One consumer group: ``position`` by queue, ``busy_until`` of an orderly queue's owner."""

    name: str
    mode: str
    position: dict[Queue, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    busy_until: dict[Queue, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))


@dataclass
class Simulation:
    """The queues, what clients know of them, and the history so far."""

    random: Random
    topic: str = TOPIC
    now: int = MS
    round: int = 1
    numbers: int = 0
    history: list[Operation] = field(default_factory=list)
    content: dict[Queue, list[tuple[str, str | None]]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    due: list[tuple[int, str, str | None]] = field(default_factory=list)  # delayed messages: when, value, key
    free_at: dict[str, int] = field(default_factory=dict)
    committed: dict[Queue, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    readers: list[Reader] = field(
        default_factory=lambda: [Reader("concurrent", "concurrent"), Reader("orderly", "orderly"), Reader("pull", "pull")]
    )

    # Time

    def tick(self) -> None:
        self.now += self.random.randrange(MS // 10, 2 * MS)
        for entry in [entry for entry in self.due if entry[0] <= self.now]:
            self.due.remove(entry)
            self.content[self.queue_for(entry[2])].append(entry[1:])

    def span(self, process: str, longest_ms: int = 4) -> tuple[int, int]:
        """An interval around now in which the process does nothing else."""
        begin = max(self.free_at.get(process, 0) + 1, self.now - self.random.randrange(longest_ms * MS))
        end = max(begin, self.now) + self.random.randrange(longest_ms * MS)
        self.free_at[process] = end
        return min(begin, self.now), end

    def is_free(self, process: str) -> bool:
        return self.free_at.get(process, 0) < self.now

    def record(self, process: str, kind: OperationKind, span: tuple[int, int | None], outcome: Outcome = Outcome.OK, **data: Any) -> None:
        self.history.append(Operation(process, kind, span[0], span[1], outcome, self.round, data))

    def queue_for(self, key: str | None) -> Queue:
        return self.random.choice(QUEUES) if key is None else QUEUES[int(key[1:]) % len(QUEUES)]

    def value(self, process: str) -> str:
        self.numbers += 1
        return f"{process}/{self.numbers}"

    # Producers

    def send(self, *, idempotent: bool) -> None:
        process = f"{'keyed' if idempotent else 'plain'}-{self.random.randrange(3)}"
        if not self.is_free(process):
            return
        key = f"k{self.random.randrange(6)}" if idempotent or self.random.random() < 0.5 else None
        value, queue, span = self.value(process), self.queue_for(key), self.span(process)
        data: dict[str, Any] = {"topic": self.topic, "key": key, "value": value, "idempotent": idempotent}
        draw = self.random.random()
        if draw < 0.8:
            attempts = 1 if idempotent or self.random.random() < 0.8 else 2
            self.content[queue].extend([(value, key)] * attempts)
            offset = len(self.content[queue]) - 1
            self.record(process, OperationKind.SEND, span, **data, group=queue[0], queue=queue[1], offset=offset, attempts=attempts)
        elif draw < 0.95:
            if self.random.random() < 0.6:
                self.content[queue].append((value, key))
            until = span[1] if self.random.random() < 0.7 else None
            self.record(process, OperationKind.SEND, (span[0], until), Outcome.UNKNOWN, **data)
        else:
            self.record(process, OperationKind.SEND, span, Outcome.FAILED, **data)

    def send_without_waiting(self) -> None:
        """Messages of one key of which none waits for the one before."""
        if not self.is_free("pipelined"):
            return
        queue, count = self.queue_for("k1"), self.random.randrange(2, 6)
        begin, end = self.span("pipelined")
        for number in range(count):
            value = self.value("pipelined")
            self.content[queue].append((value, "k1"))
            data: dict[str, Any] = {
                "topic": self.topic,
                "key": "k1",
                "value": value,
                "idempotent": True,
                "group": queue[0],
                "queue": queue[1],
            }
            span = (begin - count + number, end + self.random.randrange(MS))
            self.record("pipelined", OperationKind.SEND, span, **data, offset=len(self.content[queue]) - 1)
        self.free_at["pipelined"] = end + MS

    def send_delayed(self) -> None:
        if not self.is_free("delayed"):
            return
        value, span = self.value("delayed"), self.span("delayed")
        due = self.now + self.random.randrange(100 * MS)
        data: dict[str, Any] = {"topic": self.topic, "key": None, "value": value, "idempotent": True, "deliver_at_ms": WALL_MS + due / MS}
        outcome = Outcome.OK if self.random.random() < 0.9 else Outcome.UNKNOWN
        if outcome is Outcome.OK or self.random.random() < 0.5:
            self.due.append((max(due, self.now), value, None))
        self.record("delayed", OperationKind.DELAYED, span, outcome, **data, group="g0", queue=0, offset=self.numbers)

    def transact(self) -> None:
        process = f"transactional-{self.random.randrange(2)}"
        if not self.is_free(process):
            return
        value, span, queue = self.value(process), self.span(process), self.random.choice(QUEUES)
        end = "commit" if self.random.random() < 0.7 else "rollback"
        outcome = self.random.choices([Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED], [8, 2, 1])[0]
        if end == "commit" and (outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.random.random() < 0.5)):
            self.content[queue].append((value, None))
        data: dict[str, Any] = {"topic": self.topic, "value": value, "end": end}
        if outcome is not Outcome.FAILED:  # it was prepared
            data |= {"group": queue[0], "queue": queue[1]}
        self.record(process, OperationKind.TRANSACTION, span, outcome, **data)

    # Consumers

    def consume(self, reader: Reader) -> None:
        queue = self.random.choice(QUEUES)
        position, content = reader.position[queue], self.content[queue]
        if self.random.random() < 0.1:
            position = self.random.randrange(position + 1)  # a new owner begins at the committed offset
        if position >= len(content) or reader.busy_until[queue] > self.now:
            return
        span = (self.now, self.now + self.random.randrange(3 * MS))
        member = f"{reader.name}-{self.random.randrange(2)}"
        for offset in range(position, min(position + self.random.choice((1, 1, 1, 4)), len(content))):
            self.deliver(reader, queue, offset, member, span)
            reader.position[queue] = max(reader.position[queue], offset + 1)
        if reader.mode == "orderly":
            reader.busy_until[queue] = span[1]

    def deliver(self, reader: Reader, queue: Queue, offset: int, member: str, span: tuple[int, int]) -> None:
        (value, key), redelivered = self.content[queue][offset], reader.mode == "concurrent" and self.random.random() < 0.05
        data: dict[str, Any] = {
            "topic": self.topic,
            "consumer_group": reader.name,
            "member": member,
            "mode": reader.mode,
            "key": key,
            "value": value,
        }
        data |= {"group": queue[0], "queue": queue[1], "offset": offset, "wall_ms": WALL_MS + span[0] / MS, "redelivered": False}
        self.record(member, OperationKind.DELIVER, span, **data)
        if redelivered:
            self.record(member, OperationKind.DELIVER, span, **(data | {"redelivered": True, "offset": offset + 1000}))

    def pause_an_owner(self) -> None:
        """It stands still in a call, another member takes the queue over."""
        reader, queue = self.readers[1], self.random.choice(QUEUES)
        position = reader.position[queue]
        if position >= len(self.content[queue]) or reader.busy_until[queue] > self.now:
            return
        self.deliver(reader, queue, position, "orderly-0", (self.now, self.now + 40 * MS))
        self.record("drill", OperationKind.PAUSE, (self.now + 1, self.now + 39 * MS), processes=["orderly-0"])
        self.deliver(reader, queue, position, "orderly-1", (self.now + 20 * MS, self.now + 21 * MS))
        reader.position[queue] = position + 1
        reader.busy_until[queue] = self.now + 41 * MS

    def read(self) -> None:
        process, queue = f"reader-{self.random.randrange(3)}", self.random.choice(QUEUES)
        if not self.is_free(process):
            return
        mode, end = "linearizable", len(self.content[queue])
        if self.random.random() < 0.3:
            mode, end = "follower", self.random.randrange(end + 1)
        start = self.random.randrange(end + 1)
        values = [value for value, _ in self.content[queue][start:end]]
        data: dict[str, Any] = {
            "topic": self.topic,
            "group": queue[0],
            "queue": queue[1],
            "mode": mode,
            "from_offset": start,
            "end_offset": end,
        }
        self.record(process, OperationKind.READ, self.span(process), **data, values=values, node="n0")

    def use_offset(self) -> None:
        process, queue = f"offsets-{self.random.randrange(2)}", self.random.choice(QUEUES)
        if not self.is_free(process):
            return
        data: dict[str, Any] = {"consumer_group": "c", "topic": self.topic, "group": queue[0], "queue": queue[1]}
        if self.random.random() < 0.5:
            self.record(process, OperationKind.FETCH_OFFSET, self.span(process), **data, offset=self.committed[queue])
            return
        offset = self.random.randrange(1, 10 + self.numbers)
        outcome = Outcome.OK if self.random.random() < 0.8 else Outcome.UNKNOWN
        if outcome is Outcome.OK or self.random.random() < 0.5:
            self.committed[queue] = max(self.committed[queue], offset)
        self.record(process, OperationKind.COMMIT_OFFSET, self.span(process), outcome, **data, offset=offset)

    # The end

    def finish(self) -> None:
        while self.due:
            self.tick()
        for reader in self.readers:
            for queue, content in self.content.items():
                self.now = max(self.now, reader.busy_until[queue])
                for offset in range(reader.position[queue], len(content)):
                    self.now += MS
                    self.deliver(reader, queue, offset, f"{reader.name}-0", (self.now, self.now + 1000))
        for queue, content in self.content.items():
            self.audit(queue, content)

    def audit(self, queue: Queue, content: list[tuple[str, str | None]]) -> None:
        step = self.random.randrange(5, 60)
        for first in range(0, len(content) or 1, step):
            part = content[first : first + step]
            values, keys = [value for value, _ in part], [key for _, key in part]
            data: dict[str, Any] = {"topic": self.topic, "group": queue[0], "queue": queue[1], "first_offset": first, "values": values}
            self.now += MS
            self.record("audit", OperationKind.STORED, (self.now, self.now), **data, keys=keys)
            self.record("spark", OperationKind.SPARK, (self.now, self.now), **data, job="stream")
        data = {"topic": self.topic, "group": queue[0], "queue": queue[1], "first_offset": 0, "values": [value for value, _ in content]}
        self.record("spark", OperationKind.SPARK, (self.now, self.now), **data, job="batch")


def simulate(seed: int, steps: int = 200, *, topic: str = TOPIC) -> list[Operation]:
    """A whole history, ordered by when operations began."""
    simulation = Simulation(Random(seed), topic)
    actions: list[tuple[Callable[[], None], float]] = [
        (lambda: simulation.send(idempotent=True), 8),
        (lambda: simulation.send(idempotent=False), 4),
        (simulation.send_without_waiting, 1),
        (simulation.send_delayed, 2),
        (simulation.transact, 2),
        (lambda: simulation.consume(simulation.random.choice(simulation.readers)), 12),
        (simulation.pause_an_owner, 0.2),
        (simulation.read, 6),
        (simulation.use_offset, 4),
    ]
    calls, weights = [call for call, _ in actions], [weight for _, weight in actions]
    for step in range(steps):
        simulation.round = 1 + step * ROUNDS // steps
        simulation.tick()
        simulation.random.choices(calls, weights)[0]()
    simulation.finish()
    history = simulation.history + surroundings(simulation)
    return sorted(history, key=lambda operation: operation.invoked_ns)


def surroundings(simulation: Simulation) -> list[Operation]:
    """Leaders, resources, faults with a probe that sees them, and replicas that are equal."""
    random, history = simulation.random, simulation.history
    simulation.history = []
    for number in range(1, ROUNDS + 1):
        simulation.round = number
        simulation.now += 10 * MS
        simulation.record(
            "drill", OperationKind.FAULT, (simulation.now, simulation.now + 500 * MS), name="kill-leader", group="g0", nodes=["n0"]
        )
        for _ in range(5):
            outcome = Outcome.OK if random.random() < 0.8 else Outcome.UNKNOWN
            value = simulation.value("probe-g0")
            data: dict[str, Any] = {"topic": "probe", "key": None, "value": value, "idempotent": True}
            if outcome is Outcome.OK:
                data |= {"group": "g0", "queue": 0, "offset": simulation.numbers}
            simulation.record("probe-g0", OperationKind.SEND, (simulation.now, simulation.now + 90 * MS), outcome, **data)
            simulation.now += 100 * MS
        for group in ("g0", "g1"):
            simulation.record(
                "drill", OperationKind.LEADER, (simulation.now, simulation.now), group=group, term=number, node=f"n{random.randrange(3)}"
            )
        for node in ("n0", "n1", "n2"):
            sizes: dict[str, Any] = {
                "rss_bytes": random.randrange(100 << 20, 140 << 20),
                "files": random.randrange(40, 50),
                "threads": random.randrange(20, 24),
            }
            simulation.record("drill", OperationKind.RESOURCE, (simulation.now, simulation.now), node=node, disk_bytes=0, **sizes)
    for node in ("n0", "n1", "n2"):
        data = {"group": "g0", "node": node, "last_index": 999, "checksums": {"0": 7, "4194304": 8}}
        simulation.record("verify", OperationKind.REPLICA, (simulation.now, simulation.now), **data)
    added, simulation.history = simulation.history, history
    return added
