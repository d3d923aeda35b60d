"""The jobs on a real cluster: archive and its join with the live log, audit, statistics, replay; as functions and as commands."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dledger_client import Admin, Message, Producer
from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.jobs import archive as archive_job
from pyspark_dledger.jobs import audit as audit_job
from pyspark_dledger.jobs import replay as replay_job
from pyspark_dledger.jobs import stats as stats_job
from pyspark_dledger.jobs.common import finish
from tests.cluster.harness import Cluster
from tests.spark.conftest import COUNT, TOPIC, send
from tests.spark.test_batch_write import make, messages_of
from tests.waiting import LIMIT_MS, LIMIT_S


def run(main: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, what a job's command printed as JSON, what it said on stderr)."""
    code = finish(main, [*arguments, "--bootstrap", cluster.bootstrap, "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out.splitlines()[-1]) if shown.out.strip() else {}, shown.err


def test_the_archive_grows_by_what_is_new_and_joins_the_live_log(
    spark: Any, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "archive")
    code, report, said = run(archive_job.main, cluster, capsys, TOPIC, "--path", path, "--per-trigger", "1700")
    assert code == 0, said
    assert (report["added"], report["archived"]) == (COUNT, {TOPIC: COUNT})
    with Producer(cluster.bootstrap) as producer:
        send(producer, COUNT, COUNT + 200)
    joined = archive_job.read_joined(spark, cluster.bootstrap, [TOPIC], path)
    rows = joined.select("queue_id", "queue_offset", "body").collect()
    assert len({(row.queue_id, row.queue_offset) for row in rows}) == len(rows) == COUNT + 200
    assert archive_job.archive(spark, cluster.bootstrap, [TOPIC], path) == 200
    assert joined.count() == COUNT + 200  # what the frame shows was fixed before
    archived = archive_job.read_archive(spark, path)
    assert archived.count() == COUNT + 200
    assert archived.where("date <> CAST(store_timestamp AS DATE) OR hour <> hour(store_timestamp)").count() == 0
    assert sorted(int(bytes(row.body).partition(b"|")[0]) for row in archived.collect()) == list(range(COUNT + 200))


def test_a_topic_made_anew_is_joined_from_where_the_archive_has_it(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Its offsets begin at 0 again: those of the topic before it, which are higher, say nothing of it."""
    path = str(tmp_path / "archive")
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        for life, count in enumerate((7, 3)):
            admin.create_topic("reborn", queues=2)
            if life == 0:
                producer.send(Message("reborn", b"rest"), queue_id=1)  # a queue that has nothing in the second life
            for number in range(count):
                producer.send(Message("reborn", b"%d|%d" % (life, number)), queue_id=0)
            assert archive_job.archive(spark, cluster.bootstrap, ["reborn"], path, failOnDataLoss="false") == count + (life == 0)
            if life == 0:
                admin.delete_topic("reborn")
                admin.create_topic("reborn", queues=2)
                for sent in (3, 6):  # fewer than the archive has, and more
                    for _ in range(sent):
                        producer.send(Message("reborn", b"lost"), queue_id=0)
                    with pytest.raises(
                        InvalidArgumentError, match="topic reborn queue g0:0: its message 6 is not the last one of the archive"
                    ):
                        archive_job.read_joined(spark, cluster.bootstrap, ["reborn"], path)
                admin.delete_topic("reborn")
        for number in range(3, 9):
            producer.send(Message("reborn", b"1|%d" % number), queue_id=0)
    rows = archive_job.read_joined(spark, cluster.bootstrap, ["reborn"], path).select("body").collect()
    assert sorted(bytes(row.body) for row in rows) == [*(b"0|%d" % n for n in range(7)), *(b"1|%d" % n for n in range(9)), b"rest"]


def test_equal_replicas_are_found_equal(spark: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    make(cluster, "audited")
    with Producer(cluster.bootstrap) as producer:
        for number in range(40):
            producer.send_async(Message("audited", b"%d" % number, keys=f"key-{number}", properties={"n": "1"}), queue_id=number % 2)
        producer.flush()
    cluster.wait_equal()
    code, report, _ = run(audit_job.main, cluster, capsys, "audited")
    assert (code, report["equal"], report["problems"]) == (0, True, [])
    assert {(row["replica"], row["queue_id"], row["count"]) for row in report["queues"]} == {
        (node, queue, 20) for node in ("n0", "n1", "n2") for queue in (0, 1)
    }
    assert len({row["checksum"] for row in report["queues"]}) == 2


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("CASE WHEN queue_offset = 13 THEN 'kex' ELSE keys END AS keys", "{bad} differs from {good}, first at offset 13"),
        ("CASE WHEN queue_offset = 11 THEN map('n', '2') ELSE properties END AS properties", "differs from {good}, first at offset 11"),
        ("CASE WHEN queue_offset = 7 THEN 8 ELSE queue_offset END AS queue_offset", "1 messages missing, 1 duplicated, first at offset 7"),
        ("CASE WHEN queue_offset = 9 THEN 0 ELSE physical_offset END AS physical_offset", "at {bad}: out of order at offset 9"),
    ],
)
def test_the_first_difference_of_a_replica_is_named(spark: Any, cluster: Cluster, damage: str, problem: str) -> None:
    """One replica's answer is altered on its way into the comparison."""
    good, bad = "n0", "n1"
    column = damage.rpartition(" ")[2]

    def read(held: Any, replica: str) -> Any:
        frame = audit_job.read_replica(spark, cluster.bootstrap, held, replica)
        return frame.selectExpr(*[name for name in frame.columns if name != column], damage) if replica == bad else frame

    _, problems = audit_job.audit(spark, cluster.bootstrap, ["audited"], [good, bad], read)
    # Compared with the leader, if that is one of the two; it may be elected anew while the job runs.
    named = [problem.format(good=good, bad=bad)]
    if "differs" in problem:
        named.append(problem.format(good=bad, bad=good))
    assert any(text in each for each in problems for text in named), problems


def test_a_flipped_byte_and_a_replica_that_is_down_are_differences(
    cluster: Cluster, spark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with 1, names both, and compares the others; it mends nothing."""
    make(cluster, "rotten")
    with Producer(cluster.bootstrap) as producer:
        for number in range(50):
            producer.send_async(Message("rotten", b"number %d in a body that is long enough" % number), queue_id=0)
        producer.flush()
    cluster.wait_equal()
    leader = cluster.leader()
    bad, down = (node for node in cluster.processes if node != leader)
    cluster.kill(bad)
    cluster.start(bad)
    cluster.wait_equal()  # what it wrote before is read from its files now
    segment = min((cluster.data / bad / "commitlog").iterdir())
    data = segment.read_bytes()
    at = data.rindex(b"number 33 in a body") + 10
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    cluster.kill(down)
    read_replica = audit_job.read_replica

    def read(spark: Any, bootstrap: str, held: Any, replica: str) -> Any:
        monkeypatch.setattr(audit_job, "READ_TIMEOUT_MS", 2_000 if replica == down else LIMIT_MS)  # each task is tried three times
        return read_replica(spark, bootstrap, held, replica)

    monkeypatch.setattr(audit_job, "read_replica", read)
    try:
        code, report, errors = run(audit_job.main, cluster, capsys, "rotten")
    finally:
        cluster.start(down)
    assert (code, report["equal"]) == (1, False)
    assert any(f"at {down} cannot be read" in each for each in report["problems"])
    assert any(f"at {bad} cannot be read" in each and "message 33 is damaged" in each for each in report["problems"]), report["problems"]
    assert {row["replica"] for row in report["queues"]} == {leader}
    assert "message 33 is damaged" in errors
    assert segment.read_bytes()[at] == data[at] ^ 1


def test_a_replica_that_has_expired_more_is_compared_by_what_all_have(
    cluster: Cluster, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cluster, "expired")
    with Producer(cluster.bootstrap) as producer:
        for number in range(60):
            producer.send_async(Message("expired", b"%d|" % number + random.randbytes(200_000)), queue_id=0)
        producer.flush()
    cluster.wait_equal()
    cluster.cli_ok("expire", "--id", next(node for node in cluster.processes if node != cluster.leader()), "--older-than", "0s", "--yes")
    code, report, said = run(audit_job.main, cluster, capsys, "expired")
    assert (code, report["problems"]) == (0, [])
    assert len(report["queues"]) == 3
    assert {row["count"] for row in report["queues"]} == {row["expected"] for row in report["queues"]}
    assert 0 < report["queues"][0]["count"] < 60
    assert "expired g0:0: compared from offset" in said


def test_statistics_add_up_and_are_drawn(spark: Any, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(cluster, "counted")
    with Producer(cluster.bootstrap) as producer:
        for number in range(300):
            producer.send_async(Message("counted", b"x" * number, tags="a" if number % 3 else ""))
        producer.flush()
    picture = tmp_path / "p.svg"
    code, report, said = run(stats_job.main, cluster, capsys, "counted", "--picture", str(picture))
    assert code == 0, said
    by_tag: dict[str, list[int]] = {}
    for row in report["hours"]:
        totals = by_tag.setdefault(row["tag"], [0, 0])
        totals[0], totals[1] = totals[0] + row["messages"], totals[1] + row["body_bytes"]
        assert 0 <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"] < 60_000
    assert by_tag == {"a": [200, sum(n for n in range(300) if n % 3)], "": [100, sum(range(0, 300, 3))]}
    drawn = ElementTree.fromstring(picture.read_text())  # noqa: S314 - our own
    titles = [each.text or "" for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * len({row["hour"] for row in report["hours"]})
    assert sum(int(title.rpartition(": ")[2]) for title in titles[: len(titles) // 2]) == 300
    code, again, said = run(stats_job.main, cluster, capsys, "counted", "--picture", str(tmp_path / "nowhere" / "p.svg"))
    assert (code, again) == (1, report)
    assert "nowhere/p.svg" in said


def test_a_replay_sends_each_message_once_and_stops_where_it_was_to(
    spark: Any, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cluster, "again")
    ends = json.dumps({TOPIC: {"g0:0": 100, "g0:1": 50, "g0:2": 0}})
    arguments = (TOPIC, "--to", "again", "--checkpoint", str(tmp_path / "c"), "--ending-offsets", ends, "--tags", "odd")
    code, report, said = run(replay_job.main, cluster, capsys, *arguments, "--rate", "100")
    assert code == 0, said
    expected = {
        message.body: (f"{TOPIC}/g0:{message.queue_id}/{message.queue_offset}", message.keys, message.properties["n"])
        for message in messages_of(cluster, TOPIC)
        if message.tags == "odd" and message.queue_offset < {0: 100, 1: 50, 2: 0}[message.queue_id]
    }
    assert (code, report["sent"]) == (0, len(expected))
    code, report, _ = run(replay_job.main, cluster, capsys, *arguments)
    assert (code, report["sent"]) == (0, 0)
    sent = messages_of(cluster, "again")
    assert len(sent) == len(expected)
    assert {m.body: (m.properties["REPLAYED_FROM"], m.keys, m.properties["n"]) for m in sent} == expected


def test_a_replay_leaves_out_a_queue_that_was_added_after_its_first_run(
    spark: Any, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run would send what has come there meanwhile."""
    arguments = ("grows", "--to", "of-grows", "--checkpoint", str(tmp_path / "c"))
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        for topic in ("grows", "of-grows"):
            admin.create_topic(topic, queues=1)
        for number in range(10):
            producer.send(Message("grows", b"%d" % number))
        assert run(replay_job.main, cluster, capsys, *arguments)[1]["sent"] == 10
        admin.update_topic("grows", read_queues=2, write_queues=2)
        for number in range(10):
            producer.send(Message("grows", b"later"), queue_id=number % 2)
    code, report, said = run(replay_job.main, cluster, capsys, *arguments)
    assert (code, report.get("sent")) == (0, 0), said


def test_dead_letters_go_back_to_their_topic(spark: Any) -> None:
    rows = [(b"%d" % n, {"DLQ_ORIGIN_TOPIC": "back", "UNIQ_KEY": "x", "n": str(n)}) for n in range(20)]
    place = ("'%DLQ%g' AS topic", "0 AS queue_id", "CAST(0 AS BIGINT) AS queue_offset", "'g0' AS `group`", "'' AS keys", "'' AS tags")
    plain = spark.createDataFrame(rows, "body binary, properties map<string,string>").selectExpr("*", *place)
    sent = replay_job.rows_to_send(plain, "").collect()
    assert {(row.topic, row.properties["n"], "UNIQ_KEY" in row.properties) for row in sent} == {("back", str(n), False) for n in range(20)}


def test_the_command_line_fills_in_the_addresses(cluster: Cluster) -> None:
    report = json.loads(cluster.cli_ok("spark", "stats", TOPIC, "--json", timeout_s=LIMIT_S))
    assert sum(row["messages"] for row in report["hours"]) >= COUNT
    failed = cluster.cli("spark", "stats", timeout_s=LIMIT_S)
    assert failed.returncode == 2
    assert "TOPIC" in failed.stderr


@pytest.mark.parametrize(
    ("job", "arguments", "expected"),
    [
        (replay_job, ("orders", "--checkpoint", "/tmp/x"), "--to is missing"),
        (replay_job, ("--to", "x", "--checkpoint", "/tmp/x"), "expected either topics or --dead-letters"),
        (replay_job, ("orders", "--to", "orders", "--checkpoint", "/tmp/x"), "expected a topic other than the source"),
        (audit_job, (" , ",), "expected the names of topics"),
        (audit_job, ("orders", "--replicas", "n9"), "no replica n9; there are"),
        (stats_job, ("nowhere",), "topic nowhere does not exist"),
    ],
)
def test_mistakes_end_with_one_line(
    spark: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str], job: Any, arguments: tuple[str, ...], expected: str
) -> None:
    code, _, said = run(job.main, cluster, capsys, *arguments)
    assert code == 1
    assert expected in said
    assert said.startswith("dledger: ")
