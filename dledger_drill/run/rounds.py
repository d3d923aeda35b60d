"""One round on a running cluster: the faults are struck, held and taken back, and the cluster becomes whole again.

Owns a thread for each fault, so that one which takes long holds none up; their times in the history; and that whatever was struck is taken
back, also when the round fails or is interrupted.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from dledger_drill.cluster.cluster import Cluster
from dledger_drill.faults.base import Strike
from dledger_drill.faults.catalogue import CATALOGUE
from dledger_drill.history.records import ALL, Operation, OperationKind, Outcome
from dledger_drill.plan.model import FaultChoice, RoundPlan
from dledger_wire.errors import DeadlineExceededError, DledgerError

PROCESS = "drill"


class Round:
    """``say`` gets what goes on, ``write`` gets the faults as operations.

    ``unfinished``: operations such as a rolling restart that began and did not come to their end; ``clients_paused``: the load stood still.
    """

    def __init__(self, cluster: Cluster, plan: RoundPlan, write: Callable[[Operation], None], say: Callable[[str], None]) -> None:
        self._cluster, self._plan, self._write, self._say = cluster, plan, write, say
        self._over = threading.Event()
        self.unfinished: list[str] = []
        self.clients_paused = False

    def run(self) -> None:
        """DledgerError when a fault cannot be taken back."""
        began_s, interrupted = time.monotonic(), self._cluster.interrupted
        try:
            with ThreadPoolExecutor(len(self._plan.faults), thread_name_prefix="fault") as faults:
                running = [faults.submit(self._carry_out, choice, began_s + choice.after_s) for choice in self._plan.faults]
                try:
                    wait(running)
                except BaseException:
                    interrupted.set()
                    raise
                finally:
                    self._over.set()
        finally:
            interrupted.clear()
        for each in running:
            each.result()
        self._cluster.machines.start_excused()

    def _carry_out(self, choice: FaultChoice, at_s: float) -> None:
        if self._over.wait(max(0.0, at_s - time.monotonic())):
            self._note(choice, time.monotonic_ns(), Outcome.FAILED, Strike([], lambda: None, "the drill was ended before"))
            return
        fault, began_ns = CATALOGUE[choice.name], time.monotonic_ns()
        self._say(f"{choice.name} in {choice.group}")
        try:
            strike = fault.strike(self._cluster, choice, random.Random(choice.seed))
        except (DledgerError, OSError) as error:  # such as: the other fault of the round left no leader to strike
            self._note(choice, began_ns, Outcome.FAILED, Strike([], lambda: None, str(error)))
            if fault.takes_long and isinstance(error, DeadlineExceededError):
                self.unfinished.append(f"{choice.name} did not come to its end: {error.message}")
            return
        try:
            self._say(f"{choice.name} {' '.join(strike.nodes)} {strike.note}".rstrip())
            self._over.wait(choice.hold_s)
            without_effect = strike.without_effect()
        finally:
            strike.heal()
        if without_effect:
            strike.note = f"{strike.note}: {without_effect}"
        self._note(choice, began_ns, Outcome.FAILED if without_effect else Outcome.OK, strike)

    def _note(self, choice: FaultChoice, began_ns: int, outcome: Outcome, strike: Strike) -> None:
        data = {"name": choice.name, "group": choice.group, "nodes": strike.nodes, "note": strike.note}
        ended_ns, number = time.monotonic_ns(), self._plan.number
        self._write(Operation(PROCESS, OperationKind.FAULT, began_ns, ended_ns, outcome, number, data))
        if strike.pauses_clients:
            self.clients_paused = True
            self._write(Operation(PROCESS, OperationKind.PAUSE, began_ns, ended_ns, outcome, number, {"processes": [ALL]}))
