"""One round on a running cluster: the faults are struck, held and taken back, and the cluster becomes whole again.

Owns the times of its faults in the history, and that whatever was struck is taken back, also when the round fails or is interrupted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from dledger_drill.cluster.cluster import Cluster
from dledger_drill.faults.base import Strike
from dledger_drill.faults.catalogue import CATALOGUE
from dledger_drill.history.records import ALL, Operation, OperationKind, Outcome
from dledger_drill.plan.model import FaultChoice, RoundPlan
from dledger_wire.errors import DledgerError

HEALTHY_S = 90.0
PROCESS = "drill"


@dataclass(slots=True)
class _Struck:
    choice: FaultChoice
    strike: Strike
    began_ns: int
    until_s: float  # on the clock of the round


class Round:
    """``say`` is told what goes on, ``write`` gets the faults as operations."""

    def __init__(self, cluster: Cluster, plan: RoundPlan, write: Callable[[Operation], None], say: Callable[[str], None]) -> None:
        self._cluster, self._plan, self._write, self._say = cluster, plan, write, say
        self._struck: list[_Struck] = []

    def run(self) -> None:
        """DeadlineExceededError when the cluster does not become whole again."""
        began_s = time.monotonic()
        try:
            for choice in self._plan.faults:
                self._wait_until(began_s + choice.after_s)
                self._strike(choice)
            while self._struck:
                first = min(self._struck, key=lambda each: each.until_s)
                self._wait_until(first.until_s)
                self._heal(first)
        finally:
            for each in list(self._struck):
                self._heal(each)
        self._say("waiting until every node is healthy")
        self._cluster.wait_healthy(HEALTHY_S)

    def _strike(self, choice: FaultChoice) -> None:
        self._say(f"{choice.name} in {choice.group}")
        began_ns = time.monotonic_ns()
        try:
            strike = CATALOGUE[choice.name].strike(self._cluster, choice, random.Random(choice.seed))
        except (DledgerError, OSError) as error:  # such as: the other fault of the round left no leader to strike
            self._note(choice, began_ns, Outcome.FAILED, Strike([], lambda: None, str(error)))
            return
        self._struck.append(_Struck(choice, strike, began_ns, time.monotonic() + choice.hold_s))
        self._say(f"{choice.name} {' '.join(strike.nodes)} {strike.note}".rstrip())

    def _heal(self, struck: _Struck) -> None:
        struck.strike.heal()
        self._struck.remove(struck)
        self._note(struck.choice, struck.began_ns, Outcome.OK, struck.strike)

    def _note(self, choice: FaultChoice, began_ns: int, outcome: Outcome, strike: Strike) -> None:
        data = {"name": choice.name, "group": choice.group, "nodes": strike.nodes, "note": strike.note}
        ended_ns, number = time.monotonic_ns(), self._plan.number
        self._write(Operation(PROCESS, OperationKind.FAULT, began_ns, ended_ns, outcome, number, data))
        if strike.pauses_clients:
            self._write(Operation(PROCESS, OperationKind.PAUSE, began_ns, ended_ns, outcome, number, {"processes": [ALL]}))

    def _wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.monotonic()))
