"""Clients of simulated cores: they issue operations one after the other and know only what they are told.

Owns the histories and their verdict: W1, W2, W4 and W5 of the checkers, over one replicated state machine.
"""

from __future__ import annotations

import random
from math import inf
from typing import Any

from dledger.core.types import NodeId
from tests.checkers import register
from tests.checkers.append_log import Anomaly, Append, AppendId, LogHistory, Outcome, Poll, check
from tests.checkers.queues import ConditionalAppend, check_conditional_appends, check_total_queue
from tests.sim.core.machine import Machine, Operation
from tests.sim.core.recovery import worth
from tests.sim.core.world import World

KEYS = ("a", "b")
MOST_REGISTER_OPERATIONS = 90  # a key's history beyond that is not searched to its end in reasonable time
SEARCH_BUDGET = 20_000


class Clients:
    """``done`` once everything issued was answered or given up."""

    def __init__(self, world: World, seed: str) -> None:
        self._world = world
        self._random = random.Random(f"{seed} clients")
        self._open: dict[int, Operation] = {}
        self._guess: dict[str, NodeId] = {}  # where a client believes the leader to be
        self._polled: dict[str, int] = {}
        self._chain_end = 0
        self._registers: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.stopped = False
        world.answered = self._answered
        for number in range(world.settings.clients):
            world.after(self._random.random() * 50, self._issue, f"c{number}")

    @property
    def done(self) -> bool:
        return self.stopped and not self._open

    @property
    def acknowledged(self) -> int:
        """By any group there was."""
        return sum(operation.outcome is Outcome.ACKED for operation in self._world.operations)

    # Issuing

    def _issue(self, client: str) -> None:
        if self.stopped:
            return
        world, draw = self._world, self._random
        operation = self._next(client)
        world.operations.append(operation)
        self._open[operation.number] = operation
        node = world.nodes[self._target(client, operation)]
        world.after(world.settings.delay_ms, world.submit, node, operation)
        world.after(world.settings.timeout_ms * (0.5 + draw.random()), self._give_up, operation)

    def _next(self, client: str) -> Operation:
        world, draw = self._world, self._random
        kind = draw.choice(world.settings.kinds)
        operation = Operation(len(world.operations), client, kind, invoked_ms=world.now_ms)
        if kind in ("write", "cas", "read"):
            key = operation.key = draw.choice(KEYS)
            if self._registers[key] >= MOST_REGISTER_OPERATIONS:
                operation.kind = "append"
                return operation
            self._registers[key] += 1
            operation.value = draw.randrange(5)
            operation.expected = draw.randrange(5)
        elif kind == "append-if":
            operation.expected = self._chain_end + draw.choice((0, 0, 0, 1))
        elif kind == "poll":
            operation.value = self._polled.get(client, 0)
        return operation

    def _target(self, client: str, operation: Operation) -> NodeId:
        """Reads go anywhere, everything else to whom the client takes for the leader."""
        names = list(self._world.nodes)
        if operation.kind in ("read", "poll") and self._random.random() < 0.6:
            return self._random.choice(names)
        return self._guess.get(client) or self._random.choice(names)

    # Answers

    def _answered(self, operation: Operation, result: tuple[bool, Any] | None) -> None:
        if self._open.pop(operation.number, None) is None:
            return  # given up before
        operation.returned_ms = self._world.now_ms
        if result is None:
            operation.outcome = Outcome.FAILED
            self._look_for_the_leader(operation.client)
        else:
            operation.outcome = Outcome.ACKED
            operation.took, operation.result = result
            if operation.kind == "poll" and operation.result:
                self._polled[operation.client] = operation.result[-1][0] + 1
            elif operation.kind == "append-if":
                self._chain_end = max(self._chain_end, operation.result + operation.took)
        self._world.after(self._random.random() * 2 * self._world.settings.think_ms, self._issue, operation.client)

    def _give_up(self, operation: Operation) -> None:
        if self._open.pop(operation.number, None) is not None:
            self._look_for_the_leader(operation.client)
            self._world.after(0.0, self._issue, operation.client)

    def _look_for_the_leader(self, client: str) -> None:
        """Some node's opinion."""
        world = self._world
        up = [node for node in world.nodes.values() if node.up and not node.paused]
        opinion = self._random.choice(up).core.leader if up else None
        self._guess[client] = opinion or self._random.choice(list(world.nodes))

    # The verdict

    def anomalies(self, drained: dict[NodeId, Machine]) -> list[Anomaly]:
        """``drained``: the final state of every member."""
        kinds = set(self._world.settings.kinds)
        found: list[Anomaly] = []
        reference = next(iter(drained.values()))
        found += [Anomaly("states differ", name) for name, machine in drained.items() if machine.state() != reference.state()]
        found += check(self._log_history(drained))
        if "enqueue" in kinds:
            found += self._check_queue(reference)
        if "write" in kinds:
            found += self._check_registers()
        if "append-if" in kinds:
            chain = [str(number) for number in reference.chain]
            found += check_conditional_appends([self._conditional(each) for each in self._of("append-if")], chain)
        return found

    def _of(self, *kinds: str) -> list[Operation]:
        return [worth(self._world, operation) for operation in self._world.operations if operation.kind in kinds]

    def _log_history(self, drained: dict[NodeId, Machine]) -> LogHistory:
        history = LogHistory(ordered_producers=False)
        for each in self._of("append"):
            offset = each.result if each.outcome is Outcome.ACKED else -1
            history.appends.append(Append(self._id(each.number), each.invoked_ms, each.returned_ms, each.outcome, offset))
        groups: dict[str, list[str]] = {}  # that each client has polled, one after the other: in each it is another consumer
        for each in self._of("poll"):
            if each.outcome is Outcome.ACKED:
                polled = groups.setdefault(each.client, [each.lineage])
                polled += [each.lineage] if polled[-1] != each.lineage else []
                messages = tuple((offset, self._id(number)) for offset, number in each.result)
                history.polls.append(Poll(f"{each.client}/{len(polled)}", "any", each.returned_ms, messages))
        for name, machine in drained.items():
            history.drained[name] = [(offset, self._id(number)) for offset, number in enumerate(machine.log)]
        return history

    def _id(self, number: int) -> AppendId:
        return AppendId(self._world.operations[number].client, number)

    def _check_queue(self, final: Machine) -> list[Anomaly]:
        tried = [each.number for each in self._of("enqueue") if each.outcome is not Outcome.FAILED]
        acked = [each.number for each in self._of("enqueue") if each.outcome is Outcome.ACKED]
        answers = [each.result for each in self._of("dequeue") if each.outcome is Outcome.ACKED and each.result is not None]
        found = check_total_queue(tried, acked, [*final.dequeued, *final.queue], duplicates_allowed=False)
        found += [Anomaly("invented", f"{value} was handed out and never taken out") for value in answers if value not in final.dequeued]
        return found + [Anomaly("handed out twice", str(value)) for value in set(answers) if answers.count(value) > 1]

    def _check_registers(self) -> list[Anomaly]:
        history = [
            register.Operation(
                each.key,
                each.kind,  # type: ignore[arg-type]
                each.result if each.kind == "read" else each.value,
                each.invoked_ms,
                each.returned_ms if each.outcome is Outcome.ACKED else inf,
                each.expected,
                each.took,
            )
            for each in self._of("write", "cas", "read")
            if each.outcome is Outcome.ACKED or (each.outcome is Outcome.UNKNOWN and each.kind != "read")
        ]
        if register.check_registers(history, budget=SEARCH_BUDGET) is register.Verdict.NOT_LINEARIZABLE:
            return [Anomaly("not linearizable", f"registers of {len(history)} operations")]
        return []

    @staticmethod
    def _conditional(each: Operation) -> ConditionalAppend:
        took = each.outcome is Outcome.ACKED and each.took
        outcome = Outcome.UNKNOWN if each.outcome is Outcome.UNKNOWN else Outcome.ACKED if took else Outcome.FAILED
        seen_end = each.result if each.outcome is Outcome.ACKED and not each.took else -1
        return ConditionalAppend(str(each.number), each.expected or 0, each.invoked_ms, each.returned_ms, outcome, seen_end)
