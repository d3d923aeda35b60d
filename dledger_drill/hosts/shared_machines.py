"""Machines that several faults strike at once: each fault takes back what it did itself, and what another one wants stays.

Owns what is in force at each machine: the worst of what the faults want there.  Its process is started again when no fault keeps it down,
and one that ended without a fault that explains it is remembered.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dledger_drill.hosts.machine import Machine, Process
from dledger_wire.errors import DeadlineExceededError

M_co = TypeVar("M_co", bound=Machine, covariant=True)


@dataclass(slots=True)
class _Wanted:
    """What one fault wants of one machine."""

    down: bool = False
    paused: bool = False
    power_off: bool = False
    failing: bool = False
    full: bool = False
    sync_ms: float = 0.0
    write_ms: float = 0.0
    clock_s: float = 0.0


class SharedMachines(Mapping[str, M_co], Generic[M_co]):
    """Machines by name; ``hold`` is for one fault.

    Args:
        machines: Those that there are.
        start: Starts the process of a machine that has none.

    ``excused``: machines whose disk did not work in this round, so that a process may have ended by itself.
    """

    def __init__(self, machines: Mapping[str, M_co], start: Callable[[str], None]) -> None:
        self._machines, self._start = machines, start
        self._held: list[HeldMachines] = []
        self._ended: list[str] = []
        self.excused: set[str] = set()
        self.lock = threading.RLock()

    def __getitem__(self, name: str) -> M_co:
        return self._machines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._machines)

    def __len__(self) -> int:
        return len(self._machines)

    def hold(self) -> HeldMachines:
        held = HeldMachines(self)
        with self.lock:
            self._held.append(held)
        return held

    def drop(self, held: HeldMachines) -> None:
        with self.lock:
            if held in self._held:
                self._held.remove(held)

    def all_wanted(self, name: str) -> list[_Wanted]:
        return [held.wanted[name] for held in self._held if name in held.wanted]

    def start_excused(self) -> None:
        """As a supervisor does: start those that a fault of their disk has ended."""
        with self.lock:
            for name in sorted(self.excused):
                self.start_unheld(name)
            self.excused.clear()

    def start_if_excused(self, name: str) -> None:
        """The same of one machine before the round is over, for a fault that waits for its process."""
        with self.lock:
            if name in self.excused:
                self.start_unheld(name)

    def start_unheld(self, name: str) -> None:
        """If nothing keeps it down and it does not run."""
        with self.lock:
            wanted = self.all_wanted(name)
            if running(self[name]) is None and not any(each.down or each.power_off for each in wanted):
                self._start(name)
                if any(each.paused for each in wanted) and (process := running(self[name])) is not None:
                    process.pause()

    def look(self, name: str) -> None:
        """Remember one that has ended although no fault wanted that."""
        wanted = self.all_wanted(name)
        explained = name in self.excused or any(each.down or each.power_off for each in wanted)
        if not explained and running(self[name]) is None and name not in self._ended:
            self._ended.append(name)

    def ended(self) -> list[str]:
        """Those that ended by themselves so far."""
        with self.lock:
            for name in self:
                self.look(name)
            return list(self._ended)


class HeldMachines:
    """What one fault does to machines, until it ``release``s them."""

    def __init__(self, shared: SharedMachines[Machine]) -> None:
        self.wanted: dict[str, _Wanted] = defaultdict(_Wanted)
        self._shared = shared
        self._struck: dict[str, int] = {}

    def kill(self, name: str) -> None:
        """SIGKILL, and keep it down."""
        with self._shared.lock:
            self._down(name)
            if process := running(self._shared[name]):
                process.kill()

    def stop(self, name: str, timeout_s: float) -> None:
        """SIGTERM, and keep it down.  DeadlineExceededError when it had to be killed after ``timeout_s``."""
        with self._shared.lock:
            self._down(name)
            process = running(self._shared[name])
        if process is None:
            return
        try:
            process.terminate(timeout_s)
        except DeadlineExceededError:
            process.kill()
            raise DeadlineExceededError(f"{name} did not stop within {timeout_s:g} s and was killed") from None

    def _down(self, name: str) -> None:
        self._shared.look(name)
        self.wanted[name].down = True

    def pause(self, name: str) -> None:
        with self._shared.lock:
            self._shared.look(name)
            self.wanted[name].paused = True
            if process := running(self._shared[name]):
                process.pause()

    def power_off(self, name: str) -> None:
        """Its process is to be killed right after."""
        with self._shared.lock:
            self._excused(name).power_off = True
            self._shared[name].disk.power_off()

    def slow(self, name: str, sync_ms: float, write_ms: float) -> None:
        with self._shared.lock:
            wanted = self.wanted[name]
            wanted.sync_ms, wanted.write_ms = sync_ms, write_ms
            self._count_strikes(name)
            self._apply_speed(name)

    def fail(self, name: str) -> None:
        with self._shared.lock:
            self._excused(name).failing = True
            self._count_strikes(name)
            self._shared[name].disk.fail(True)

    def fill(self, name: str, leave_bytes: int) -> None:
        with self._shared.lock:
            self._excused(name).full = True
            self._shared[name].disk.fill(leave_bytes)

    def jump(self, name: str, seconds: float) -> None:
        """Its wall clock, from where others have set it."""
        with self._shared.lock:
            self.wanted[name].clock_s = seconds
            self._apply_clock(name)

    def struck(self, name: str) -> int:
        """How many writes and syncs its disk has delayed or failed since the fault began."""
        return self._shared[name].disk.struck - self._struck[name]

    def release(self, name: str) -> None:
        """Take back what this fault wants of a machine; its process is started, unless another fault keeps it down."""
        with self._shared.lock:
            mine = self.wanted[name]
            self.wanted[name] = _Wanted(down=mine.down, power_off=mine.power_off)  # not started before its disk is as it was
            rest = [each for each in self._shared.all_wanted(name) if each is not self.wanted[name]]
            self._take_back(name, mine, rest)
            del self.wanted[name]
            if mine.down or mine.power_off:
                self._shared.start_unheld(name)
            if not self.wanted:
                self._shared.drop(self)

    def _take_back(self, name: str, mine: _Wanted, rest: list[_Wanted]) -> None:
        machine = self._shared[name]
        if mine.sync_ms or mine.write_ms:
            self._apply_speed(name)
        if mine.failing and not any(each.failing for each in rest):
            machine.disk.fail(False)
        if mine.full and not any(each.full for each in rest):
            machine.disk.free()
        if mine.clock_s:
            self._apply_clock(name)
        if mine.power_off and not any(each.power_off for each in rest):
            if process := running(machine):
                process.kill()
            machine.disk.power_on()
        if mine.paused and not any(each.paused for each in rest) and (process := running(machine)):
            process.resume()

    def _excused(self, name: str) -> _Wanted:
        self._shared.look(name)
        self._shared.excused.add(name)
        return self.wanted[name]

    def _count_strikes(self, name: str) -> None:
        self._struck.setdefault(name, self._shared[name].disk.struck)

    def _apply_speed(self, name: str) -> None:
        wanted = self._shared.all_wanted(name)
        self._shared[name].disk.slow(max(each.sync_ms for each in wanted), max(each.write_ms for each in wanted))

    def _apply_clock(self, name: str) -> None:
        self._shared[name].clock.shift(sum(each.clock_s for each in self._shared.all_wanted(name)))


def running(machine: Machine) -> Process | None:
    process = machine.process
    return process if process is not None and process.poll() is None else None
