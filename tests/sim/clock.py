"""Clocks of simulated hosts: each runs at its own rate from its own offset, and its wall clock jumps when told to."""

from __future__ import annotations

from tests.sim.loop import SimLoop

EPOCH_MS = 1_750_000_000_000


class SimClock:
    """The clock of one host (``dledger_wire.clock.Clock``).

    ``rate`` is virtual: 1.001 gains one millisecond a second.  Timers are the loop's and keep true time, so a drifting clock makes its
    node's timers early or late, as on real machines whose timer and clock differ.
    """

    def __init__(self, loop: SimLoop, *, offset_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self._since_s = loop.now_s
        self._base_ms = loop.now_s * 1000.0 + offset_ms
        self._rate = rate
        self._wall_offset_ms = EPOCH_MS

    def monotonic_ms(self) -> int:
        return int(self._base_ms + (self._loop.now_s - self._since_s) * 1000.0 * self._rate)

    def wall_ms(self) -> int:
        return self.monotonic_ms() + self._wall_offset_ms

    def set_rate(self, rate: float) -> None:
        """From now on; what passed so far stays."""
        self._base_ms += (self._loop.now_s - self._since_s) * 1000.0 * self._rate
        self._since_s = self._loop.now_s
        self._rate = rate

    def jump_wall(self, ms: int) -> None:
        """The wall clock is set forward or back; the monotonic one does not notice."""
        self._wall_offset_ms += ms
