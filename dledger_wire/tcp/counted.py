"""A connection of a port that speaks HTTP, from its first byte to its end.

Owns that it is counted while it is open, and that it is closed when it does not bring a request in time.
"""

from __future__ import annotations

import asyncio

from dledger_wire.tcp.arrivals import Arrival, Arrivals
from dledger_wire.tcp.listener import named


class Counted:
    """What a protocol that the listener made has to report of its connection."""

    def __init__(self, arrivals: Arrivals, arrival: Arrival) -> None:
        self._arrivals, self._arrival = arrivals, arrival
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def source(self) -> str:
        """Where it comes from, as limits count it."""
        return self._arrival.source

    def opened(self, transport: asyncio.Transport) -> None:
        """It is there, behind TLS where there is any; also for another protocol that takes it over."""
        self._no_deadline()
        self._transport, self._arrival.drop = transport, transport.abort
        end_s = self._arrival.since_s + self._arrivals.limits.handshake_s
        self._deadline = asyncio.get_running_loop().call_at(end_s, self._too_late)

    def asked(self) -> None:
        """A request has come.  The connection is closed when it is one too many."""
        if self._deadline is None:
            return
        self._no_deadline()
        if not self._arrivals.known(self._arrival, is_member=False):
            self.abort()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def lost(self) -> None:
        """It is gone."""
        self._no_deadline()
        self._transport = None
        self._arrivals.left(self._arrival)

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        assert self._transport is not None  # noqa: S101 - the deadline ends with it
        peer = named(self._transport.get_extra_info("peername"))
        self._arrivals.refused("slow", f"{peer}: closed: no request within {self._arrivals.limits.handshake_s:g} s")
        self.abort()
