"""Replicas on the reader's own machine are read by their log files: the same messages, also while the log expires under the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from dledger_client import Admin, Message, Producer, PullConsumer
from dledger_client.fetch.local_log_reader import LocalLogReader
from dledger_client.fetch.records import Chunk
from dledger_wire._pb.broker_pb2 import LogPiece
from dledger_wire.errors import OffsetOutOfRangeError
from tests.cluster.harness import Cluster

HERE = frozenset({"127.0.0.1"})
SETTINGS = {"store": {"mappedFileSizeCommitLog": "256KiB", "maxMessageSize": "100KiB"}}
COUNT = 6000


class Watched:
    """Counts what ``LocalLogReader`` reads; ``broken``: nothing can be read any more after so many reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, self.reads = 0, 0
        self.broken_after = 1 << 30
        frames = LocalLogReader.frames

        def counted(files: LocalLogReader, pieces: Sequence[LogPiece], *where: Any) -> memoryview:
            self.reads += 1
            if self.reads > self.broken_after:
                raise FileNotFoundError(pieces[0].file)
            found = frames(files, pieces, *where)
            self.bytes += len(found)
            return found

        monkeypatch.setattr(LocalLogReader, "frames", counted)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.fixture
def filled(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two queues with bodies of all sizes, large ones compressed, some with tags."""
    cluster = make_cluster(settings=SETTINGS)
    cluster.start()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", queues=2)
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            body = b"%06d " % number + b"y" * (number * 37 % (9000 if number % 100 == 0 else 900))
            producer.send_oneway(Message("t", body, tags="odd" if number % 2 else "even"))
        producer.flush()
    cluster.wait_equal()
    return cluster


def everything(cluster: Cluster, **how: Any) -> list[tuple[int, int, bytes, str]]:
    tags = how.pop("tags", "*")
    with PullConsumer(cluster.bootstrap, read_from="follower", near=HERE, **how) as consumer:
        ends = {queue: held.max_offset for (_, queue), held in consumer.offsets("t").items()}
        which = {"tags": tags, "chunk_bytes": 1 << 18}
        chunks = [chunk for queue, end in ends.items() for chunk in consumer.read_chunks("t", queue, 0, end, **which)]
        return [(each.queue_id, each.queue_offset, each.body, each.tags) for chunk in chunks for each in chunk.messages()]


def test_files_give_what_the_network_gives_with_filters_and_when_they_are_lost_in_the_middle(filled: Cluster, watched: Watched) -> None:
    plain = everything(filled)
    assert (len(plain), watched.reads) == (COUNT, 0)
    assert everything(filled, local_files=True) == plain
    assert watched.bytes > sum(len(body) for _, _, body, _ in plain) / 2  # compressed bodies are smaller there
    odd = everything(filled, local_files=True, tags="odd")
    assert odd == [each for each in plain if each[3] == "odd"]
    watched.reads, watched.broken_after = 0, 3
    assert everything(filled, local_files=True) == plain
    assert 3 < watched.reads < 8  # each replica was tried once after it broke


def take_the_rest(chunks: Iterable[Chunk], found: dict[tuple[int, int], bytes]) -> None:
    for chunk in chunks:
        found |= {(0, each.queue_offset): each.body for each in chunk.messages()}


def test_a_log_that_expires_under_a_reader_gives_it_no_wrong_message(filled: Cluster, watched: Watched) -> None:
    plain = {(queue, offset): body for queue, offset, body, _ in everything(filled)}
    found: dict[tuple[int, int], bytes] = {}
    with PullConsumer(filled.bootstrap, read_from="follower", near=HERE, local_files=True) as consumer:
        end = consumer.offsets("t")["g0", 0].max_offset
        chunks = consumer.read_chunks("t", 0, 0, end, chunk_bytes=1 << 16)
        for _ in range(2):
            found |= {(0, each.queue_offset): each.body for each in next(chunks).messages()}
        for node_id in filled.processes:
            filled.cli_ok("expire", "--older-than", "0s", "--yes", "--id", node_id)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            take_the_rest(chunks, found)
    assert watched.bytes > 0
    assert 0 < len(found) < caught.value.min_offset
    assert all(plain[place] == body for place, body in found.items())
