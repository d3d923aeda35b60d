"""A client of a cluster, as a process in a network of its own.

    python -m tests.deploy.far_client state BOOTSTRAP VOTERS NAMES   waits until so many voters acknowledge and name servers agree
    python -m tests.deploy.far_client check BOOTSTRAP COUNT          sends so many and reads all, from the leader and from followers
    python -m tests.deploy.far_client steady BOOTSTRAP FILE          sends numbers in order and reads them, until its stdin ends
    python -m tests.deploy.far_client spark BOOTSTRAP                reads all with Spark

Each prints what it found as JSON, in one line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dledger_client import Admin, DledgerError, Message, Producer, PullConsumer, TopicNotFoundError
from tests.waiting import LIMIT_MS, wait_until

TOPIC = "far"


def body(number: int) -> bytes:
    return b"%08d" % number


def state(bootstrap: str, voters: str, names: str) -> None:
    with Admin(bootstrap, timeout_ms=LIMIT_MS) as admin:
        leader = wait_until(lambda: led_by(admin, int(voters), int(names)), f"{voters} voters and {names} name servers", pause_s=0.3)
    print(json.dumps({"leader": leader}))


def led_by(admin: Admin, voters: int, names: int) -> str:
    """The leader, once so many follow it and so many name servers know the whole cluster and each other; else empty."""
    try:
        servers = sum(server.complete and server.has_quorum for server in admin.name_servers())
        (group,) = admin.cluster_status()
    except DledgerError:
        return ""
    return group.leader.id if servers >= names and group.leader is not None and len(group.acknowledging) >= voters else ""


def create_topic(bootstrap: str) -> None:
    with Admin(bootstrap, timeout_ms=LIMIT_MS) as admin:
        if TOPIC not in {topic.topic for topic in admin.list_topics()}:
            admin.create_topic(TOPIC, queues=1)
    with PullConsumer(bootstrap, timeout_ms=LIMIT_MS) as consumer:
        wait_until(lambda: is_known(consumer), "the name servers know the topic")


def is_known(consumer: PullConsumer) -> bool:
    """A name server hears of a new topic from the leader, which may take longer than it lets a client wait for it."""
    try:
        consumer.topic(TOPIC)
    except TopicNotFoundError:
        return False
    return True


def check(bootstrap: str, count: str) -> None:
    create_topic(bootstrap)
    with PullConsumer(bootstrap, timeout_ms=LIMIT_MS) as consumer:
        first = end_of(consumer)
        with Producer(bootstrap, send_timeout_ms=LIMIT_MS) as producer:
            for future in [producer.send_async(Message(TOPIC, body(first + number))) for number in range(int(count))]:
                future.result()
        upto = first + int(count)
        read(consumer, upto)
    with PullConsumer(bootstrap, read_from="follower", timeout_ms=LIMIT_MS) as consumer:
        read(consumer, upto)
        replicas = {chunk.replica for chunk in consumer.fetch_chunks(TOPIC, 0, 0, 1)}
    print(json.dumps({"replicas": sorted(replicas), "count": upto}))


def read(consumer: PullConsumer, upto: int) -> int:
    """How many messages are there, each in its place."""
    found: list[bytes] = []
    while len(found) < upto:
        found += [message.body for message in consumer.fetch(TOPIC, 0, len(found), 1000, wait_ms=1000)]
    assert found == [body(number) for number in range(upto)], "messages are missing, doubled or out of order"
    return len(found)


def end_of(consumer: PullConsumer) -> int:
    (held,) = consumer.offsets(TOPIC).values()
    return held.max_offset


def steady(bootstrap: str, file: str) -> None:
    """``file`` has, always, how many were acknowledged and how many were read back."""
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    sent = 0
    create_topic(bootstrap)
    with (
        Producer(bootstrap, send_timeout_ms=LIMIT_MS) as producer,
        PullConsumer(bootstrap, timeout_ms=LIMIT_MS) as consumer,
    ):
        while not over.wait(0.05):
            producer.send(Message(TOPIC, body(sent)))
            sent += 1
            while not (found := consumer.fetch(TOPIC, 0, sent - 1, 1, wait_ms=1000)):
                pass
            assert found[0].body == body(sent - 1)
            note(Path(file), sent)
        assert read(consumer, sent) == sent
        assert end_of(consumer) == sent
    print(json.dumps({"sent": sent}))


def note(file: Path, sent: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(sent), encoding="utf-8")
    os.replace(new, file)


def spark(bootstrap: str) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
    options = {"bootstrap": bootstrap, "topic": TOPIC, "readFrom": "follower"}
    rows = session.read.format("dledger").options(**options).load().select("queue_offset", "body", "replica").collect()
    assert sorted((row.queue_offset, bytes(row.body)) for row in rows) == [(number, body(number)) for number in range(len(rows))]
    print(json.dumps({"rows": len(rows), "replicas": sorted({row.replica for row in rows})}))
    session.stop()


PROGRAMS: dict[str, Callable[..., None]] = {"state": state, "check": check, "steady": steady, "spark": spark}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
