"""Idempotent producers: what each producer has stored in each queue, so that a retried batch is recognised.

Owns the rules of epochs, names and sequences, and the two views of them: what the committed log says (``SequenceTable``, the same on every
replica) and, on the leader, that plus its own appended but uncommitted tail (``TailSequences``).  Knows no bytes.

A batch is FRESH when it continues its producer's sequence in that queue (a new epoch starts at 0), a DUPLICATE when all of it was stored
before, and refused otherwise: a gap would lose order, an older epoch is a zombie.  Stored batches are remembered as runs: neighbours
in both sequence and queue offset melt into one, so a lone producer's whole history takes one run.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from dledger_wire.batches.batch import Sequence64
from dledger_wire.errors import DledgerError, OutOfOrderSequenceError, ProducerFencedError
from store.state.json_pieces import encode
from store.state.shared_places import SharedPlaces

REMEMBERED_RUNS = 32
MAX_PIPELINED = 10_000
HAS_STORED, IS_INCOMPLETE = 1, 2  # flags of a row

QueueKey = tuple[str, int]


@dataclass(slots=True)  # not frozen: one is made for each batch, and that takes three times as long
class Run:
    """Messages ``first_sequence .. + count`` of a producer lie at ``first_queue_offset`` and on.  It is never changed."""

    first_sequence: int
    count: int
    first_queue_offset: int

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.count


@dataclass(slots=True)
class ProducerState:
    """One producer id: its epoch, when it stored last (log time), and its newest runs per queue, oldest first.

    Copies share what is in ``queues`` and ``earlier``: lists of runs and the table of earlier epochs are replaced, never changed.
    """

    epoch: int
    last_ms: int
    queues: dict[QueueKey, list[Run]] = field(default_factory=dict)
    name: str = ""  # that its application gave it
    earlier: dict[QueueKey, int] = field(default_factory=dict)  # of a named one: messages stored in epochs before this one
    owner: str = ""  # the user that registered it, where there are users
    has_stored: bool = False  # anything, in any epoch
    is_incomplete: bool = False  # of a named one: what it stored before was forgotten once, so counts are incomplete
    made_after: int = field(default=0, compare=False)  # how many captures of the table were taken before it
    encoded: bytes = field(default=b"", compare=False, repr=False)  # of one that is captured, so does not change any more

    def copy(self) -> ProducerState:
        return ProducerState(
            self.epoch, self.last_ms, dict(self.queues), self.name, self.earlier, self.owner, self.has_stored, self.is_incomplete
        )

    def next_epoch(self, at_ms: int) -> ProducerState:
        """As it is when its producer has registered once more."""
        earlier = self.stored() if self.name else {}
        return ProducerState(self.epoch + 1, at_ms, {}, self.name, earlier, self.owner, self.has_stored, self.is_incomplete)

    def stored(self) -> dict[QueueKey, int]:
        """How many messages each queue holds of it, from all epochs."""
        counts = dict(self.earlier)
        for key, runs in self.queues.items():
            counts[key] = counts.get(key, 0) + runs[-1].next_sequence
        return counts

    def store(self, key: QueueKey, made_by: Sequence64, count: int, first_queue_offset: int, at_ms: int) -> None:
        """Remember a stored batch."""
        if made_by.epoch != self.epoch:
            self.epoch = made_by.epoch
            self.queues.clear()
        self.last_ms = at_ms
        self.has_stored = True
        first, runs = made_by.first_sequence, self.queues.get(key, [])
        last = runs[-1] if runs else None
        if last is not None and last.first_sequence + last.count == first and last.first_queue_offset + last.count == first_queue_offset:
            self.queues[key] = [*runs[:-1], Run(last.first_sequence, last.count + count, last.first_queue_offset)]
        else:
            self.queues[key] = [*runs[1 - REMEMBERED_RUNS :], Run(first, count, first_queue_offset)]

    def knows_topic(self, topic: str) -> bool:
        return any(name == topic for name, _ in self.queues) or any(name == topic for name, _ in self.earlier)

    def forget_topic(self, topic: str) -> None:
        self.queues = {key: runs for key, runs in self.queues.items() if key[0] != topic}
        self.earlier = {key: count for key, count in self.earlier.items() if key[0] != topic}

    def row(self, producer_id: int) -> list[Any]:
        """Plain JSON data."""
        queues = [[*key, [[run.first_sequence, run.count, run.first_queue_offset] for run in runs]] for key, runs in self.queues.items()]
        earlier = [[*key, count] for key, count in self.earlier.items()]
        flags = HAS_STORED * self.has_stored | IS_INCOMPLETE * self.is_incomplete
        return [producer_id, self.epoch, self.last_ms, queues, self.name, earlier, self.owner, flags]

    @classmethod
    def of_row(cls, row: list[Any]) -> tuple[int, ProducerState]:
        """What ``row`` made."""
        producer_id, epoch, last_ms, listed, name, earlier, owner, flags = row
        queues = {(topic, queue_id): [Run(*run) for run in runs] for topic, queue_id, runs in listed}
        counts = {(topic, queue_id): count for topic, queue_id, count in earlier}
        return producer_id, cls(epoch, last_ms, queues, name, counts, owner, bool(flags & HAS_STORED), bool(flags & IS_INCOMPLETE))


@dataclass(frozen=True, slots=True)
class CapturedProducer:
    """A producer as it was when the table was captured."""

    producer_id: int
    state: ProducerState

    def encoded(self) -> bytes:
        """Its row as JSON; kept for later captures, as most producers are the same then."""
        if not self.state.encoded:
            self.state.encoded = encode(self.state.row(self.producer_id))
        return self.state.encoded


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a batch is: fresh, a duplicate with its first offset, or refused."""

    duplicate_offset: int | None = None
    error: DledgerError | None = None

    @property
    def is_fresh(self) -> bool:
        return self.duplicate_offset is None and self.error is None


