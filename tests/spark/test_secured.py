"""Spark and a cluster with TLS and users: read, stream, write exactly once; and nothing that Spark shows has a secret."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger_client import Admin, Message, Producer, PullConsumer
from pyspark_dledger.jobs.common import reason
from tests.cluster.secured import ADMIN, SecuredCluster
from tests.spark.conftest import environment
from tests.waiting import LIMIT_S

USER, PASSWORD = "analyst", "q8R-not-to-be-shown"
TOPIC, COPY, HIDDEN, COUNT = "orders", "copied", "salaries", 200


@pytest.fixture(scope="module")
def shop(module_folder: Path) -> Iterator[SecuredCluster]:
    """One node; the user may read one topic, write another, and stage its writes."""
    made = SecuredCluster(module_folder, (1,))
    try:
        made.ok("up", "--timeout", str(int(LIMIT_S)))
        with Admin(made.bootstrap, **made.who(ADMIN)) as admin:
            for topic in (TOPIC, COPY, HIDDEN):
                admin.create_topic(topic, queues=2)
        with Producer(made.bootstrap, **made.who(ADMIN)) as producer:
            producer.send_batch([Message(TOPIC, b"%d" % number) for number in range(COUNT)], queue_id=0)
        made.add_user(USER, PASSWORD)
        rules = [("read", "--topic", TOPIC), ("read,write", "--topic", COPY)]
        rules += [("read,write,create", "--topic", "spark-staging"), ("write", "--producer", "*")]
        for actions, kind, name in rules:
            made.ok("acl", "allow", USER, actions, kind, name, user=ADMIN)
        yield made
    finally:
        made.end()


def options(shop: SecuredCluster, **more: str) -> dict[str, str]:
    who = {"user": USER, "passwordFile": shop.password_file(USER), "tls.ca": shop.ca}
    return {"bootstrap": shop.bootstrap, "readTimeoutMs": "30s"} | who | more


def test_a_batch_is_read_by_password_and_by_password_file(spark: Any, shop: SecuredCluster) -> None:
    for who in ({}, {"password": PASSWORD, "passwordFile": ""}):
        frame = spark.read.format("dledger").options(**(options(shop, topic=TOPIC) | who)).load()
        assert sorted(int(bytes(row.body)) for row in frame.collect()) == list(range(COUNT))


def test_what_spark_shows_has_no_secret(spark: Any, shop: SecuredCluster) -> None:
    given = options(shop, topic=TOPIC) | {"password": PASSWORD, "passwordFile": ""}
    frame = spark.read.format("dledger").options(**given).load()
    plan = frame._jdf.queryExecution()
    shown = [plan.toString(), plan.logical().toJSON(), plan.executedPlan().toString(), repr(frame)]
    assert all("dledger" in text or "body" in text for text in shown)
    assert not [text for text in shown if PASSWORD in text]


def test_a_stream_writes_exactly_once(spark: Any, shop: SecuredCluster, tmp_path: Path) -> None:
    """From one topic to another, in several batches, and once more from the same checkpoint."""
    read = options(shop, topic=TOPIC, maxMessagesPerTrigger="60") | {"password": PASSWORD, "passwordFile": ""}
    write = options(shop, topic=COPY)
    write.pop("readTimeoutMs")
    for _ in range(2):
        stream = spark.readStream.format("dledger").options(**read).load().select("body", "keys")
        query = stream.writeStream.format("dledger").options(**write).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        assert PASSWORD not in str(running.lastProgress)
    kept = [file for file in tmp_path.rglob("*") if file.is_file()]  # what Spark writes of a query
    assert kept
    assert not [file for file in kept if PASSWORD.encode() in file.read_bytes()]
    with PullConsumer(shop.bootstrap, **shop.who(USER)) as consumer:
        chunks = [
            chunk
            for (group, queue), held in consumer.offsets(COPY).items()
            for chunk in consumer.read_chunks(COPY, queue, 0, held.max_offset, replica_group=group)
        ]
        copied = [message.body for chunk in chunks for message in chunk.messages()]
    assert sorted(copied, key=int) == [b"%d" % number for number in range(COUNT)]


def test_a_direct_write_needs_rights_on_its_topic_and_its_producers(spark: Any, shop: SecuredCluster) -> None:
    name, password = "loader", "v4T-not-to-be-shown"
    shop.add_user(name, password)
    with Admin(shop.bootstrap, **shop.who(ADMIN)) as admin:
        admin.create_topic("loaded", queues=2)
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS body")
    given = options(shop, topic="loaded", writeMode="direct", user=name, passwordFile=shop.password_file(name))
    given.pop("readTimeoutMs")

    def save() -> str:
        try:
            rows.write.format("dledger").options(**given).mode("append").save()
        except Exception as error:  # Spark's own
            return str(reason(error))
        return ""

    shop.ok("acl", "allow", name, "write", "--topic", "loaded", user=ADMIN)
    assert "user loader may not read topic loaded" in save()
    shop.ok("acl", "allow", name, "read", "--topic", "loaded", user=ADMIN)
    assert "user loader may not write producer spark-direct-" in save()
    shop.ok("acl", "allow", name, "write", "--producer", "spark-direct-*", user=ADMIN)
    assert save() == ""
    with PullConsumer(shop.bootstrap, **shop.who(ADMIN)) as consumer:
        assert sum(held.max_offset for held in consumer.offsets("loaded").values()) == 100


def test_a_wrong_password_is_one_line(spark: Any, shop: SecuredCluster, tmp_path: Path) -> None:
    given = options(shop, topic=TOPIC) | {"password": "Zx9-guessed", "passwordFile": ""}
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's own
        spark.read.format("dledger").options(**given).load().collect()
    assert reason(failed.value) == f"{USER}: wrong name or password"
    assert "Zx9-guessed" not in str(failed.value)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's own
        spark.read.format("dledger").options(**options(shop, topic=HIDDEN)).load().collect()
    assert reason(failed.value) == f"user {USER} may not read topic {HIDDEN}"
    query = spark.readStream.format("dledger").options(**given).load().writeStream.format("noop")
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's own
        query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert f"{USER}: wrong name or password" in str(failed.value)
    assert "Zx9-guessed" not in str(failed.value)


def test_a_job_takes_the_options_of_the_command_line(shop: SecuredCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dledger_cli", "spark", "stats", TOPIC, "--json", "--master", "local[2]"]
    command += ["--user", USER, "--password-file", shop.password_file(USER)]
    env = environment(tmp_path) | {"DLEDGER_CONFIG": str(shop.file)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert f'"messages": {COUNT}' in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
