"""The course of a drill: a cluster is started, rounds are run in segments, and what was found becomes a report."""

from __future__ import annotations

import itertools
import logging
import os
import platform
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from dledger_drill.checkers.check import HistoryCheck, Limits
from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.cluster.cluster import Cluster
from dledger_drill.faults.catalogue import CATALOGUE, LEADING, impossible
from dledger_drill.plan.draw import draw_round
from dledger_drill.plan.model import DrillOptions, Need, RoundPlan
from dledger_drill.report.model import MachineInfo, Report
from dledger_drill.report.terminal import Progress, Shown
from dledger_drill.run.segments import DrillState, NotRecoveredError, Segment
from dledger_drill.run.timelines import Timelines, round_reports, violation_text
from dledger_drill.workloads.spec import LoadSpec
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.version import installed_version

ROUNDS_A_SEGMENT = 25
VALUES_A_SEGMENT = 10_000_000
_logger = logging.getLogger(__name__)


class Drill:
    """One drill.  ``run`` returns its report, also when it was interrupted (``interrupted`` of the report) or a round failed.

    Args:
        folder: For histories, and whatever ``make`` puts there.
        missing: What faults need and is not there, and why.
        make: Makes the cluster, which is closed when the drill is over.
        command: What repeats the drill, or the round of a number alone.
    """

    def __init__(
        self,
        options: DrillOptions,
        folder: Path,
        command: Callable[[int | None], str],
        shown: Shown,
        make: Callable[[], Cluster],
        missing: Mapping[Need, str],
    ) -> None:
        self._options, self._folder, self._command, self._shown = options, folder, command, shown
        self._make = make
        self._impossible = impossible(options.faults, missing)
        self._faults = {name: CATALOGUE[name].hold_s for name in options.faults}
        if len(self._impossible) == len(self._faults):
            name, why = next(iter(self._impossible.items()), ("", "no fault was named"))
            raise InvalidArgumentError(f"none of these faults is possible here: {name}: {why}")
        self._timelines, self._check = Timelines(), HistoryCheck(Limits())
        self._prefix = f"drill-{secrets.token_hex(3)}"  # a cluster in use may have topics of an earlier drill
        self._problems: list[Violation] = []
        self._shape: dict[str, str] = {}

    def run(self) -> Report:
        began_s, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        interrupted, problem = False, ""
        try:
            with self._make() as cluster:
                self._shown.progress(Progress(doing="starting the cluster"))
                cluster.start_all()
                self._take_shape(cluster)
                self._segments(cluster)
        except KeyboardInterrupt:
            interrupted = True
        except (DledgerError, OSError) as error:
            problem = f"the drill could not go on: {error}"
        except Exception as error:
            _logger.exception("the drill ended")
            problem = f"the drill could not go on: {type(error).__name__}: {error} (a fault of the drill itself)"
        report = self._report(began_s, started)
        report.interrupted, report.problem = interrupted, problem
        return report

    def _take_shape(self, cluster: Cluster) -> None:
        """What the cluster is, for the report."""
        shape = {group: " ".join(nodes) for group, nodes in cluster.groups.items()}
        self._shape = {"replica groups": ", ".join(f"{group}: {nodes}" for group, nodes in shape.items()), **cluster.described}

    def _segments(self, cluster: Cluster) -> None:
        state = DrillState(cluster, self._check, self._timelines, self._shown.progress, self._repeat, self._options.rounds)
        plans = self._plans(list(cluster.groups))
        for number in itertools.count():
            first = next(plans, None)
            if first is None:
                return
            own = itertools.chain([first], itertools.islice(plans, ROUNDS_A_SEGMENT - 1))
            spec = LoadSpec(
                bootstrap=cluster.bootstrap,
                groups=tuple(cluster.groups),
                workloads=self._options.workloads,
                prefix=f"{self._prefix}-{number}",
                seed=self._options.seed,
                first_number=number * VALUES_A_SEGMENT,
                ca=cluster.ca,
                delete_topics=True,
            )
            try:
                Segment(state, spec, own, self._folder / f"segment-{number}").run(self._shown.round_over)
            except NotRecoveredError as error:
                at = max(self._timelines.rounds, default=0)
                self._problems.append(Violation(ViolationKind.NOT_RECOVERED, at, error.message))
                return
            broken = {each.round for each in self._check.verdict.violations}
            self._shown.judged(len(self._timelines.rounds), len(broken))

    def _plans(self, groups: Sequence[str]) -> Iterator[RoundPlan]:
        options = self._options
        deadline_s = time.monotonic() + options.duration_s if options.duration_s is not None else None
        numbers = [options.only_round] if options.only_round is not None else itertools.count(1)
        drawn = (draw_round(options, self._faults, LEADING, groups, number) for number in numbers)
        # A round has its number on every machine: those with a fault that is not possible here are left out.
        possible = (plan for plan in drawn if not self._impossible.keys() & set(plan.names) or options.only_round is not None)
        for count, plan in enumerate(possible):
            if (options.rounds is not None and count >= options.rounds) or (deadline_s is not None and time.monotonic() >= deadline_s):
                return
            if missing := sorted(self._impossible.keys() & set(plan.names)):
                raise InvalidArgumentError(f"round {plan.number} is not possible here: {missing[0]}: {self._impossible[missing[0]]}")
            yield plan

    def _repeat(self, plan: RoundPlan) -> str:
        return self._command(plan.number)

    def _report(self, began_s: float, started: str) -> Report:
        verdict = self._check.finish()
        verdict.violations += self._problems
        rounds = [self._timelines.rounds[number] for number in sorted(self._timelines.rounds)]
        known = {each.plan.number for each in rounds}
        options = self._options
        return Report(
            version=installed_version(),
            command=self._command(None),
            seed=options.seed,
            started=started,
            duration_s=time.monotonic() - began_s,
            machine=machine_info(),
            settings=self._shape | {"workloads": ", ".join(options.workloads)},
            wanted=list(options.faults),
            described={name: CATALOGUE[name].help for name in options.faults},
            impossible=self._impossible,
            workloads=_by_outcome(verdict.counts),
            rounds=round_reports(rounds, verdict),
            violations=[violation_text(each) for each in verdict.violations if each.round not in known],
        )


def _by_outcome(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for name, count in sorted(counts.items()):
        kind, _, outcome = name.rpartition(" ")
        found[kind][outcome] = count
    return dict(found)


def machine_info() -> MachineInfo:
    return MachineInfo(
        cpu=_cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
