"""A workload process for a test: started as a child, its history read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dledger_drill.history.reader import merge
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.hosts.processes import MachineProcess
from dledger_drill.workloads.control import LoadControl


def start_child(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> MachineProcess:
    return MachineProcess(command, log=log, environment=environment)


class History:
    """The operations of a workload process that has ended."""

    def __init__(self, load: LoadControl) -> None:
        self.operations = list(merge(load.histories))

    def of(self, kind: OperationKind, outcome: Outcome | None = Outcome.OK, **data: object) -> list[Operation]:
        """Those of a kind and outcome (None: any) whose data has these values."""
        wanted = data.items()
        return [
            each
            for each in self.operations
            if each.kind is kind and outcome in (None, each.outcome) and all(each.data.get(name) == value for name, value in wanted)
        ]

    def stored(self, topic: str) -> list[str]:
        return [value for each in self.of(OperationKind.STORED, topic=topic) for value in each.data["values"]]

    def values(self, kind: OperationKind, **data: object) -> set[str]:
        return {str(each.data["value"]) for each in self.of(kind, Outcome.OK, **data)}
