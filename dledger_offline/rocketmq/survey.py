"""What a RocketMQ store holds, read once from end to end: what would be imported, what is left out and why, and what is damaged.

Owns the judgement of each message: of a topic that is imported, waiting for a time, a half of a transaction, or none of these.  Nothing is
sent before a whole store was judged, so that a damaged one changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger_client.runtime.argument_ranges import FIRST_TIME_MS
from dledger_offline.rocketmq.commit_log import Damage, StoredMessage
from dledger_offline.rocketmq.folder import SourceGroup, StoreFolder
from dledger_offline.rocketmq.frames import UNIQUE_ID, properties_of
from dledger_wire.errors import InvalidNameError
from dledger_wire.frames.timer import MAX_TIMER_DELAY_MS, TIMER_OUT
from dledger_wire.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    check_group,
    check_topic,
    group_of_topic,
)
from dledger_wire.status import TRANSACTION_MASK, SysFlag
from store.append.staged_check import REAL_TOPIC

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
RECALLED = "TIMER_DEL_UNIQKEY"
POP_PREFIX = "rmq_sys_REVIVE_LOG_"  # of the topic that says what POP consumers received and acknowledged
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
MAX_DAMAGES = 1000  # that are kept; more are counted
REPORT_BYTES = 64 << 20
# RocketMQ's messageDelayLevel, in seconds: for a delayed message without a unit in its queue, which says when it is due.
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
READ_RETRIES = "retries that their group has read"
EARLIER = "of a topic that was deleted and created again"
NOT_A_TOPIC = "of system topics and deleted topics"
NO_TARGET = "delayed, for a topic that is deleted"
TOO_LATE = "delayed for more than 40 days"

Key = tuple[str, int]


@dataclass(slots=True)
class FoundQueue:
    """The messages of one queue: offsets ``first`` to ``end``, and how many there are; ``size_bytes`` of their frames."""

    first: int
    end: int
    count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Survey:
    """What a store holds.

    ``delayed_at``: where the first message that waits for a time is in the log, ``delayed_topics``: where they go.  ``left_out``: how many
    messages are not imported, by reason.  ``damage``: in one line each; ``damages`` counts all.  ``fingerprint``: of which messages wait.
    """

    queues: dict[Key, FoundQueue] = field(default_factory=dict)
    groups: list[SourceGroup] = field(default_factory=list)
    delayed: int = 0
    delayed_at: int = -1
    delayed_topics: set[str] = field(default_factory=set)
    open_transactions: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    damages: int = 0
    largest_body: int = 0
    fingerprint: str = ""

    @property
    def messages(self) -> int:
        return sum(queue.count for queue in self.queues.values())

    @property
    def size_bytes(self) -> int:
        return sum(queue.size_bytes for queue in self.queues.values())

    def damaged(self, text: str) -> None:
        self.damages += 1
        if self.damages <= MAX_DAMAGES:
            self.damage.append(text)


class Judge:
    """Which messages of a store go where; the same for the survey and for the import."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self.queues = dict(folder.queues())
        self.dispatched = max((queue.end_pos for queue in self.queues.values()), default=0)
        self.read_ms = folder.timers_read_ms()
        self.newest_ms = 0  # of all store times
        self._timers: dict[bytes, int] = {}  # those that wait, and where the last copy of each is in the log: the broker stores some again
        self._recalled: set[str] = set()

    def of_earlier_topic(self, message: StoredMessage) -> bool:
        """Whether it is of a topic that was deleted, and perhaps created again: its queue begins behind it with offset 0, or is gone."""
        queue = self.queues.get((message.topic, message.queue_id))
        if queue is None:
            return message.end <= self.dispatched
        return queue.begin == 0 and queue.end > 0 and message.end <= queue.begin_pos

    def why_left_out(self, message: StoredMessage) -> str:
        """Why it does not go to the queue of the same name; empty when it does."""
        if message.topic not in self._folder.topics or message.sys_flag & TRANSACTION_MASK not in (0, SysFlag.TRANSACTION_COMMIT):
            return NOT_A_TOPIC
        if message.queue_offset < self._folder.begins_at(message.topic, message.queue_id):
            return READ_RETRIES
        return EARLIER if self.of_earlier_topic(message) else ""

    def note_timer(self, message: StoredMessage) -> None:
        """Remember what the timers' topic says, before ``waiting`` is asked about it."""
        properties = properties_of(message)
        if RECALLED in properties:
            self._recalled.add(properties[RECALLED])
        elif _due_ms(properties) >= (self.read_ms or 0):
            self._timers[_timer_key(properties)] = message.pos

    def waiting(self, message: StoredMessage) -> tuple[int, dict[str, str]] | None:
        """When a message that waits is due, and its properties; None for one that does not wait any more."""
        if message.topic == SCHEDULE_TOPIC:
            if message.queue_offset < self._folder.delay_offsets.get(message.queue_id + 1, 0) or self.of_earlier_topic(message):
                return None
            queue = self.queues.get((message.topic, message.queue_id))
            due_ms = queue.tag(message.queue_offset) if queue is not None else None
            level_s = LEVELS_S[min(message.queue_id, len(LEVELS_S) - 1)]
            return max(due_ms or message.stored_ms + level_s * 1000, FIRST_TIME_MS), properties_of(message)
        properties = properties_of(message)
        unique = properties.get(UNIQUE_ID, "")
        if self._timers.get(_timer_key(properties)) != message.pos or RECALLED in properties:
            return None
        if {unique, f"{properties.get(REAL_TOPIC)}+{unique}"} & self._recalled:
            return None
        return max(_due_ms(properties), FIRST_TIME_MS), properties

    def why_not_delayed(self, due_ms: int, properties: dict[str, str]) -> str:
        """Why a message that waits is left out; empty when it is not.  The same for each look at one store."""
        if properties.get(REAL_TOPIC) not in self._folder.topics:
            return NO_TARGET
        return TOO_LATE if due_ms > self.newest_ms + MAX_TIMER_DELAY_MS else ""

    def fingerprint(self) -> str:
        """Of which messages wait."""
        state = json.dumps([self._folder.log.end, sorted(self._folder.delay_offsets.items()), self.read_ms])
        return hashlib.sha256(state.encode()).hexdigest()[:16]


