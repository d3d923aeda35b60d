"""The synchronous clients in processes that fork, as Spark's workers do."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster.harness import ROOT, Cluster

PROGRAM = """
import os, sys
from dledger_client import Admin, Message, Producer, PullConsumer

bootstrap = sys.argv[1]
with Admin(bootstrap) as admin:
    admin.create_topic("forks", queues=1)
parents = Producer(bootstrap)
parents.send(Message("forks", b"parent"))
children = []
for number in range(3):
    child = os.fork()
    if not child:
        code = 1
        try:
            with Producer(bootstrap) as producer, PullConsumer(bootstrap, read_from="any") as consumer:
                producer.send(Message("forks", b"child %d" % number))
                code = 0 if consumer.fetch("forks", 0, 0)[0].body == b"parent" else 2
        finally:
            os._exit(code)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
parents.send(Message("forks", b"parent again"))
parents.close()
with PullConsumer(bootstrap) as consumer:
    print(sorted(message.body.decode() for message in consumer.fetch("forks", 0, 0)))
"""


def test_children_of_a_process_with_clients_have_clients_of_their_own(cluster: Cluster) -> None:
    program = [sys.executable, "-c", PROGRAM, cluster.config.bootstrap]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.stdout.splitlines() == ["[0, 0, 0]", "['child 0', 'child 1', 'child 2', 'parent', 'parent again']"], done.stderr
