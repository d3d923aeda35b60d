"""Every kind of violation in the smallest history that has it, and histories without one that look like it."""

from __future__ import annotations

import pytest

from dledger_drill.checkers.check import HistoryCheck, Limits, check_all
from dledger_drill.checkers.model import ViolationKind as K
from dledger_drill.history.records import Operation
from tests.unit.drill.checkers.operations import (
    admin,
    commit,
    delayed,
    deliver,
    fault,
    fetch,
    leader,
    pause,
    probe,
    read,
    replica,
    resource,
    send,
    spark,
    stored,
    transaction,
)

LIMITS = Limits(delay_late_ms=5_000)


def kinds(history: list[Operation], limits: Limits = LIMITS) -> list[K]:
    ordered = sorted(history, key=lambda operation: operation.invoked_ns)
    return [violation.kind for violation in check_all(ordered, limits).violations]


A, B = send("p/1", 0, 1, 0), send("p/2", 2, 3, 1)

BAD: dict[str, tuple[K, list[Operation]]] = {
    "acknowledged, not stored": (K.LOST, [A, B, stored(["p/1"])]),
    "acknowledged, nothing stored at all": (K.LOST, [A, stored([])]),
    "a hole in the audit": (K.LOST, [A, B, send("p/3", 4, 5, 2), stored(["p/1"]), stored(["p/3"], first=2)]),
    "a hole that nobody owns": (
        K.LOST,
        [A, send("p/2", 2, None, outcome="unknown"), send("p/3", 4, 5, 2), stored(["p/1"]), stored(["p/3"], first=2)],
    ),
    "a delayed message is not stored": (K.LOST, [delayed("d/1", 0, 1, 5), stored([])]),
    "not given to a consumer group": (K.LOST, [A, B, deliver("p/1", 4, 5, 0), stored(["p/1", "p/2"])]),
    "nothing given to a consumer group": (K.LOST, [admin("subscribe", "c", 0, topic="t"), A, stored(["p/1"])]),
    "a stream left offsets out": (K.LOST, [spark(["p/1"], 4), spark(["p/3"], 6, 2)]),
    "a stream ends before its queue": (K.LOST, [A, B, spark(["p/1"], 4), stored(["p/1", "p/2"])]),
    "a stream begins after its queue": (K.LOST, [A, B, spark(["p/2"], 4, 1), stored(["p/1", "p/2"])]),
    "a stream was given nothing at all": (K.LOST, [A, spark([], 4), stored(["p/1"])]),
    "batch jobs left offsets out": (
        K.LOST,
        [A, B, send("p/3", 2, 3, 2), spark(["p/1"], 4, job="batch"), spark(["p/3"], 6, 2, job="batch"), stored(["p/1", "p/2", "p/3"])],
    ),
    "batch jobs end before their queue": (K.LOST, [A, B, spark(["p/1"], 4, job="batch"), stored(["p/1", "p/2"])]),
    "batch jobs were given nothing at all": (K.LOST, [A, spark([], 4, job="batch"), stored(["p/1"])]),
    "an ordered consumer left out a message of unknown outcome": (
        K.LOST,
        [
            A,
            send("p/2", 2, None, outcome="unknown"),
            send("p/3", 4, 5, 2),
            *(deliver(f"p/{n}", 4 + n, 5 + n, n - 1, mode="orderly") for n in (1, 3)),
            stored(["p/1", "p/2", "p/3"]),
        ],
    ),
    "sent back and never given again": (K.LOST, [A, deliver("p/1", 4, 5, 0, sent_back=True), stored(["p/1"])]),
    "committed by the check, never given to a consumer group": (
        K.LOST,
        [admin("subscribe", "c", 0, topic="t"), transaction("x/1", 0, 1, by="check"), stored(["x/1"])],
    ),
    "a stream has nothing of a queue": (
        K.LOST,
        [A, send("p/2", 2, 3, 0, queue=1), spark(["p/1"], 4), stored(["p/1"]), stored(["p/2"], queue=1)],
    ),
    "idempotent, stored twice": (K.DOUBLED, [A, stored(["p/1", "p/1"])]),
    "idempotent and unknown, stored twice": (K.DOUBLED, [send("p/1", 0, None, outcome="unknown"), stored(["p/1", "p/1"])]),
    "stored in two queues": (K.DOUBLED, [A, stored(["p/1"]), stored(["p/1"], queue=1)]),
    "acknowledged at the first try, stored twice": (
        K.DOUBLED,
        [send("p/1", 0, 1, 0, idempotent=False, attempts=1), stored(["p/1", "p/1"])],
    ),
    "a delayed message of a plain producer twice": (
        K.DOUBLED,
        [delayed("d/1", 0, 1, 5, idempotent=False, attempts=1), stored(["d/1", "d/1"])],
    ),
    "a delayed message twice": (K.DOUBLED, [delayed("d/1", 0, 1, 5), stored(["d/1", "d/1"])]),
    "batch jobs have rows twice": (
        K.DOUBLED,
        [A, spark(["p/1"], 4, job="batch"), spark(["p/1"], 6, job="batch"), stored(["p/1"])],
    ),
    "a stream's rows twice": (K.DOUBLED, [A, spark(["p/1"], 4), spark(["p/1"], 6)]),
    "another message at the offset": (K.CHANGED, [A, B, stored(["p/2", "p/1"])]),
    "never sent": (K.CHANGED, [A, stored(["p/1", "x/1"])]),
    "failed for certain, and stored": (K.CHANGED, [A, send("p/2", 2, 3, outcome="failed"), stored(["p/1", "p/2"])]),
    "another key stored": (K.CHANGED, [send("p/1", 0, 1, 0, key="k"), stored(["p/1"], ["other"])]),
    "another key delivered": (K.CHANGED, [A, deliver("p/1", 4, 5, 0, key="other"), stored(["p/1"])]),
    "delivered and never sent": (K.CHANGED, [deliver("x/1", 4, 5, 0, redelivered=True)]),
    "delivered from another offset": (K.CHANGED, [A, B, deliver("p/1", 4, 5, 0), deliver("p/2", 4, 5, 0), stored(["p/1", "p/2"])]),
    "two messages at an offset, no audit": (K.CHANGED, [A, B, read(["p/2"], 4, 5, mode="follower")]),
    "two audits differ": (K.CHANGED, [A, B, stored(["p/1", "p/2"]), stored(["p/2"], at=2_000_000)]),
    "a follower gave what did not stay": (K.CHANGED, [A, read(["p/1", "p/2"], 4, 5, mode="follower"), stored(["p/1"])]),
    "a read of nothing behind the end": (K.CHANGED, [A, read([], 4, 5, start=2), stored(["p/1"])]),
    "a Spark read differs": (K.CHANGED, [A, B, spark(["p/2", "p/2"], 4, job="batch"), stored(["p/1", "p/2"])]),
    "an offset that nobody committed": (K.CHANGED, [fetch(7, 2, 3)]),
    "an offset before it was committed": (K.CHANGED, [fetch(7, 0, 1), commit(7, 2, 3)]),
    "sent later, stored before": (K.REORDERED, [send("p/1", 0, 1, 1), send("q/1", 2, 3, 0)]),
    "unknown, sent later, stored before": (
        K.REORDERED,
        [send("p/1", 0, 1, 1), send("q/1", 2, None, outcome="unknown"), stored(["q/1", "p/1"])],
    ),
    "without waiting, within a key": (K.REORDERED, [send("p/1", 0, 9, 1, key="k"), send("p/2", 1, 9, 0, key="k")]),
    "a plain producer's key in two queues": (
        K.REORDERED,
        [send("p/1", 0, 1, 0, key="k", idempotent=False), send("p/2", 2, 3, 0, key="k", idempotent=False, queue=1)],
    ),
    "a key in two queues": (K.REORDERED, [send("p/1", 0, 1, 0, key="k"), send("p/2", 2, 3, 0, key="k", queue=1)]),
    "an ordered queue out of order": (
        K.REORDERED,
        [A, B, deliver("p/2", 4, 5, 1, mode="orderly"), deliver("p/1", 6, 7, 0, mode="orderly")],
    ),
    "committed, not stored": (K.TRANSACTION, [transaction("x/1", 0, 1), stored([])]),
    "committed, stored twice": (K.TRANSACTION, [transaction("x/1", 0, 1), stored(["x/1", "x/1"])]),
    "rolled back, stored": (K.TRANSACTION, [transaction("x/1", 0, 1, "rollback"), stored(["x/1"])]),
    "rollback unknown, stored": (K.TRANSACTION, [transaction("x/1", 0, 1, "rollback", "unknown"), stored(["x/1"])]),
    "rolled back, delivered": (K.TRANSACTION, [transaction("x/1", 0, 1, "rollback"), deliver("x/1", 2, 3, 0)]),
    "commit failed for certain, stored": (K.TRANSACTION, [transaction("x/1", 0, 1, "commit", "failed"), stored(["x/1"])]),
    "rolled back, and nobody had asked for it": (K.TRANSACTION, [transaction("x/1", 0, 1, "commit", "failed"), stored([])]),
    "rolled back by the check, stored": (K.TRANSACTION, [transaction("x/1", 0, 1, "rollback", by="check"), stored(["x/1"])]),
    "to be committed by the check, never stored": (
        K.TRANSACTION,
        [admin("subscribe", "c", 0, topic="t"), transaction("x/1", 0, None, outcome="unknown", by="check"), stored([])],
    ),
    "committed by the check, stored twice": (K.TRANSACTION, [transaction("x/1", 0, 1, by="check"), stored(["x/1", "x/1"])]),
    "delivered early": (K.DELAY_EARLY, [delayed("d/1", 0, 1, 1000), deliver("d/1", 900, 901, 0)]),
    "delivered long before its level's delay was over": (
        K.DELAY_EARLY,
        [delayed("d/1", 0, 1, 1000, level=1), deliver("d/1", 499, 500, 0)],
    ),
    "delivered late": (K.DELAY_LATE, [delayed("d/1", 0, 1, 1000), deliver("d/1", 6100, 6101, 0)]),
    "late although the fault was healed long ago": (
        K.DELAY_LATE,
        [fault(900, 3000), delayed("d/1", 0, 1, 1000), deliver("d/1", 8100, 8101, 0)],
    ),
    "late before the fault began": (K.DELAY_LATE, [fault(7000, 9000), delayed("d/1", 0, 1, 1000), deliver("d/1", 9001, 9002, 0)]),
    "late although the group was well for long enough between faults": (
        K.DELAY_LATE,
        [delayed("d/1", 0, 1, 1000), *(fault(at, at + 500) for at in range(2000, 12_000, 2000)), deliver("d/1", 12_000, 12_001, 0)],
    ),
    "late because of a fault of another replica group": (
        K.DELAY_LATE,
        [delayed("d/1", 0, 1, 1000, group="g0"), fault(900, 8000, group="g1"), deliver("d/1", 9000, 9001, 0)],
    ),
    "unknown, stored and late because of a fault of another replica group": (
        K.DELAY_LATE,
        [delayed("d/1", 0, 1, 1000, outcome="unknown"), fault(900, 8000, group="g1"), deliver("d/1", 9000, 9001, 0)],
    ),
    "late because of a fault that was not struck": (
        K.DELAY_LATE,
        [delayed("d/1", 0, 1, 1000), fault(900, 8000, outcome="failed"), deliver("d/1", 9000, 9001, 0)],
    ),
    "two owners": (
        K.ORDERLY_OVERLAP,
        [deliver("p/1", 0, 5, 0, mode="orderly"), deliver("p/2", 4, 6, 1, mode="orderly", member="other"), A, B],
    ),
    "two owners, another process stood still": (
        K.ORDERLY_OVERLAP,
        [deliver("p/1", 0, 5, 0, mode="orderly"), deliver("p/2", 4, 6, 1, mode="orderly", member="other"), A, B, pause(0, 9, "third")],
    ),
    "two owners, the first had stood still before": (
        K.ORDERLY_OVERLAP,
        [deliver("p/1", 10, 50, 0, mode="orderly"), deliver("p/2", 40, 41, 1, mode="orderly", member="other"), A, B, pause(5, 9, "m")],
    ),
    "a read without what was acknowledged": (K.STALE_READ, [A, B, read(["p/1"], 4, 5)]),
    "a read back": (
        K.STALE_READ,
        [send("p/1", 0, None, outcome="unknown"), read(["p/1"], 1, 2), read([], 3, 4), stored(["p/1"])],
    ),
    "a read ahead of its time": (K.STALE_READ, [read(["p/1"], 0, 1), send("p/1", 2, 3, 0)]),
    "an offset went back": (K.OFFSET_BACK, [commit(5, 0, 1), commit(3, 2, 3), fetch(3, 4, 5)]),
    "a committed offset is gone": (K.OFFSET_BACK, [commit(5, 0, 1), fetch(-1, 4, 5)]),
    "an offset read, then an older one": (
        K.OFFSET_BACK,
        [commit(3, 0, 1), commit(5, 2, None, "unknown"), fetch(5, 3, 4), fetch(3, 5, 6)],
    ),
    "another checksum": (K.REPLICAS_DIFFER, [replica("n0", 0, s0=1, s1=2), replica("n1", 0, s0=1, s1=3)]),
    "a replica ends before": (K.REPLICAS_DIFFER, [replica("n0", 0, 9, s0=1), replica("n1", 0, 8, s0=1)]),
    "two leaders": (K.TWO_LEADERS, [leader("n0", 3, 0), leader("n1", 3, 5)]),
    "memory rises": (K.LEAK, [resource(number, rss_bytes=(100 + 10 * number) << 20) for number in range(1, 33)]),
    "files rise, also when it leads": (
        K.LEAK,
        [
            each
            for number in range(1, 41)
            for each in (leader(f"n{number % 2}", number, 1000 * number - 1), resource(number, files=50 + 3 * number))
        ],
    ),
    "files rise": (K.LEAK, [resource(number, files=50 + 3 * number) for number in range(1, 33)]),
    "threads rise": (K.LEAK, [resource(number, threads=20 + number) for number in range(1, 33)]),
    "not acknowledged any more": (
        K.NOT_RECOVERED,
        [probe(0, 0, 1), fault(10, 20), probe(1, 11, 40_000, "unknown"), probe(2, 40_001, 70_000, "unknown")],
    ),
    "acknowledged much later": (K.NOT_RECOVERED, [probe(0, 0, 1), fault(10, 20), probe(1, 11, 61_000)]),
    "acknowledged much later, and after the next fault": (
        K.NOT_RECOVERED,
        [probe(0, 0, 1), fault(10, 20), probe(1, 11, 70_000), fault(65_000, 66_000, round=2)],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_broken_promise_is_found(name: str) -> None:
    kind, history = BAD[name]
    assert set(kinds(history)) == {kind}


def test_there_is_a_history_for_each_kind() -> None:
    assert {kind for kind, _ in BAD.values()} == set(K)


GOOD: dict[str, list[Operation]] = {
    "nothing": [],
    "unknown and not stored": [A, send("p/2", 2, None, outcome="unknown"), stored(["p/1"])],
    "unknown and stored": [A, send("p/2", 2, None, outcome="unknown"), stored(["p/1", "p/2"])],
    "failed and not stored": [A, send("p/2", 2, 3, outcome="failed"), stored(["p/1"])],
    "unknown and stored late, behind a later one": [
        send("p/1", 0, None, outcome="unknown"),
        send("q/1", 5, 6, 0),
        stored(["q/1", "p/1"]),
    ],
    "a plain message twice after a retry": [send("p/1", 0, 9, 1, idempotent=False, attempts=2), stored(["p/1", "p/1"])],
    "a plain message of unknown outcome twice": [send("p/1", 0, 9, outcome="unknown", idempotent=False), stored(["p/1", "p/1"])],
    "a delayed message twice after a retry": [delayed("d/1", 0, 1, 5, idempotent=False, attempts=2), stored(["d/1", "d/1"])],
    "a plain producer's key without waiting": [
        send("p/1", 0, 9, 1, key="k", idempotent=False),
        send("p/2", 1, 9, 0, key="k", idempotent=False),
    ],
    "a plain message twice, tries not counted": [send("p/1", 0, 9, 0, idempotent=False), stored(["p/1", "p/1"])],
    "a late acknowledgement": [send("p/1", 0, 100, 0), send("q/1", 5, 6, 1), stored(["p/1", "q/1"])],
    "at the same time in either order": [send("p/1", 0, 9, 1), send("q/1", 1, 9, 0), stored(["q/1", "p/1"])],
    "nobody audited": [A, B, deliver("p/1", 4, 5, 0)],
    "without a key in two queues": [send("p/1", 0, 1, 5), send("p/2", 2, 3, 0, queue=1)],
    "a key in two queues of a topic that was altered": [
        send("p/1", 0, 1, 0, key="k"),
        admin("alter_topic", "t", 1),
        send("p/2", 2, 3, 0, key="k", queue=1),
    ],
    "delivered twice": [A, deliver("p/1", 4, 5, 0), deliver("p/1", 6, 7, 0), stored(["p/1"])],
    "an unknown one is stored and not delivered": [
        A,
        send("p/2", 2, None, outcome="unknown"),
        deliver("p/1", 4, 5, 0),
        stored(["p/1", "p/2"]),
    ],
    "an unknown one is stored, and the ordered consumer has not come to it": [
        A,
        send("p/2", 2, None, outcome="unknown"),
        deliver("p/1", 4, 5, 0, mode="orderly"),
        stored(["p/1", "p/2"]),
    ],
    "Spark ended before a message of unknown outcome was stored": [
        A,
        send("p/2", 2, None, outcome="unknown"),
        spark(["p/1"], 4),
        spark(["p/1"], 4, job="batch"),
        stored(["p/1", "p/2"]),
    ],
    "sent back, and given again by the next owner of the queue": [
        A,
        deliver("p/1", 4, 5, 0, sent_back=True),
        deliver("p/1", 6, 7, 0, member="other"),
        stored(["p/1"]),
    ],
    "sent back, from another offset": [
        A,
        B,
        deliver("p/1", 4, 5, 0, sent_back=True),
        deliver("p/2", 4, 5, 1),
        deliver("p/1", 9, 10, 77, redelivered=True),
        stored(["p/1", "p/2"]),
    ],
    "an ordered queue again after a change of owners": [
        *(
            deliver(f"p/{n}", at, at + 1, n - 1, mode="orderly", member=member)
            for n, at, member in ((1, 4, "m"), (2, 6, "m"), (1, 8, "other"), (2, 10, "other"))
        ),
        A,
        B,
        stored(["p/1", "p/2"]),
    ],
    "transactions of each end": [
        transaction("x/1", 0, 1),
        transaction("x/2", 2, 3, "rollback"),
        transaction("x/3", 4, 5, "commit", "unknown"),
        transaction("x/4", 6, 7, "commit", "unknown"),
        transaction("x/5", 8, 9, "commit", "failed", prepared=False),
        stored(["x/1", "x/4"]),
    ],
    "left open for the check, ended and not": [
        transaction("x/1", 0, 1, by="check"),
        transaction("x/2", 2, 3, by="check"),
        transaction("x/3", 4, 5, "rollback", by="check"),
        stored(["x/2"]),
    ],
    "transactions end in another order than they began": [transaction("x/1", 0, 9), transaction("x/2", 1, 3), stored(["x/2", "x/1"])],
    "a delayed message in time": [delayed("d/1", 0, 1, 1000), deliver("d/1", 1000, 1001, 0), stored(["d/1"])],
    "a delayed message of another time than the next": [delayed("d/1", 0, 1, 1000), delayed("d/2", 2, 3, 500), stored(["d/2", "d/1"])],
    "a level's delay, its time compared better since": [delayed("d/1", 0, 1, 1000, level=1), deliver("d/1", 600, 601, 0), stored(["d/1"])],
    "late because its group was away": [probe(0, 900, 901), probe(1, 910, 8000), delayed("d/1", 0, 1, 1000), deliver("d/1", 9000, 9001, 0)],
    "late because of a fault": [fault(900, 8000), delayed("d/1", 0, 1, 1000), deliver("d/1", 9000, 9001, 0)],
    "late because of two faults": [
        fault(900, 4000),
        fault(7000, 14_000),
        delayed("d/1", 0, 1, 1000),
        deliver("d/1", 16_000, 16_001, 0),
    ],
    "late because it was acknowledged late": [delayed("d/1", 0, 9000, 1000), deliver("d/1", 9001, 9002, 0)],
    "in time, and late again": [delayed("d/1", 0, 1, 1000), deliver("d/1", 1000, 1001, 0), deliver("d/1", 60_000, 60_001, 0)],
    "one owner after the other": [
        deliver("p/1", 0, 5, 0, mode="orderly"),
        deliver("p/2", 5, 6, 1, mode="orderly", member="other"),
        A,
        B,
    ],
    "two messages in one call": [deliver("p/1", 0, 5, 0, mode="orderly"), deliver("p/2", 0, 5, 1, mode="orderly"), A, B],
    "two owners, the first stood still": [
        deliver("p/1", 0, 50, 0, mode="orderly"),
        deliver("p/2", 40, 41, 1, mode="orderly", member="other"),
        A,
        B,
        pause(10, 45, "m"),
    ],
    "two owners, the first stood still in a pause that began before a shorter one": [
        deliver("p/1", 20, 50, 0, mode="orderly"),
        deliver("p/2", 40, 41, 1, mode="orderly", member="other"),
        A,
        B,
        pause(5, 25, "m"),
        pause(10, 12, "m"),
    ],
    "an owner that was killed in a call": [
        deliver("p/1", 0, None, 0, mode="orderly"),
        deliver("p/2", 4, 6, 1, mode="orderly", member="other"),
        A,
        B,
    ],
    "concurrent calls overlap": [deliver("p/1", 0, 5, 0), deliver("p/2", 1, 5, 1, member="other"), A, B],
    "a read during a send sees it": [send("p/1", 0, 9, 0), read(["p/1"], 1, 2), stored(["p/1"])],
    "a read during a send does not see it": [send("p/1", 0, 9, 0), read([], 1, 2), stored(["p/1"])],
    "a read sees what was never answered": [send("p/1", 0, None, outcome="unknown"), read(["p/1"], 5, 6), stored(["p/1"])],
    "a read from the middle": [A, B, read(["p/2"], 4, 5, start=1), stored(["p/1", "p/2"])],
    "a follower is behind": [A, B, read(["p/1"], 4, 5, mode="follower"), read([], 6, 7, mode="follower"), stored(["p/1", "p/2"])],
    "a late commit": [commit(5, 0, 1), commit(3, 2, 3), fetch(5, 4, 5)],
    "a commit of unknown outcome, there or not": [commit(5, 0, 1), commit(7, 2, None, "unknown"), fetch(5, 4, 5), fetch(7, 6, 7)],
    "nothing committed": [fetch(-1, 0, 1), fetch(0, 2, 3)],
    "heads of replicas deleted": [replica("n0", 0, s0=1, s1=2), replica("n1", 0, s1=2), replica("n2", 0, s1=2)],
    "terms and leaders": [leader("n0", 3, 0), leader("n1", 4, 5), leader("n0", 3, 6), leader("n1", 5, 7)],
    "memory goes up and down": [resource(number, rss_bytes=(100 + 80 * (number % 2)) << 20) for number in range(1, 41)],
    "files of clients that came to a new leader": [
        leader("n1", 1, 0),
        leader("n0", 2, 19_500),
        *(resource(number, files=(38 if number < 20 else 78) + number % 3) for number in range(1, 41)),
    ],
    "memory rose once": [resource(number, rss_bytes=(100 if number < 6 else 300) << 20) for number in range(1, 41)],
    "memory rises in a few rounds": [resource(number, rss_bytes=(100 + 20 * number) << 20) for number in range(1, 29)],
    "memory is high once": [resource(number, rss_bytes=(900 if number == 39 else 100) << 20) for number in range(1, 41)],
    "recovered": [probe(0, 0, 1), fault(10, 20), probe(1, 11, 2000)],
    "a probe that was stopped after the fault": [probe(0, 0, 1), fault(10, 20), probe(1, 90_000, 90_001)],
    "a fault that was never healed": [probe(0, 0, 1), fault(10, None), probe(1, 11, 90_000, "unknown")],
    "a plain history of Spark": [
        A,
        B,
        spark(["p/1"], 4),
        spark(["p/2"], 6, 1),
        spark(["p/1", "p/2"], 8, job="batch"),
        stored(["p/1", "p/2"]),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_nobody_promised_is_no_violation(name: str) -> None:
    assert kinds(GOOD[name]) == []


def test_replicas_may_lag_where_the_limits_say_so() -> None:
    history = [replica("n0", 0, 9, s0=1), replica("n1", 0, 8, s0=1)]
    assert kinds(history, Limits(replica_lag=1)) == []


def test_two_tools_name_checksums_of_their_own() -> None:
    other = Operation(
        "files", *([getattr(replica("n1", 0, s0=2), name) for name in ("kind", "invoked_ns", "returned_ns", "outcome", "round", "data")])
    )
    assert kinds([replica("n0", 0, s0=1), other]) == []


def test_a_violation_shows_the_operations_and_the_round() -> None:
    history = [send("p/1", 0, 1, 0, round=4), send("p/2", 2, 3, 1, round=5), stored(["p/1"])]
    (violation,) = check_all(history).violations
    assert (violation.round, violation.operations) == (5, (history[1],))
    assert "p/2" in violation.text
    assert "offset 1 of g0/0" in violation.text


def test_what_was_not_read_in_the_end_is_not_judged() -> None:
    """One queue was read before the audit was interrupted: what is in the other one is neither there nor lost."""
    check = HistoryCheck(LIMITS)
    for each in (send("p/1", 0, 1, 0, round=4), send("q/1", 0, 1, 0, queue=1, round=5), stored(["p/1"])):
        check.take(each)
    check.give_up([4, 5])
    assert check.finish().violations == []
    assert check.finish().not_judged == {4, 5}


def test_counts_are_by_kind_and_outcome() -> None:
    verdict = check_all([A, B, send("p/3", 4, None, outcome="unknown"), stored(["p/1", "p/2"])])
    assert verdict.counts == {"send ok": 2, "send unknown": 1, "stored ok": 1}


def test_violations_of_a_kind_are_bounded() -> None:
    history = [send(f"p/{n}", n, n + 0.5, n) for n in range(50)] + [stored([])]
    assert len(check_all(history, Limits(reported=7)).violations) == 7
