"""A segment of a drill: some rounds with one workload process, whose history is judged when they are over.

Owns that memory and disk stay flat: topics of a segment are deleted after its audit, and its history is read once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger_cli.local.processes import import_path
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_drill.checkers.check import HistoryCheck
from dledger_drill.cluster.cluster import Cluster
from dledger_drill.history.reader import merge
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_drill.hosts.processes import MachineProcess
from dledger_drill.plan.model import RoundPlan
from dledger_drill.report.model import OutageSpan, RoundReport
from dledger_drill.report.terminal import Progress
from dledger_drill.run.observer import Observer
from dledger_drill.run.rounds import PROCESS, Round
from dledger_drill.run.timelines import RoundTimes, Timelines
from dledger_drill.workloads.control import LoadControl
from dledger_drill.workloads.spec import Command, LoadSpec
from dledger_wire.errors import DledgerError

RUNNING_S, HEALTHY_S, ACKNOWLEDGED_S, FINISH_S, EQUAL_S = 120.0, 90.0, 60.0, 240.0, 90.0
AFTER_S = 0.7  # of load after a round has become whole


@dataclass(slots=True)
class DrillState:
    """What lasts over all segments.  ``progress`` is called with what goes on."""

    cluster: Cluster
    check: HistoryCheck
    timelines: Timelines
    progress: Callable[[Progress], None]
    repeat: Callable[[RoundPlan], str]
    rounds: int | None


class NotRecoveredError(DledgerError):
    """The cluster did not become whole again after a round, or cannot be read although it says that it is."""


class Segment:
    """``run`` it once.  ``finished`` tells each round that is over."""

    def __init__(self, state: DrillState, spec: LoadSpec, plans: Iterator[RoundPlan], folder: Path) -> None:
        self._state, self._spec, self._plans, self.folder = state, spec, plans, folder
        self._doing, self._number = "", 0
        self._acknowledged: Counter[str] = Counter()
        self._probed: Counter[str] = Counter()
        self._pauses_ms: dict[str, float] = {}  # of the round, as its probes saw them
        self._leaders: Mapping[str, tuple[str, int]] = {}
        self._changed = threading.Condition()
        self._rounds: list[int] = []

    def run(self, finished: Callable[[RoundReport], None]) -> None:
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
                    self._rounds.append(plan.number)
                    finished(self._round(plan, load, observer, writer.write))
            except BaseException:
                self._state.cluster.start_stopped()
                with contextlib.suppress(DledgerError):  # what ended the rounds says more
                    self._end(load, own, writer)
                raise
            self._end(load, own, writer)

    def _end(self, load: LoadControl, own: Path, writer: HistoryWriter) -> None:
        """Read everything, compare the replicas, and judge."""
        audited = False
        try:
            self._say("reading everything that was written")
            with _not_recovered():
                load.finish(FINISH_S)
                audited = True
                if self._state.cluster.is_own:
                    self._compare(writer.write)
        finally:
            self._judge([own, *load.histories], writer, audited=audited)

    def _start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> MachineProcess:
        cluster, added = self._state.cluster, {**environment, **self._state.cluster.client_environment, **import_path()}
        cluster.workloads = process = MachineProcess(command, log=log, environment=added, namespace=cluster.client_namespace)
        return process

    def _round(self, plan: RoundPlan, load: LoadControl, observer: Observer, write: Callable[[Operation], None]) -> RoundReport:
        """What is known of it at once; the history is judged later."""
        load.tell(Command(round=plan.number))
        before = self._acknowledged.total()
        observer.round = self._number = plan.number
        self._pauses_ms = {}
        times = RoundTimes(plan, self._state.repeat(plan), time.monotonic_ns(), seen=dict(observer.leaders))
        self._state.timelines.rounds[plan.number] = times
        try:
            clients_paused = self._strike(plan, write)
            load.check()
            self._say("waiting for acknowledgements of every replica group")
            self._wait_acknowledged()
            time.sleep(AFTER_S)
        finally:
            times.end_ns = time.monotonic_ns()
            observer.sample_resources()
        outages = [] if clients_paused else [OutageSpan(group, 0.0, pause_ms / 1000) for group, pause_ms in self._pauses_ms.items()]
        leaders = times.seen.items()
        return RoundReport(
            number=plan.number,
            seed=plan.seed,
            faults=plan.names,
            repeat=times.repeat,
            duration_s=times.seconds(times.end_ns),
            acknowledged=self._acknowledged.total() - before,
            terms=max((observer.leaders[group][1] - term for group, (_, term) in leaders if group in observer.leaders), default=0),
            outages=outages,
        )

    def _strike(self, plan: RoundPlan, write: Callable[[Operation], None]) -> bool:
        """Whether clients stood still, so that their waits say nothing of the cluster."""
        round_ = Round(self._state.cluster, plan, write, self._say)
        round_.run()
        self._say("waiting until every node is healthy")
        with _not_recovered():
            self._state.cluster.wait_whole(HEALTHY_S)
        if round_.unfinished and len(plan.faults) == 1:
            raise NotRecoveredError(round_.unfinished[0])
        return round_.clients_paused

    def _wait_acknowledged(self) -> None:
        """Until every replica group has acknowledged its probe once more, or the checker's limit is over: then that says so."""
        deadline = time.monotonic() + ACKNOWLEDGED_S
        with self._changed:
            before = self._probed.copy()
            while any(self._probed[group] <= before[group] for group in self._state.cluster.groups):
                if not self._changed.wait(deadline - time.monotonic()):
                    return

    def _reported(self, report: dict[str, Any]) -> None:
        with self._changed:
            self._acknowledged.update(report["acknowledged"])
            self._probed.update(report["probed"])
            if report["round"] == self._number:
                self._pauses_ms = report["pause_ms"]
            self._changed.notify_all()
        self._tell()

    def _say(self, text: str) -> None:
        self._doing = text
        self._tell()

    def _tell(self) -> None:
        self._state.progress(Progress(self._number, self._state.rounds, self._doing, dict(self._leaders), dict(self._acknowledged)))

    def _compare(self, write: Callable[[Operation], None]) -> None:
        """The replicas, by the checksums that nodes give of their own files, once all have applied the same.

        The checker compares them.  What only nodes see, such as damage that one of them found, is reported as a checksum that differs.
        """
        self._say("comparing the replicas")
        cluster = self._state.cluster
        cluster.wait_equal(EQUAL_S)
        last = {node.id: node.last_index for group in cluster.group_statuses() for node in group.nodes}
        for found in cluster.wait(self._compared, EQUAL_S, lambda: "not every node tells the checksums of its files"):
            nodes = cluster.groups[found.replica_group]
            for node in nodes:
                checksums = {f"segment {start}": f"{crc:08x}" for start, crc in found.checksums.get(node, {}).items()}
                tells = not found.equal and (node not in found.checksums or node == nodes[-1])
                checksums["as nodes say"] = found.difference if tells else ""
                data = {"group": found.replica_group, "node": node, "last_index": last.get(node, 0), "checksums": checksums}
                at_ns = time.monotonic_ns()
                write(Operation(PROCESS, OperationKind.REPLICA, at_ns, at_ns, Outcome.OK, self._number, data))

    def _compared(self) -> list[ReplicaComparison]:
        """Empty while not every node answers."""
        found = self._state.cluster.admin.compare_replicas()
        complete = {each.replica_group for each in found} == set(self._state.cluster.groups) and not any(each.unreachable for each in found)
        return found if complete else []

    def _judge(self, files: Sequence[Path], writer: HistoryWriter, *, audited: bool) -> None:
        whole = False
        try:
            writer.flush()
            for operation in merge(files):
                self._state.check.take(operation)
                self._state.timelines.take(operation)
            whole = audited
        finally:
            if not whole:
                self._state.check.give_up(self._rounds)
            self._state.timelines.close_segment()


@contextlib.contextmanager
def _not_recovered() -> Iterator[None]:
    try:
        yield
    except DledgerError as error:
        raise NotRecoveredError(error.message) from error
