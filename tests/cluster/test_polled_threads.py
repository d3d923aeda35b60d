"""The polled consumer of threads on real nodes: its callbacks, positions and commits, and how other threads end its loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from dledger_client import ClientClosedError, Consumer, Message, MessageQueue, Producer, PullConsumer
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_S, wait_until


def put(cluster: Cluster, first: int, count: int) -> None:
    with Producer(cluster.bootstrap, "numbers") as producer:
        for number in range(first, first + count):
            producer.send(Message("t", b"%d" % number), queue_id=number % 2)


def committed(cluster: Cluster) -> int:
    with PullConsumer(cluster.bootstrap, "g") as consumer:
        return sum(consumer.committed("t").values())


def test_callbacks_run_in_the_thread_that_polls_and_may_use_the_consumer(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "2")
    put(cluster, 0, 40)
    calls: list[tuple[str, threading.Thread, int]] = []

    def assigned(queues: list[MessageQueue]) -> None:
        calls.append(("assigned", threading.current_thread(), len(queues)))
        for queue in queues:
            consumer.seek(queue, 5)

    def revoked(queues: list[MessageQueue]) -> None:
        calls.append(("revoked", threading.current_thread(), len(queues)))
        consumer.commit()

    consumer = Consumer(cluster.bootstrap, "g", "t", auto_commit=False, on_assigned=assigned, on_revoked=revoked)
    found: list[bytes] = []
    while len(found) < 30:
        found += [message.body for message in consumer.poll(7)]
    assert sorted(found, key=int) == [b"%d" % number for number in range(10, 40)]
    assert sum(consumer.lag().values()) == 0
    assert committed(cluster) == 0

    other = Consumer(cluster.bootstrap, "g", ["t"])
    given: list[bytes] = []

    def iterate() -> None:
        given.extend(message.body for message in other)

    loop = threading.Thread(target=iterate)
    loop.start()
    wait_until(lambda: consumer.poll(timeout_ms=100) == [] and len(other.assigned()) == 1, "the queues are shared")
    put(cluster, 40, 2)
    wait_until(lambda: len(given) == 1, "the other member is given the message of its queue")
    other.close()  # ends the loop
    loop.join(LIMIT_S)
    assert not loop.is_alive()
    wait_until(lambda: consumer.poll(timeout_ms=100) or len(consumer.assigned()) == 2, "its queue comes back")
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll()
    assert {kind for kind, _, _ in calls} == {"assigned", "revoked"}
    assert {thread for _, thread, _ in calls} == {threading.current_thread()}


PROGRAM = """
import sys
from dledger_client import Consumer
with Consumer(sys.argv[1], "g", "t", client_id=sys.argv[2]) as consumer:
    for message in consumer:
        print(sys.argv[2], message.queue_id, message.queue_offset, flush=True)
        sys.stdin.readline()
"""


def test_a_member_that_was_stopped_and_goes_on_gives_nothing_of_what_others_have(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "2")
    put(cluster, 0, 40)
    given: list[bytes] = []

    def polled() -> int:
        given.extend(each.body for each in consumer.poll(timeout_ms=100))
        return len(given)

    arguments = [sys.executable, "-c", PROGRAM, cluster.bootstrap, "stopped"]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=pipe, stdout=pipe, text=True) as stopped:
        try:
            assert stopped.stdin is not None
            assert stopped.stdout is not None
            assert stopped.stdout.readline()
            stopped.send_signal(signal.SIGSTOP)
            with Consumer(cluster.bootstrap, "g", "t") as consumer:
                wait_until(lambda: polled() == 40, "all come to the other one")
                consumer.poll(timeout_ms=0)
                wait_until(lambda: committed(cluster) == 40, "they are committed")
                stopped.stdin.write("\n" * 50)  # it would print all that it had fetched
                stopped.stdin.flush()
                stopped.send_signal(signal.SIGCONT)
                wait_until(lambda: polled() and len(consumer.assigned()) == 1, "the stopped one is back")
                put(cluster, 40, 2)
                wait_until(lambda: polled() == 41, "one more here")
            assert stopped.stdout.readline().split()[2] == "20"
        finally:
            stopped.kill()
