"""A segment of a drill: some rounds with one workload process, whose history is judged when they are over.

Owns that memory and disk stay flat: topics of a segment are deleted after its audit, and its history is read once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger_drill.checkers.check import HistoryCheck
from dledger_drill.cluster.private import PrivateCluster
from dledger_drill.history.reader import merge
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_drill.hosts.processes import ChildProcess
from dledger_drill.plan.model import RoundPlan
from dledger_drill.report.terminal import Progress
from dledger_drill.run.observer import Observer
from dledger_drill.run.rounds import PROCESS, Round
from dledger_drill.run.timelines import RoundTimes, Timelines
from dledger_drill.workloads.commands import Command
from dledger_drill.workloads.control import LoadControl
from dledger_drill.workloads.spec import LoadSpec

RUNNING_S, ACKNOWLEDGED_S, FINISH_S, EQUAL_S = 120.0, 60.0, 240.0, 90.0
AFTER_S = 0.7  # of load after a round has become whole


@dataclass(slots=True)
class DrillState:
    """What lasts over all segments.  ``progress`` is called with what goes on."""

    cluster: PrivateCluster
    check: HistoryCheck
    timelines: Timelines
    progress: Callable[[Progress], None]
    repeat: Callable[[RoundPlan], str]
    rounds: int | None


class Segment:
    """``run`` it once.  ``finished`` tells each round that is over."""

    def __init__(self, state: DrillState, spec: LoadSpec, plans: Iterator[RoundPlan], folder: Path) -> None:
        self._state, self._spec, self._plans, self.folder = state, spec, plans, folder
        self._doing, self._number = "", 0
        self._acknowledged: dict[str, int] = {}
        self._leaders: Mapping[str, tuple[str, int]] = {}
        self._changed = threading.Condition()

    def run(self, finished: Callable[[RoundPlan], None]) -> None:
        """Its rounds, the audit, and the judgement.  What was run is judged also when a round fails or is interrupted."""
        self.folder.mkdir(parents=True)
        own = self.folder / "drill.jsonl.gz"
        with contextlib.ExitStack() as stack:
            writer = HistoryWriter(own)
            stack.callback(writer.close)
            load = LoadControl(self.folder / "load", self._spec, self._start, on_report=self._reported)
            stack.callback(load.close)
            observer = Observer(self._state.cluster, writer.write)
            stack.callback(observer.close)
            self._leaders = observer.leaders
            self._say("starting the workloads")
            load.wait_running(RUNNING_S)
            try:
                for plan in self._plans:
                    self._round(plan, load, observer, writer.write)
                    finished(plan)
            finally:
                with contextlib.ExitStack() as judged:
                    judged.callback(self._judge, [own, *load.histories], writer)
                    self._say("reading everything that was written")
                    load.finish(FINISH_S)
                    self._compare(writer.write)

    def _start(self, command: Sequence[str], log: Path, environment: Any) -> ChildProcess:
        return ChildProcess(command, log=log, environment=environment, namespace=self._state.cluster.client_namespace)

    def _round(self, plan: RoundPlan, load: LoadControl, observer: Observer, write: Callable[[Operation], None]) -> None:
        load.tell(Command(round=plan.number))
        observer.round = self._number = plan.number
        times = RoundTimes(plan, self._state.repeat(plan), time.monotonic_ns(), seen=dict(observer.leaders))
        self._state.timelines.rounds[plan.number] = times
        try:
            Round(self._state.cluster, plan, write, self._say).run()
            self._say("waiting for acknowledgements of every replica group")
            self._wait_acknowledged()
            time.sleep(AFTER_S)
        finally:
            times.end_ns = time.monotonic_ns()
            observer.sample_resources()

    def _wait_acknowledged(self) -> None:
        """Until every replica group has acknowledged something more, or the checker's limit is over: then that says so."""
        deadline = time.monotonic() + ACKNOWLEDGED_S
        with self._changed:
            before = dict(self._acknowledged)
            while any(self._acknowledged.get(group, 0) <= before.get(group, 0) for group in self._state.cluster.groups):
                if not self._changed.wait(deadline - time.monotonic()):
                    return

    def _reported(self, report: dict[str, Any]) -> None:
        with self._changed:
            self._acknowledged = dict(report.get("acknowledged", {}))
            self._changed.notify_all()
        self._tell()

    def _say(self, text: str) -> None:
        self._doing = text
        self._tell()

    def _tell(self) -> None:
        self._state.progress(Progress(self._number, self._state.rounds, self._doing, dict(self._leaders), self._acknowledged))

    def _compare(self, write: Callable[[Operation], None]) -> None:
        """The replicas, by the checksums that nodes give of their own files, once all have applied the same."""
        self._say("comparing the replicas")
        cluster = self._state.cluster
        cluster.wait_equal(EQUAL_S)
        last = {node.id: node.last_index for group in cluster.statuses() for node in group.nodes}
        for found in cluster.admin.compare_replicas():
            for number, node in enumerate(found.replicas):
                # They were compared by the admin: what differs is told once, at the last replica.
                differs = found.difference if number == len(found.replicas) - 1 else ""
                data = {"group": found.replica_group, "node": node, "last_index": last.get(node, 0), "checksums": {"log": differs}}
                at_ns = time.monotonic_ns()
                write(Operation(PROCESS, OperationKind.REPLICA, at_ns, at_ns, Outcome.OK, self._number, data))

    def _judge(self, files: Sequence[Path], writer: HistoryWriter) -> None:
        writer.flush()
        for operation in merge(files):
            self._state.check.take(operation)
            self._state.timelines.take(operation)
        self._state.timelines.close_segment()
