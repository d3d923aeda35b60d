"""The Spark workloads of a drill on a real cluster: what batch jobs and the stream were given is what is stored."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dledger_drill.history.records import OperationKind, Outcome
from dledger_drill.workloads.control import LoadControl
from dledger_drill.workloads.spark_process import HISTORY
from dledger_drill.workloads.spec import LoadSpec
from tests.cluster.harness import Cluster
from tests.drill.workload_rig import History, start_child
from tests.spark.conftest import environment
from tests.waiting import LIMIT_S, wait_until

WORKLOADS = ("keyed", "spark-batch", "spark-stream")


@pytest.fixture(scope="module")
def history(cluster: Cluster, module_folder: Path) -> History:
    spec = LoadSpec(cluster.bootstrap, ("g0",), WORKLOADS, rates={"spark-batch": 0.5})
    load = LoadControl(module_folder / "history", spec, start_child, environment=environment(module_folder))
    spark_file = load.folder / HISTORY
    try:
        load.wait_running(LIMIT_S)
        for _ in range(2):  # while messages come in, then again
            wait_until(partial(has_grown, spark_file, size(spark_file)), "operations of Spark")
        load.finish(LIMIT_S)
    finally:
        load.close()
    return History(load)


@pytest.mark.parametrize("job", ["batch", "stream"])
def test_a_job_was_given_every_message_once_where_it_is_stored(history: History, job: str) -> None:
    assert places(history, OperationKind.SPARK, job=job) == places(history, OperationKind.STORED, topic="drill-keyed")
    assert len({each.invoked_ns for each in history.of(OperationKind.SPARK, job=job)}) >= 2


def places(history: History, kind: OperationKind, **data: str) -> list[tuple[int, int, str]]:
    return sorted(
        (int(each.data["queue"]), int(each.data["first_offset"]) + at, str(value))
        for each in history.of(kind, Outcome.OK, **data)
        for at, value in enumerate(each.data["values"])
    )


def has_grown(path: Path, before: int) -> bool:
    return size(path) > before


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