def _due_ms(properties: dict[str, str]) -> int:
    text = properties.get(TIMER_OUT, "")
    return int(text) if text.isdecimal() else 0


def _timer_key(properties: dict[str, str]) -> bytes:
    return hashlib.blake2b(f"{properties.get(UNIQUE_ID)} {properties.get(TIMER_OUT)}".encode(), digest_size=12).digest()


def survey(folder: StoreFolder, on_bytes: Callable[[int], object] = lambda _bytes: None) -> tuple[Survey, Judge]:
    """Read the whole log.  ``on_bytes`` gets how much was read since it was called last."""
    judge = Judge(folder)
    surveyor = _Surveyor(folder, judge)
    surveyor.read(on_bytes)
    surveyor.count_delayed()
    surveyor.finish()
    return surveyor.found, judge


class _Surveyor:
    def __init__(self, folder: StoreFolder, judge: Judge) -> None:
        self._folder, self._judge = folder, judge
        self.found = Survey(groups=folder.groups)
        self._halves: dict[int, str] = {}  # offset and unique id of those that the broker has not passed
        self._ended: set[int] = set()
        self._halves_from = folder.offset(TRANSACTION_GROUP, HALF_TOPIC, 0)
        self._has_timers = self._has_popped = self._has_uncounted = False

    def read(self, on_bytes: Callable[[int], object]) -> None:
        log = self._folder.log
        reported = log.first
        for each in log.read(dispatched=self._judge.dispatched):
            if isinstance(each, Damage):
                self.found.damaged(each.text)
            else:
                self._message(each)
            if each.end - reported >= REPORT_BYTES:
                on_bytes(each.end - reported)
                reported = each.end

    def _message(self, message: StoredMessage) -> None:
        topic, found, judge = message.topic, self.found, self._judge
        judge.newest_ms = max(judge.newest_ms, message.stored_ms)
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            if found.delayed_at < 0:
                found.delayed_at = message.pos
            if topic == TIMER_TOPIC:
                self._has_timers = True
                judge.note_timer(message)
        elif topic == HALF_TOPIC:
            if message.queue_offset >= self._halves_from:
                self._halves[message.queue_offset] = properties_of(message).get(UNIQUE_ID, str(message.queue_offset))
        elif topic == OP_HALF_TOPIC:
            body = message.frame[message.body_at : message.topic_at]
            self._ended.update(offset for part in body.split(b",") if part.strip().isdigit() and (offset := int(part)) >= self._halves_from)
        elif reason := judge.why_left_out(message):
            found.left_out[reason] += 1
            self._has_popped |= topic.startswith(POP_PREFIX)
            self._has_uncounted |= topic == ROCKSDB_HALF_TOPIC
        else:
            self._queued(message)

    def _queued(self, message: StoredMessage) -> None:
        key, offset = (message.topic, message.queue_id), message.queue_offset
        queue = self.found.queues.get(key)
        if queue is None:
            queue = self.found.queues[key] = FoundQueue(offset, offset)
        elif offset != queue.end:
            self.found.damaged(f"{key[0]}/{key[1]}: message {offset} follows at {message.pos} in the log, expected message {queue.end}")
            if offset < queue.end:
                return
        queue.end, queue.count, queue.size_bytes = offset + 1, queue.count + 1, queue.size_bytes + len(message.frame)
        self.found.largest_body = max(self.found.largest_body, message.topic_at - message.body_at)

    def count_delayed(self) -> None:
        """Read what waits once more: only at the end is it known which timed messages were stored again, or recalled."""
        found, judge = self.found, self._judge
        if found.delayed_at < 0:
            return
        for each in self._folder.log.read(pos=found.delayed_at, dispatched=judge.dispatched):
            if isinstance(each, StoredMessage) and each.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
                waiting = judge.waiting(each)
                if waiting is None:
                    continue
                if reason := judge.why_not_delayed(*waiting):
                    found.left_out[reason] += 1
                else:
                    found.delayed += 1
                    found.delayed_topics.add(waiting[1][REAL_TOPIC])

    def finish(self) -> None:
        """What only shows when everything was read."""
        folder, found, judge = self._folder, self.found, self._judge
        log = folder.log
        for (topic, queue_id), queue in judge.queues.items():
            if queue.end_pos > log.end:
                where = f"{queue.end_pos}, the commit log at {log.end}: the end of the log is missing"
                found.damaged(f"{topic}/{queue_id}: the consume queue ends with message {queue.end - 1} at {where}")
        if self._has_timers and judge.read_ms is None:
            found.damaged(
                f"{folder.path / 'config' / 'timercheck'}: not found, expected the time up to which timed messages were delivered"
            )
        self._check_names()
        found.open_transactions = len({unique for offset, unique in self._halves.items() if offset not in self._ended})
        found.fingerprint = judge.fingerprint()
        if folder.was_running:
            found.notes.append(
                "the broker ran while this was copied, or was killed (abort is there): its newest messages and offsets may be missing; "
                "what it delivered of delayed messages in its last 10 s may be delivered twice"
            )
        if self._has_uncounted:
            found.notes.append("transactions are in RocksDB (transRocksDBEnable): those that are open are left out and not counted")
        if self._has_popped:
            found.notes.append(
                "consumers used POP: what they received and did not acknowledge lies before their offsets and is not read again; "
                "expected that they finish before the copy"
            )
        for topic, queue_id in sorted(found.queues):
            if topic.startswith(RETRY_PREFIX) and group_of_topic(topic) not in folder.known_groups:
                count = found.queues[topic, queue_id].count
                found.notes.append(
                    f"{topic}/{queue_id}: {count} retries of no known group (POP has such topics); no consumer will read them"
                )
        if log.uncommitted:
            found.notes.append(f"{log.uncommitted} entries at the end of the DLedger log are left out: they are not known to be committed")

    def _check_names(self) -> None:
        groups = {group.name for group in self.found.groups} | {group_of_topic(name) for name in self._folder.topics} - {""}
        checks = [*((name, check_topic) for name in self._folder.topics), *((name, check_group) for name in sorted(groups))]
        for name, check in checks:
            try:
                check(name)
            except InvalidNameError as error:
                self.found.damaged(error.message)
