"""Everything at once (``world.py``) while nodes and consumers die, then an account of every message."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dledger_client import Admin, PullConsumer, ReceivedMessage
from tests.cluster.harness import Cluster
from tests.cluster.world import Drill, Given, Member, Payer, Sender, delayed, ordered, plain
from tests.waiting import LIMIT_S, wait_until

STEPS = int(os.environ.get("DLEDGER_DRILL_STEPS", "8"))  # each kind of fault twice


@contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each in a thread until the block ends; an error of any of them is the test's."""
    stop, errors = threading.Event(), []

    def guarded(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stop)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not errors, errors
    assert not [thread for thread in threads if thread.is_alive()], "still at work"


def stored(cluster: Cluster, topic: str) -> list[ReceivedMessage]:
    with PullConsumer(cluster.bootstrap) as consumer:
        found: list[ReceivedMessage] = []
        for (_, queue_id), held in consumer.offsets(topic).items():
            for chunk in consumer.read_chunks(topic, queue_id, held.min_offset, held.max_offset):
                found += chunk.messages()
        return found


def assert_once(acknowledged: set[bytes], found: list[bytes], refused: Collection[bytes] = (), unknown: Collection[bytes] = ()) -> None:
    """What was acknowledged is there once; what was certainly not stored is not; beside these only what nobody could say may be."""
    counts = Counter(found)
    assert [body for body in refused if body in counts] == [], "certainly not stored, and there"
    assert set(counts) - acknowledged - set(unknown) == set(), "nobody was told of this"
    assert [body for body in acknowledged if body not in counts] == [], "acknowledged and lost"
    assert [body for body, count in counts.items() if count > 1] == [], "stored twice"


def assert_orderly(members: list[Member], acknowledged: set[bytes]) -> None:
    """Owners take turns: epochs only grow, each goes on in the queue's order, and each key's messages come in the order they were sent."""
    by_queue: dict[int, list[Given]] = defaultdict(list)
    for member in members:
        for given in member.given():
            by_queue[given.queue_id].append(given)
    seen: set[bytes] = set()
    for queue_id, all_given in by_queue.items():
        all_given.sort(key=lambda given: given.at)
        epoch, offset = 0, -1
        first_times: dict[bytes, list[int]] = defaultdict(list)
        for given in all_given:
            assert given.epoch >= epoch, f"queue {queue_id}: an owner of epoch {given.epoch} after one of {epoch}"
            if given.epoch == epoch:
                assert given.offset in (offset, offset + 1), f"queue {queue_id}, epoch {epoch}: {given.offset} after {offset}"
            else:
                assert given.offset <= offset + 1, f"queue {queue_id}: epoch {given.epoch} begins at {given.offset} after {offset}"
            epoch, offset = given.epoch, given.offset
            key, _, number = given.body.partition(b":")
            if given.body not in seen:
                seen.add(given.body)
                first_times[key].append(int(number))
        for key, numbers in first_times.items():
            assert numbers == sorted(numbers), f"messages of {key!r} out of order"
    assert acknowledged - seen == set(), "never given to the orderly group"


@pytest.mark.timeout(600 + 60 * STEPS)
def test_nothing_is_lost_doubled_or_out_of_order_whoever_dies(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(settings={"broker": {"transactionTimeOut": "2s", "transactionCheckInterval": "2s"}})
    cluster.start()
    for topic in ("plain", "ordered", "delayed", "paid"):
        cluster.cli_ok("topic", "create", topic, "--queues", "4")
    workers = [Member(cluster, "workers", "plain", tmp_path, f"w{n}") for n in range(3)]
    watchers = [Member(cluster, "watchers", "plain", tmp_path, f"b{n}", "--broadcast") for n in range(2)]
    orderlies = [Member(cluster, "orderlies", "ordered", tmp_path, f"o{n}", "--orderly") for n in range(3)]
    members = workers + watchers + orderlies
    senders = {name: Sender(name) for name in ("plain", "ordered", "delayed")}
    payer = Payer()

    def all_paid() -> bool:
        return {body for body in payer.prepared if int(body[1:]) % 3 != 1} <= {message.body for message in stored(cluster, "paid")}

    drill = Drill(cluster, members, seed=os.getpid())
    try:
        for member in members:
            member.start()
        with running(
            lambda stop: senders["plain"].run(cluster.bootstrap, stop, 200, plain),
            lambda stop: senders["ordered"].run(cluster.bootstrap, stop, 100, ordered),
            lambda stop: senders["delayed"].run(cluster.bootstrap, stop, 50, delayed),
            lambda stop: payer.run(cluster.bootstrap, stop, all_paid),
            partial(drill.run, pause_s=4.0),
        ):
            wait_until(lambda: len(drill.done) >= STEPS, lambda: f"{STEPS} faults, only {drill.done}", limit_s=60.0 * STEPS, pause_s=0.2)
        acknowledged = {name: set(sender.acknowledged) for name, sender in senders.items()}
        print({"paid": len(payer.prepared)} | {name: len(bodies) for name, bodies in acknowledged.items()}, drill.done)
        assert all(len(bodies) > 20 * STEPS for bodies in acknowledged.values())
        cluster.wait_healthy()

        def all_given(group: list[Member], name: str) -> bool:
            return acknowledged[name] <= {given.body for member in group for given in member.given()}

        def all_refused_came_again() -> bool:
            again = {given.body for member in workers for given in member.given() if given.times_before}
            return {body for body in acknowledged["plain"] if body.endswith(b"7")} <= again

        wait_until(lambda: all_given(workers, "plain"), "all given to the clustering group", pause_s=0.2)
        wait_until(all_refused_came_again, "what was refused is back through the retry topic", pause_s=0.2)
        wait_until(lambda: all(all_given([each], "plain") for each in watchers), "all given to broadcast consumers", pause_s=0.2)
        wait_until(lambda: all_given(orderlies, "ordered"), "all given to the orderly group", pause_s=0.2)
    finally:
        for member in members:
            member.end()
    assert_once(
        acknowledged["plain"], [message.body for message in stored(cluster, "plain")], senders["plain"].refused, senders["plain"].unknown
    )
    assert_once(
        acknowledged["ordered"],
        [message.body for message in stored(cluster, "ordered")],
        senders["ordered"].refused,
        senders["ordered"].unknown,
    )
    wait_until(lambda: len(stored(cluster, "delayed")) >= len(acknowledged["delayed"]), "delayed messages are delivered", pause_s=0.2)
    late = stored(cluster, "delayed")
    assert_once(acknowledged["delayed"], [message.body for message in late], senders["delayed"].refused, senders["delayed"].unknown)
    assert [message.body for message in late if message.store_timestamp < int(message.properties.get("TIMER_DELIVER_MS", "0"))] == [], (
        "early"
    )
    assert_orderly(orderlies, acknowledged["ordered"])
    assert all_paid(), "a transaction that was committed is lost"
    paid = [message.body for message in stored(cluster, "paid")]
    committed = {body for body in payer.prepared if int(body[1:]) % 3 != 1}
    assert_once(committed, paid, payer.refused, payer.unknown)
    assert [body for body in paid if int(body[1:]) % 3 == 1] == [], "a transaction that was rolled back is seen"
    with Admin(cluster.bootstrap) as admin:
        assert [group.parked for group in admin.transactions()] == [0], "parked, though its producer answered"
    cluster.cli_ok("verify", "--online")
