"""The synchronous clients in processes that fork, as Spark's workers do."""

from __future__ import annotations

import subprocess
import sys

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