FRESH = Verdict()


def judge(state: ProducerState | None, key: QueueKey, made_by: Sequence64, count: int) -> Verdict:
    """Judge a batch by what its producer stored before."""
    if state is not None and made_by.epoch < state.epoch:
        text = f"producer {made_by.producer_id}: epoch {made_by.epoch} is fenced by epoch {state.epoch}"
        return Verdict(error=ProducerFencedError(text, epoch=state.epoch))
    runs = state.queues.get(key) if state is not None and made_by.epoch == state.epoch else None
    expected = runs[-1].next_sequence if runs else 0
    if made_by.first_sequence == expected:
        return FRESH
    if runs and made_by.first_sequence + count <= expected:
        for run in reversed(runs):
            if run.first_sequence <= made_by.first_sequence < run.next_sequence:
                return Verdict(duplicate_offset=run.first_queue_offset + made_by.first_sequence - run.first_sequence)
    return Verdict(error=out_of_order(key, made_by, expected))


def out_of_order(key: QueueKey, made_by: Sequence64, expected: int) -> OutOfOrderSequenceError:
    where = f"producer {made_by.producer_id} in {key[0]}/{key[1]}"
    return OutOfOrderSequenceError(f"{where}: sequence {made_by.first_sequence}, expected {expected}", expected=expected)


