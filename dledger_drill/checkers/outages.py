"""Times without an acknowledgement, as the probe of each replica group saw them, and groups that did not come back after a fault."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from dledger_drill.checkers.model import Limits, Outage, Violation, ViolationKind
from dledger_drill.history.records import PROBE, Operation, Outcome

USUAL = 200  # sends from which the usual times are taken


@dataclass(slots=True)
class _Probe:
    """``trying``: the first send since the last acknowledgement, ``last_ns`` when that one came.

    ``waits``: how long sends took to be acknowledged; ``pauses``: from an acknowledgement to the next send.
    """

    waits: deque[int] = field(default_factory=lambda: deque(maxlen=USUAL))
    pauses: deque[int] = field(default_factory=lambda: deque(maxlen=USUAL))
    last_ns: int | None = None
    trying: Operation | None = None
    latest: Operation | None = None


@dataclass(slots=True)
class Gap:
    """A time in which a group's probe was not acknowledged; ``first``: its first send."""

    group: str
    start_ns: int
    end_ns: int
    first: Operation
    is_over: bool = True


@dataclass(slots=True)
class OutageCheck:
    """Takes the probes' sends in the order in which they began, the faults, and the times in which all clients stood still."""

    limits: Limits
    faults: list[Operation] = field(default_factory=list)
    pauses: list[Operation] = field(default_factory=list)
    _probes: dict[str, _Probe] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def take(self, send: Operation) -> None:
        group = send.process.removeprefix(PROBE)
        probe = self._probes.setdefault(group, _Probe())
        probe.latest = send
        probe.trying = probe.trying or send
        if send.outcome is not Outcome.OK or send.returned_ns is None:
            return
        wait_ns = send.returned_ns - probe.trying.invoked_ns
        if wait_ns > self._limit_ns(probe.waits):
            self.gaps.append(Gap(group, self._start(probe, probe.trying), send.returned_ns, probe.trying))
        probe.waits.append(wait_ns)
        if probe.last_ns is not None:
            probe.pauses.append(probe.trying.invoked_ns - probe.last_ns)
        probe.last_ns, probe.trying = send.returned_ns, None

    def finish(self) -> tuple[list[Outage], list[Violation]]:
        """Gaps that span a fault or follow one in its round, and those that lasted too long after it was healed."""
        self._close()
        faults = sorted(self.faults, key=lambda fault: fault.invoked_ns)
        struck = [fault.invoked_ns for fault in faults]
        outages: list[Outage] = []
        violations: list[Violation] = []
        for gap in sorted(self.gaps, key=lambda gap: gap.start_ns):
            if not self._outlasts_pauses(gap):
                continue
            # The last fault that began before the gap ended.
            place = bisect_left(struck, gap.end_ns) - 1
            if place < 0 or (faults[place].round != gap.first.round and faults[place].invoked_ns < gap.start_ns):
                continue
            outages.append(Outage(gap.group, faults[place].round, gap.start_ns, gap.end_ns))
            violations += self._too_long(gap, faults, faults[place])
        return outages, violations

    def _outlasts_pauses(self, gap: Gap) -> bool:
        """What is left of a gap when those who would have seen an acknowledgement are back."""
        for pause in self.pauses:
            if pause.returned_ns is not None and pause.invoked_ns < gap.end_ns and pause.returned_ns > gap.start_ns:
                gap.start_ns = min(pause.returned_ns, gap.end_ns)
        return gap.end_ns - gap.start_ns > self.limits.outage_ms * 1e6

    def _start(self, probe: _Probe, trying: Operation) -> int:
        """The last acknowledgement, unless the probe was made to stand still for a while."""
        if probe.last_ns is None or trying.invoked_ns - probe.last_ns > self._limit_ns(probe.pauses):
            return trying.invoked_ns
        return probe.last_ns

    def _limit_ns(self, usual: deque[int]) -> float:
        return max(self.limits.outage_ms * 1e6, self.limits.outage_factor * (median(usual) if usual else 0))

    def _close(self) -> None:
        """Probes that were not answered any more when the history ended."""
        for group, probe in self._probes.items():
            if probe.trying is not None and probe.latest is not None:
                end_ns = probe.latest.returned_ns or probe.latest.invoked_ns
                if end_ns - probe.trying.invoked_ns > self._limit_ns(probe.waits):
                    self.gaps.append(Gap(group, self._start(probe, probe.trying), end_ns, probe.trying, is_over=False))
                probe.trying = None

    def _too_long(self, gap: Gap, faults: Sequence[Operation], last: Operation) -> Iterator[Violation]:
        """Not from the last fault alone: the next round's begins although the group has not come back."""
        longest_ns, healed, at_ns, before = 0, last, gap.start_ns, last
        own = (fault for fault in faults if fault.data.get("group", gap.group) == gap.group)
        for fault in own:
            start_ns, end_ns = fault.invoked_ns, gap.end_ns if fault.returned_ns is None else fault.returned_ns
            if start_ns >= gap.end_ns:
                break
            if start_ns - at_ns > longest_ns:
                longest_ns, healed = start_ns - at_ns, before
            at_ns, before = max(at_ns, end_ns), fault
        if gap.end_ns - at_ns > longest_ns:
            longest_ns, healed = gap.end_ns - at_ns, before
        if longest_ns / 1e6 > self.limits.recovery_ms:
            how = "was first acknowledged" if gap.is_over else "was not acknowledged"
            text = f"{gap.group} {how} after {longest_ns / 1e9:.1f} s without a fault, the last one before was {healed.data['name']}"
            yield Violation(ViolationKind.NOT_RECOVERED, healed.round, text, (healed, gap.first))
