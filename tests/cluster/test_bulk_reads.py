"""Bulk reads from nodes that send out of their log files: every message once and whole, also while nodes die and the log expires."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from dledger_client import Admin, Producer, PullConsumer
from dledger_wire.errors import OffsetOutOfRangeError
from tests.cluster.harness import Cluster
from tests.waiting import wait_until

SETTINGS = {"store": {"mappedFileSizeCommitLog": "8MiB"}}
COUNT, QUEUES = 60_000, 2
BLOCK = os.urandom(1 << 20)


def body_of(number: int) -> bytes:
    at = number * 97 % (1 << 19)
    return b"%08d" % number + BLOCK[at : at + 500 + number * 37 % 1000]


@pytest.fixture
def filled(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Some 60 MB in several log files, nothing of it in the nodes' memory."""
    cluster = make_cluster(settings=SETTINGS)
    cluster.start()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", queues=QUEUES)
    with Producer(cluster.bootstrap) as producer:
        for first in range(0, COUNT, 5000):
            producer.send_many("t", [body_of(number) for number in range(first, first + 5000)])
    cluster.wait_equal()
    for node in list(cluster.processes):
        cluster.terminate(node)
    cluster.start()
    return cluster


def read(consumer: PullConsumer, seen: list[int]) -> Iterator[int]:
    """Read everything, noting how often each number came; yields the size of each chunk."""
    for (_, queue_id), held in consumer.offsets("t").items():
        for chunk in consumer.read_chunks("t", queue_id, held.min_offset, held.max_offset):
            for message in chunk.messages():
                number = int(message.body[:8])
                assert hashlib.sha256(message.body).digest() == hashlib.sha256(body_of(number)).digest()
                seen[number] += 1
            yield len(chunk.frames)


@pytest.mark.parametrize("read_from", ["leader", "follower"])
def test_every_message_comes_once(filled: Cluster, read_from: str) -> None:
    seen = [0] * COUNT
    with PullConsumer(filled.bootstrap, read_from=read_from) as consumer:
        assert sum(read(consumer, seen)) > COUNT * 1000
    assert seen == [1] * COUNT


def test_a_node_that_dies_while_it_sends(filled: Cluster) -> None:
    seen = [0] * COUNT
    leader = filled.leader()
    with PullConsumer(filled.bootstrap, read_from="leader") as consumer:
        chunks = read(consumer, seen)
        next(chunks)
        killing = threading.Thread(target=filled.kill, args=(leader,))
        killing.start()
        for _ in chunks:
            pass
        killing.join()
    assert seen == [1] * COUNT


def test_the_log_expires_under_a_reader(filled: Cluster) -> None:
    """What is being sent comes whole; what is gone before is said to be."""
    seen = [0] * COUNT
    with PullConsumer(filled.bootstrap, read_from="leader") as consumer:
        chunks = read(consumer, seen)
        next(chunks)
        filled.cli_ok("expire", "--older-than", "0s", "--yes")  # at every node: another one may lead by then
        wait_until(lambda: min(held.min_offset for held in consumer.offsets("t").values()) > 0, "nothing expired")
        with pytest.raises(OffsetOutOfRangeError):
            for _ in chunks:
                pass
    assert set(seen) == {0, 1}