class SequenceTable:
    """The committed state.  Producers are kept in the order they stored last, the longest silent first; the log alone decides which goes.

    Producers with a name and those without have places of their own, shared fairly among users.  A name whose producer had stored
    something is remembered when the producer is forgotten, so that its next start learns that counts are not complete.

    A captured state is left as it is: a change puts a copy in its place.
    """

    def __init__(self, max_producers: int, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._producers: OrderedDict[int, ProducerState] = OrderedDict()
        self._named: dict[str, int] = {}
        self._named_places: SharedPlaces[int] = SharedPlaces(max_producers)
        self._unnamed_places: SharedPlaces[int] = SharedPlaces(max_producers)
        self._forgotten: dict[str, ProducerState] = {}
        self._forgotten_places: SharedPlaces[str] = SharedPlaces(max_producers)
        self._captures = 0

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._producers.get(producer_id)

    def store(self, key: QueueKey, made_by: Sequence64, count: int, first_queue_offset: int, at_ms: int) -> None:
        """A batch was committed."""
        state = self._changeable(made_by.producer_id)
        if state is None:
            state = self._put(made_by.producer_id, ProducerState(made_by.epoch, at_ms))
        state.store(key, made_by, count, first_queue_offset, at_ms)
        self._used(made_by.producer_id, state)
        self._evict(at_ms)

    def _put(self, producer_id: int, state: ProducerState) -> ProducerState:
        state.made_after = self._captures
        self._producers[producer_id] = state
        return state

    def _changeable(self, producer_id: int) -> ProducerState | None:
        state = self._producers.get(producer_id)
        if state is None or state.made_after == self._captures:
            return state
        return self._put(producer_id, state.copy())

    def _used(self, producer_id: int, state: ProducerState) -> None:
        self._producers.move_to_end(producer_id)
        if state.name:
            self._named_places.use(producer_id, state.owner)
        else:
            self._unnamed_places.use(producer_id, state.owner, minor=not state.has_stored)

    def id_of(self, name: str) -> int:
        """The id of the producer with that name; 0 for none."""
        return self._named.get(name, 0)

    def register(self, producer_id: int, fresh_id: int, at_ms: int, name: str = "", owner: str = "") -> tuple[int, int]:
        """(producer id, epoch) of a producer that starts: the next epoch of a known one, else ``fresh_id`` with epoch 0.

        The right to use one with a ``name`` follows from rights on the name; one without it belongs to its ``owner``.
        """
        if name:
            producer_id = self.id_of(name)
        state = self._producers.get(producer_id)
        if state is None:
            producer_id = fresh_id
            state = self._put(fresh_id, ProducerState(0, at_ms, name=name, owner=owner))
            if name:
                self._named[name] = fresh_id
                state.is_incomplete = self._take_forgotten(name)
        else:
            state = self._put(producer_id, state.next_epoch(at_ms))
        self._used(producer_id, state)
        self._evict(at_ms)
        return producer_id, state.epoch

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its queues start at sequence 0 again."""
        for producer_id in [producer_id for producer_id, state in self._producers.items() if state.knows_topic(topic)]:
            if (state := self._changeable(producer_id)) is not None:
                state.forget_topic(topic)

    # Forgetting

    def _evict(self, now_ms: int) -> None:
        producers = self._producers
        while producers and next(iter(producers.values())).last_ms < now_ms - self._expiry_ms:
            self._forget(next(iter(producers)))
        for places in (self._named_places, self._unnamed_places):
            while (producer_id := places.surplus()) is not None:
                self._forget(producer_id)

    def _forget(self, producer_id: int) -> None:
        state = self._producers.pop(producer_id)
        if not state.name:
            self._unnamed_places.remove(producer_id, state.owner)
            return
        self._named_places.remove(producer_id, state.owner)
        del self._named[state.name]
        if state.has_stored or state.is_incomplete:
            self._remember_name(ProducerState(0, 0, name=state.name, owner=state.owner))
            while (name := self._forgotten_places.surplus()) is not None:
                self._take_forgotten(name)

    def _remember_name(self, forgotten: ProducerState) -> None:
        self._forgotten[forgotten.name] = forgotten
        self._forgotten_places.use(forgotten.name, forgotten.owner)

    def _take_forgotten(self, name: str) -> bool:
        """Whether ``name`` was one that is remembered; no longer afterwards."""
        forgotten = self._forgotten.pop(name, None)
        if forgotten is not None:
            self._forgotten_places.remove(name, forgotten.owner)
        return forgotten is not None

    # Snapshots

    def dump(self) -> list[Any]:
        """Plain JSON data, in order; rows with the id 0 are the forgotten names."""
        return [captured.state.row(captured.producer_id) for captured in self._all()]

    def _all(self) -> list[CapturedProducer]:
        forgotten = [CapturedProducer(0, self._forgotten[name]) for name in self._forgotten_places]
        return forgotten + [CapturedProducer(producer_id, state) for producer_id, state in self._producers.items()]

    def capture(self) -> list[CapturedProducer]:
        """Everything as it is now, to be encoded later."""
        self._captures += 1
        return self._all()

    def load(self, data: list[Any]) -> None:
        for table in (self._producers, self._named, self._named_places, self._unnamed_places, self._forgotten, self._forgotten_places):
            table.clear()
        for row in data:
            producer_id, state = ProducerState.of_row(row)
            if not producer_id:
                self._remember_name(state)
                continue
            self._used(producer_id, self._put(producer_id, state))
            if state.name:
                self._named[state.name] = producer_id


class TailSequences:
    """The leader's view: the committed table under the batches it has appended itself and not yet seen committed."""

    def __init__(self, committed: SequenceTable) -> None:
        self._committed = committed
        self._tail: dict[int, ProducerState] = {}
        self._last_index: dict[int, int] = {}
        self._pipelined: dict[tuple[int, int, QueueKey], int] = {}
        self._registering: dict[str | int, int] = {}  # by name, or id: new epochs appended and not applied yet

    def clear(self) -> None:
        self._tail.clear()
        self._last_index.clear()
        self._pipelined.clear()
        self._registering.clear()

    def registering(self, who: str | int) -> None:
        """The next epoch of a producer (its name, else its id) was appended: nothing of an earlier one may come behind it."""
        self._registering[who] = self._registering.get(who, 0) + 1

    def registered(self, who: str | int) -> None:
        """A registration was applied."""
        left = self._registering.get(who, 0) - 1
        if left > 0:
            self._registering[who] = left
        else:
            self._registering.pop(who, None)

    def _is_registering(self, producer_id: int) -> bool:
        state = self._committed.get(producer_id)
        return (state.name if state is not None and state.name else producer_id) in self._registering

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted; nothing of its successor is appended yet."""
        for state in self._tail.values():
            state.forget_topic(topic)

    def judge(self, key: QueueKey, made_by: Sequence64, count: int) -> Verdict:
        """Judge by everything appended."""
        if self._registering and self._is_registering(made_by.producer_id):
            text = f"producer {made_by.producer_id}: epoch {made_by.epoch} is fenced by one that registers"
            return Verdict(error=ProducerFencedError(text))
        state = self._tail.get(made_by.producer_id)
        return judge(state if state is not None else self._committed.get(made_by.producer_id), key, made_by, count)

    def names_of(self, producer_id: int) -> tuple[str, str]:
        """Name and owner of a registered producer; empty when it has none, or is not known."""
        state = self._committed.get(producer_id)
        return (state.name, state.owner) if state is not None else ("", "")

    def judge_committed(self, key: QueueKey, made_by: Sequence64, count: int) -> Verdict:
        """Judge by what is committed only."""
        return judge(self._committed.get(made_by.producer_id), key, made_by, count)

    def expect(self, key: QueueKey, made_by: Sequence64, count: int, committed: Verdict) -> Verdict:
        """Judge a batch before it has its place: one that continues what waits to be appended is let through as fresh.

        What waits may still be dropped, so ``judge`` decides again when the batch gets its place.  ``committed``: what ``judge_committed``
        said of it, which holds where nothing of its producer is in the log behind what is committed.
        """
        is_all_committed = not self._registering and made_by.producer_id not in self._tail
        verdict = committed if is_all_committed else self.judge(key, made_by, count)
        place = (made_by.producer_id, made_by.epoch, key)
        pipelined = self._pipelined.get(place, 0)
        if isinstance(verdict.error, OutOfOrderSequenceError) and made_by.first_sequence <= pipelined:
            verdict = FRESH
        if verdict.is_fresh:
            if len(self._pipelined) >= MAX_PIPELINED:  # left over from batches that were never appended
                self._pipelined.clear()
            self._pipelined[place] = max(pipelined, made_by.first_sequence + count)
        return verdict

    def store(self, index: int, key: QueueKey, made_by: Sequence64, count: int, first_queue_offset: int, at_ms: int) -> None:
        """A batch was appended in entry ``index``."""
        state = self._tail.get(made_by.producer_id)
        if state is None:
            committed = self._committed.get(made_by.producer_id)
            state = committed.copy() if committed is not None else ProducerState(made_by.epoch, at_ms)
            self._tail[made_by.producer_id] = state
        state.store(key, made_by, count, first_queue_offset, at_ms)
        self._last_index[made_by.producer_id] = index
        place = (made_by.producer_id, made_by.epoch, key)
        if self._pipelined.get(place, 0) <= made_by.first_sequence + count:
            self._pipelined.pop(place, None)

    def committed(self, producer_id: int, index: int) -> None:
        """Everything of entry ``index`` is in the committed table now."""
        if self._last_index.get(producer_id, index + 1) <= index:
            del self._tail[producer_id], self._last_index[producer_id]
