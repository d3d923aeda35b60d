"""The workload process against a real cluster of two replica groups, one of which loses its leader: what its history holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin
from dledger_drill.checkers.check import check_all
from dledger_drill.checkers.model import Limits
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.workloads.control import LoadControl
from dledger_drill.workloads.spec import Command, LoadSpec
from dledger_wire.errors import DledgerError
from tests.drill.workload_rig import History, start_child
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cluster

SETTINGS = {"broker": {"transactionTimeOut": "1s", "transactionCheckInterval": "1s"}}
GROUPS = ("g0", "g1")
SENT = ("probe", "plain", "keyed", "idempotent")
REPORTS = 32  # of load in each half, a quarter of a second each


class Run(NamedTuple):
    load: LoadControl
    history: History
    killed_ns: int
    """When the leader of g0 was gone, by the clock of the history."""


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[PrivateCluster]:
    with PrivateCluster(module_folder / "cluster", groups=len(GROUPS), settings=SETTINGS) as made:
        made.start(timeout_s=LIMIT_S)
        yield made


def go_on(load: LoadControl, reports: int) -> None:
    """Until so many more reports are there in which each replica group acknowledged something."""
    seen = 0

    def enough(report: dict[str, object]) -> bool:
        nonlocal seen
        acknowledged = report["acknowledged"]
        seen += isinstance(acknowledged, dict) and set(GROUPS) <= set(acknowledged)
        return seen >= reports

    load.wait_for(enough, f"{reports} reports with acknowledgements of {GROUPS}", LIMIT_S)


@pytest.fixture(scope="module")
def run(cluster: PrivateCluster, module_folder: Path) -> Run:
    """All workloads but Spark; a leader is killed under them."""
    spec = LoadSpec(cluster.bootstrap, GROUPS, rates={"admin": 5.0, "transactional": 10.0}, seed=7, delete_topics=True)
    load = LoadControl(module_folder / "load", spec, start_child)
    try:
        load.wait_running(LIMIT_S)
        load.tell(Command(round=1))
        go_on(load, REPORTS)
        leader = cluster.leader()
        cluster.kill(leader)
        killed_ns = time.monotonic_ns()
        go_on(load, REPORTS)
        cluster.start(leader, timeout_s=LIMIT_S)
        load.tell(Command(round=2))
        go_on(load, 8)
        audited = load.finish(LIMIT_S)
    finally:
        load.close()
    assert audited["left"] == []
    return Run(load, History(load), killed_ns)


def test_what_was_acknowledged_is_stored_once_where_it_was_said_to_be(run: Run) -> None:
    load, history, _ = run
    for workload in SENT:
        topic = load.spec.topic(workload)
        stored = history.stored(topic)
        assert len(stored) == len(set(stored))
        places = {
            (each.data["group"], each.data["queue"], each.data["first_offset"] + at): value
            for each in history.of(OperationKind.STORED, topic=topic)
            for at, value in enumerate(each.data["values"])
        }
        sends = history.of(OperationKind.SEND, topic=topic)
        assert len(sends) > 50
        assert {send.data["group"] for send in sends} == set(GROUPS)
        for send in sends:
            assert places[send.data["group"], send.data["queue"], send.data["offset"]] == send.data["value"]


def test_every_process_numbers_its_values_and_says_in_which_round(run: Run) -> None:
    history = run.history
    sends = [each for kind in ("send", "delayed", "transaction") for each in history.of(OperationKind(kind), None)]
    values = [send.data["value"] for send in sends]
    assert len(values) == len(set(values))
    assert all(value.startswith(f"{send.process}/") for value, send in zip(values, sends, strict=True))
    assert {send.round for send in sends} == {0, 1, 2}


def test_consumers_were_given_everything_acknowledged(run: Run) -> None:
    load, history, _ = run
    for mode, workloads in (("concurrent", SENT[1:]), ("orderly", SENT[2:])):
        for workload in workloads:
            topic = load.spec.topic(workload)
            given = history.values(OperationKind.DELIVER, topic=topic, mode=mode, consumer_group=load.spec.topic(mode))
            assert history.values(OperationKind.SEND, topic=topic) <= given
    members = {each.data["member"] for each in history.of(OperationKind.DELIVER, mode="orderly")}
    assert members == {"orderly-0", "orderly-1"}
    subscribed = {(each.data["name"], each.data["topic"]) for each in history.of(OperationKind.ADMIN, action="subscribe")}
    assert (load.spec.topic("orderly"), load.spec.topic("keyed")) in subscribed


def test_delayed_messages_come_after_their_time(run: Run) -> None:
    load, history, _ = run
    sent = {each.data["value"]: earliest_ms(each) for each in history.of(OperationKind.DELAYED)}
    assert len(sent) > 20
    delivered = {each.data["value"]: each.data["wall_ms"] for each in history.of(OperationKind.DELIVER, topic=load.spec.topic("delayed"))}
    assert set(sent) <= set(delivered)
    assert all(delivered[value] >= at_ms for value, at_ms in sent.items())


def earliest_ms(sent: Operation) -> float:
    limits = Limits()
    return float(sent.data["deliver_at_ms"]) - (limits.level_early_ms if "level" in sent.data else limits.delay_early_ms)


def test_transactions_have_all_ends(run: Run) -> None:
    load, history, _ = run
    ended = history.of(OperationKind.TRANSACTION, None)
    assert {(each.data["end"], each.data["by"]) for each in ended if each.outcome is Outcome.OK} >= {
        ("commit", "client"),
        ("rollback", "client"),
        ("commit", "check"),
    }
    stored = history.stored(load.spec.topic("transactional"))
    committed = {each.data["value"] for each in ended if each.data["end"] == "commit"}
    assert history.values(OperationKind.TRANSACTION, end="commit") <= set(stored) <= committed
    assert len(stored) == len(set(stored))


def test_reads_and_offsets_are_recorded(run: Run) -> None:
    history = run.history
    for mode in ("linearizable", "follower"):
        reads = history.of(OperationKind.READ, mode=mode)
        assert len([each for each in reads if each.data["values"]]) > 10
        assert all(each.data["end_offset"] - each.data["from_offset"] == len(each.data["values"]) for each in reads)
    commits = history.of(OperationKind.COMMIT_OFFSET)
    assert len(commits) > 5
    assert len(history.of(OperationKind.FETCH_OFFSET)) >= len(commits)
    actions = {each.data["action"] for each in history.of(OperationKind.ADMIN) if each.process == "admin-0"}
    assert actions == {"create_topic", "alter_topic", "describe_topic", "delete_topic"}


def test_the_killed_leader_shows_in_its_probe_and_topics_are_deleted_at_the_end(run: Run) -> None:
    load, history, killed_ns = run
    acknowledged = sorted(each.returned_ns or 0 for each in history.of(OperationKind.SEND, topic=load.spec.topic("probe"), group="g0"))
    pauses = [after - before for before, after in pairwise(acknowledged)]
    of_the_kill = next(after - before for before, after in pairwise(acknowledged) if after > killed_ns)
    assert of_the_kill > statistics.median(pauses)
    deleted = {each.data["name"] for each in history.of(OperationKind.ADMIN, action="delete_topic")}
    assert {load.spec.topic(name) for name in SENT} <= deleted


def test_it_ends_when_its_commands_are_closed_and_its_history_can_be_read(cluster: PrivateCluster, tmp_path: Path) -> None:
    load = LoadControl(tmp_path / "load", LoadSpec(cluster.bootstrap, GROUPS, workloads=("plain",), prefix="closed"), start_child)
    try:
        load.wait_running(LIMIT_S)
        go_on(load, 8)
    finally:
        load.close()
    with pytest.raises(DledgerError, match="status 1"):
        load.wait_for(lambda report: report["state"] == "done", "the end", LIMIT_S)
    assert not Path(f"/proc/{load.pid}").exists()
    assert len(History(load).of(OperationKind.SEND)) > 10


def test_a_load_that_fails_leaves_no_topics(cluster: PrivateCluster, tmp_path: Path) -> None:
    spec = LoadSpec(cluster.bootstrap, GROUPS, workloads=("plain", "keyed"), prefix="fails", delete_topics=True)
    load = LoadControl(tmp_path / "load", spec, start_child)
    with Admin(cluster.bootstrap) as admin:
        try:
            load.wait_running(LIMIT_S)
            go_on(load, 3)
            admin.delete_topic(spec.topic("plain"))  # so that it cannot be audited
            with pytest.raises(DledgerError, match="the load ended"):
                load.finish(LIMIT_S)
        finally:
            load.close()
        assert [found.topic for found in admin.list_topics() if "fails" in found.topic] == []


def test_a_load_that_cannot_start_says_why(tmp_path: Path) -> None:
    load = LoadControl(tmp_path / "load", LoadSpec("127.0.0.1:1", GROUPS), start_child)
    try:
        with pytest.raises(DledgerError, match="the load ended"):
            load.wait_running(LIMIT_S)
    finally:
        load.close()


def test_the_checkers_find_no_broken_promise(run: Run) -> None:
    history = run.history
    assert check_all(history.operations).violations == []
