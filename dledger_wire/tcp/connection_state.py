"""What a connection that was accepted is at: whose it is, what it carries, how much of it is held here, and what it waits for.

Owns when a connection counts as held up: while it is not read or does not read itself, and for ``LATELY_S`` after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger_wire.tcp.server import Accepted

LATELY_S = 5.0
LEAST_WAIT_S = 0.05  # a message that waits no longer than that has not held its sender up
# What it waits for: credit to send more, its messages to be taken, its own other side to read.
MEMORY, TAKER, READER = "memory", "taker", "reader"


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """``purpose``: the method of a stream, or ``calls``.  ``waits_for``: one of the words above; empty: it does not wait.

    ``is_held_up``: it waits, or did so lately.  ``received_bytes``: of it here and not taken, and of credit for more.
    """

    peer: str
    user: str
    purpose: str
    waits_for: str
    is_held_up: bool
    received_bytes: int
    unsent_bytes: int
    since_s: float  # before now


def state_of(connection: Accepted, now_s: float) -> ConnectionState:
    """What it is at now."""
    waits_for = ""
    if connection.waits_for_credit:
        waits_for = MEMORY
    elif connection.held_back is not None:
        waits_for = READER
    elif connection.waits_for_taker(now_s):
        waits_for = TAKER
    return ConnectionState(
        connection.peer,
        connection.user,
        connection.purpose,
        waits_for,
        bool(waits_for) or now_s - connection.resumed_s < LATELY_S,
        connection.received_bytes,
        connection.unsent,
        now_s - connection.arrival.since_s,
    )
