"""The synchronous clients in processes that fork, as Spark's workers do, and that end with producers open."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from dledger_client import PullConsumer
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_S

PROGRAM = """
import os, sys, traceback
from dledger_client import Admin, Message, Producer, PullConsumer

bootstrap = sys.argv[1]

def child_of(number):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with Producer(bootstrap) as producer, PullConsumer(bootstrap, read_from="any") as consumer:
            place = producer.send(Message("forks", b"child %d" % number))
            found = consumer.fetch("forks", 0, place.queue_offset, 1, linearizable=True)  # a follower may not have applied it yet
            code = 0 if [message.msg_id for message in found] == [place.msg_id] else 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

def exit_codes(children):
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

print(exit_codes([child_of(number) for number in range(3)]))
with Producer(bootstrap) as producer:
    producer.send(Message("forks", b"parent"))
    print(exit_codes([child_of(3)]))
    producer.send(Message("forks", b"parent again"))
with PullConsumer(bootstrap) as consumer:
    print(sorted(message.body.decode() for message in consumer.fetch("forks", 0, 0)))
"""


def test_forked_children_make_clients_of_their_own_before_and_while_their_parent_uses_one(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "forks", "--queues", "1")
    program = [sys.executable, "-c", PROGRAM, cluster.bootstrap]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    bodies = ["child 0", "child 1", "child 2", "child 3", "parent", "parent again"]
    assert done.stdout.splitlines() == ["[0, 0, 0]", "[0]", str(bodies)], done.stderr


LEFT_OPEN = """
import sys

from dledger_client import Message, Producer

bootstrap, topic, end = sys.argv[1:]
producer = Producer(bootstrap, "left-open", send_timeout_ms=60_000)
for number in range(3000):
    producer.send_async(Message(topic, b"%d" % number))
for number in range(300):
    producer.send_oneway(Message(topic, b"one way"))
if end == "exit":
    sys.exit(0)
if end == "raise":
    raise ValueError("the application's own")
"""
ENDS = {"script": 0, "exit": 0, "raise": 1, "dev": 0}


def test_what_a_producer_holds_that_nobody_closed_is_stored_when_the_process_ends(cluster: Cluster) -> None:
    """docs/reference/semantics, row P10."""
    programs = {}
    for end in ENDS:
        cluster.cli_ok("topic", "create", f"left-open-{end}", "--queues", "2")
        options = ["-X", "dev"] if end == "dev" else []
        command = [sys.executable, *options, "-c", LEFT_OPEN, cluster.bootstrap, f"left-open-{end}", end]
        programs[end] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    for end, program in programs.items():
        _, errors = program.communicate(timeout=LIMIT_S)
        assert program.returncode == ENDS[end], errors
        assert ("ResourceWarning" in errors) == (end == "dev"), errors
        assert "not stored" not in errors
        with PullConsumer(cluster.bootstrap) as consumer:
            assert sum(held.max_offset for held in consumer.offsets(f"left-open-{end}").values()) == 3300, errors


def test_what_could_not_be_sent_when_the_process_ended_is_counted(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "gone", "--queues", "1")
    program = """
import sys

from dledger_client import Admin, Message, Producer
producer = Producer(sys.argv[1], "left-open", send_timeout_ms=20_000)
producer.send(Message("gone", b"x"))
Admin(sys.argv[1]).delete_topic("gone")
for number in range(7):
    producer.send_oneway(Message("gone", b"x"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, cluster.bootstrap], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "7 messages of producers that were not closed were not stored before the process ended: topic 'gone'" in done.stderr


INTERRUPTED = """
import signal, sys

from dledger_client import Message, Producer

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests: in the background of a shell it is ignored
with Producer(sys.argv[1], "interrupted", send_timeout_ms=600_000) as producer:
    producer.send(Message("interrupts", b"x"))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(3):
        producer.send_async(Message("interrupts", b"x"))
    print("sent", flush=True)
    sys.stdin.readline()
"""


def test_who_interrupts_the_wait_for_a_cluster_that_is_away_is_not_made_to_wait_again(cluster: Cluster) -> None:
    """docs/reference/semantics, row P10: the first Ctrl-C leaves the block, another one ends the wait at its end."""
    cluster.cli_ok("topic", "create", "interrupts", "--queues", "1")
    program = [sys.executable, "-c", INTERRUPTED, cluster.bootstrap]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "ready\n"
        cluster.kill_all()
        running.stdin.write("\n")
        assert running.stdout.readline() == "sent\n"
        interrupts = 0
        while running.poll() is None and interrupts < 3:  # one may come between the block and the wait at its end
            running.send_signal(signal.SIGINT)
            interrupts += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(5)
        ended = running.poll()
        running.kill()
        errors = running.stderr.read()
    assert ended == -signal.SIGINT, errors
    assert (
        errors.count("3 messages of producers that were not closed were not stored before the process ended: the wait was broken off") == 1
    )


PATCHED = """
import sys
from gevent import monkey, spawn
monkey.patch_all(thread=False, queue=False, select=False)
if sys.argv[2] == "asyncio":
    sys.modules["uvloop"] = None
from threading import Semaphore
from dledger_client import Action, Message, Producer, PushConsumer

bootstrap, consumed = sys.argv[1], Semaphore(0)

def listener(messages, context):
    consumed.release(len(messages))
    return Action.COMMIT

consumer = PushConsumer(bootstrap, "green-" + sys.argv[2], listener)
consumer.subscribe("green")
with consumer, Producer(bootstrap) as producer:
    producer.send(Message("green", b"main"))
    spawn(lambda: producer.send(Message("green", b"green"))).get(timeout=60)
    producer.send_many("green", [b"many"] * 10)
    print([consumed.acquire(timeout=60) for _ in range(12)].count(True))
"""


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed here")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_clients_work_in_a_process_patched_by_gevent_as_the_error_says(cluster: Cluster, loop: str) -> None:
    cluster.cli_ok("topic", "create", "green", "--queues", "2", "--if-not-exists")
    program = [sys.executable, "-c", PATCHED, cluster.bootstrap, loop]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    assert int(done.stdout or 0) >= 12, done.stderr
