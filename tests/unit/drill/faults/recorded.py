"""A cluster that writes down what is done to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from dledger_drill.hosts.machine import LinkShape
from dledger_drill.hosts.shared_links import SharedLinks
from dledger_drill.hosts.shared_machines import SharedMachines


class RecordedProcess:
    pid = 1

    def __init__(self, name: str, done: list[str]) -> None:
        self._name, self._done, self._status = name, done, None if name else 0

    def poll(self) -> int | None:
        return self._status

    def wait(self, timeout_s: float) -> int:
        return 0

    def kill(self) -> None:
        self._status = -9
        self._done.append(f"kill {self._name}")

    def terminate(self, timeout_s: float) -> int:
        self._status = 0
        self._done.append(f"stop {self._name}")
        return 0

    def pause(self) -> None:
        self._done.append(f"pause {self._name}")

    def resume(self) -> None:
        self._done.append(f"resume {self._name}")


class RecordedDisk:
    """``calls``: writes while it is slow or fails, which the next look at ``struck`` adds."""

    path = Path("/nowhere")
    calls = 1

    def __init__(self, name: str, done: list[str]) -> None:
        self._name, self._done = name, done
        self._struck = 0

    @property
    def struck(self) -> int:
        self._struck += self.calls
        return self._struck

    def wipe(self, folder: str) -> None:
        self._done.append(f"wipe {self._name}")

    def power_off(self) -> None:
        self._done.append(f"power off {self._name}")

    def power_on(self) -> None:
        self._done.append(f"power on {self._name}")

    def fill(self, leave_bytes: int) -> None:
        self._done.append(f"fill {self._name}")

    def free(self) -> None:
        self._done.append(f"free {self._name}")

    def slow(self, sync_ms: float, write_ms: float = 0.0) -> None:
        self._done.append(f"slow {self._name} {sync_ms:g}" if sync_ms else f"fast {self._name}")

    def fail(self, failing: bool) -> None:
        self._done.append(f"{'fail' if failing else 'mend'} {self._name}")

    def flip_bit(self, file: str, byte: int, bit: int = 0) -> None:
        self._done.append(f"flip {self._name}")


class RecordedClock:
    def __init__(self, name: str, done: list[str]) -> None:
        self._name, self._done = name, done

    def shift(self, seconds: float) -> None:
        self._done.append(f"shift {self._name} {seconds:g}" if seconds else f"restore {self._name}")


class RecordedMachine:
    def __init__(self, name: str, done: list[str]) -> None:
        self.name, self._done = name, done
        self.process: RecordedProcess | None = RecordedProcess(name, done)
        self.disk, self.clock = RecordedDisk(name, done), RecordedClock(name, done)

    def start(self) -> None:
        self.process = RecordedProcess(self.name, self._done)
        self._done.append(f"start {self.name}")


class RecordedLinks:
    """``lost``: ordered pairs that carry nothing; ``shaped``: those that carry badly."""

    def __init__(self) -> None:
        self.lost: set[tuple[str, str]] = set()
        self.shaped: set[tuple[str, str]] = set()
        self.restored = threading.Event()
        self._struck = 0

    def cut(self, source: str, target: str) -> None:
        self.shape(source, target, LinkShape(cut=True))

    def isolate(self, name: str, others: Sequence[str]) -> None:
        self.lost |= {pair for other in others for pair in ((name, other), (other, name))}

    def shape(self, source: str, target: str, shape: LinkShape) -> None:
        (self.lost if shape.cut else self.shaped).add((source, target))

    def restore(self, source: str, target: str) -> None:
        self.lost.discard((source, target))
        self.shaped.discard((source, target))
        self.restored.set()

    def struck(self, source: str, target: str) -> int:
        """Something is always on its way."""
        self._struck += 1
        return self._struck

    def heal(self) -> None:
        self.lost.clear()
        self.shaped.clear()


class RecordedCluster:
    """Two groups; ``g0`` is led by n0 until that is killed."""

    def __init__(self, nodes: int = 3) -> None:
        self.done: list[str] = []
        self.groups = {"g0": [f"n{number}" for number in range(nodes)], "g1": [f"n{number}" for number in range(nodes, 2 * nodes)]}
        self.name_servers = ["ns0", "ns1", "ns2"]
        names = [*self.groups["g0"], *self.groups["g1"], *self.name_servers]
        self.machines = SharedMachines({name: RecordedMachine(name, self.done) for name in names}, self._start)
        self.recorded_links = RecordedLinks()
        self.links = SharedLinks(self.recorded_links)

        self.interrupted = threading.Event()
        self.workloads = RecordedProcess("load", self.done)

    def restart_node(self, name: str) -> None:
        self.done.append(f"restart {name}")

    def leader_or_last(self, group: str) -> str:
        return self.leader(group)

    def leader(self, group: str, timeout_s: float = 30.0) -> str:
        for node in self.groups[group]:
            process = self.machines[node].process
            if process is not None and process.poll() is None:
                return node
        raise AssertionError("no node of the group runs")

    def _start(self, name: str) -> None:
        self.machines[name].start()

    def wait_healthy(self, timeout_s: float = 60.0) -> None:
        self.done.append("wait")

    def transfer_leader(self, group: str, to: str) -> None:
        self.done.append(f"transfer to {to}")

    def replace_member(self, group: str, node: str) -> None:
        self.done.append(f"replace {node}")

    def rotate_certificates(self) -> None:
        self.done.append("rotate")
