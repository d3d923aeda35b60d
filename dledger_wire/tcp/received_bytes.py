"""Bytes that connections have received and no reader has taken yet: one count and one limit for all of them, and the credit to send more.

Owns admission.  A message that needs a buffer of its own, or comes in parts, gets credit for all of it before more of it is read; while
there is none its connection is not read, and gets its credit in the order of asking.  A connection that waits has no credit, so what the
others hold always comes to an end and goes to the next one.  Once bytes are scarce small messages need credit, too, connections are read
in small pieces, and none is read on while complete messages of it wait.  Links of members of the cluster never wait.

What is refused all the same: a sender that has credit and sends next to nothing while others wait, and, beyond the limit or when nothing
was given for long, the connection that holds the most; one of a member of the cluster only where no other one holds any.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from dledger_wire.errors import BusyError, DledgerError
from dledger_wire.security.limits import DEFAULT_LIMITS
from dledger_wire.tcp.rare_warning import RareWarning

RECEIVED_BYTES_LIMIT = 512 << 20
WAITING_BYTES = 8 << 20  # complete messages of one stream
SCARCE_BYTES = 256 << 10  # the same once half of the limit is in use
LOOK_S = 1.0
IDLE_LOOKS = 5  # within which a sender that has credit brings its ``progress``, or this share of its message, while others wait
LEAST_SHARE = 16
STARVED_LOOKS = 30  # that the first of those who wait may see nothing given
_TOO_MANY = "too many bytes received and not yet taken over all connections; nothing of what waited was kept"


class Receiving(Protocol):
    """A connection that reads messages; hashable by itself."""

    @property
    def peer(self) -> str: ...
    @property
    def is_members(self) -> bool:
        """Whether a member of the cluster is at the other side: then nothing of it waits."""

    @property
    def is_paused(self) -> bool:
        """Whether it is not read now, for a reason of its own."""

    def credited(self, credit: Credit) -> None:
        """A message may be read on."""

    def drop(self, error: DledgerError) -> None:
        """End the connection for that reason, and keep nothing of what has come."""


class Credit:
    """The room of one message, from its beginning to its end.  Its owner notes in ``filled`` how much of it has come."""

    __slots__ = ("connection", "filled", "granted", "idle", "seen", "since_s", "size")

    def __init__(self, connection: Receiving, size: int) -> None:
        self.connection, self.size, self.granted = connection, size, False
        self.since_s = 0.0  # when the frame began to come
        self.filled = self.seen = self.idle = 0


class ReceivedBytes:
    """Bytes received and not yet taken, and credit given for more, over all connections that share this.

    Messages may fill three quarters of ``limit``; the rest is for what is read without credit: small messages and links of members.
    """

    def __init__(self, limit: int = RECEIVED_BYTES_LIMIT) -> None:
        self.held = 0
        self.room = limit * 3 // 4
        self.queue: dict[Credit, None] = {}  # those who wait, in the order of asking
        self._limit = limit
        self._given: dict[Credit, None] = {}
        self._by: dict[Receiving, int] = {}
        self._warning = RareWarning()
        self._timer: asyncio.TimerHandle | None = None
        self._looks = 0  # since anything was given
        self._is_giving = False

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of complete messages a stream may let wait before its connection is left alone."""
        if self.queue or self.held > self.room:
            return 0
        return WAITING_BYTES if 2 * self.held <= self._limit else SCARCE_BYTES

    def held_of(self, connection: Receiving) -> int:
        """What of it is held, and credit."""
        return self._by.get(connection, 0)

    def wait(self, connection: Receiving, change: int) -> None:
        """So many bytes of ``connection`` wait more than before, or, negative, less."""
        self._count(connection, change)
        if change > 0:
            self._look()
        elif self.queue:
            self.give()

    def _count(self, connection: Receiving, change: int) -> None:
        self.held += change
        held = self._by.pop(connection, 0) + change
        if held:
            self._by[connection] = held

    # -- credit

    def ask(self, connection: Receiving, size: int) -> Credit:
        """Credit for a message of ``size`` bytes, ``granted`` at once or later: ``connection`` is then notified by ``credited``.

        A message of more than the room counts as much as that: it is read when there is no other one.
        """
        credit = Credit(connection, min(size, self.room))
        if self.has_room(connection, credit.size):
            self._grant(credit)
        else:
            self.queue[credit] = None
            self._watch()
        return credit

    def has_room(self, connection: Receiving, size: int) -> bool:
        """Whether a message of ``size`` bytes would get credit at once."""
        return connection.is_members or (not self.queue and self._fits(size))

    def end(self, credit: Credit) -> None:
        """The message is complete, or will not be.  ``give`` is to follow, once what became of it is counted."""
        if credit.granted:
            credit.granted = False
            del self._given[credit]
            self._count(credit.connection, -credit.size)
        else:
            self.queue.pop(credit, None)

    def give(self) -> None:
        """Grant what there is room for, to the first who asked."""
        if self._is_giving:  # the one that is granted something gives back the bytes that it had read without credit
            return
        self._is_giving = True
        try:
            while self.queue and self._fits((credit := next(iter(self.queue))).size):
                del self.queue[credit]
                self._grant(credit)
                self._looks = 0
                credit.connection.credited(credit)
        finally:
            self._is_giving = False

    def _fits(self, size: int) -> bool:
        # Small messages that come and go have the rest: they must not keep out one of the size of the room, once it is the only one.
        return self.held + size <= self.room or (not self._given and self.held <= self._limit - self.room)

    def _grant(self, credit: Credit) -> None:
        credit.granted = True
        self._given[credit] = None
        self._count(credit.connection, credit.size)

    # -- what is refused

    def _look(self) -> None:
        while self.held > self._limit and self._by:
            self._drop_largest()

    def _drop_largest(self) -> None:
        largest = max(self._by, key=lambda each: (not each.is_members, self._by[each]))
        self._drop(largest, f"{self.held >> 20} MiB received and not yet taken over all connections", _TOO_MANY)

    def _drop(self, connection: Receiving, why: str, error: str) -> None:
        self._warning.log(f"{connection.peer}: refused: {why}")
        connection.drop(BusyError(error))
        self.held -= self._by.pop(connection, 0)

    def _watch(self) -> None:
        if self._timer is None:
            for credit in self._given:
                credit.seen, credit.idle = credit.filled, 0
            self._looks = 0
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        """Once a second while any wait.  Looks are counted and not time: one that was late comes before what has arrived meanwhile."""
        self._timer = None
        if not self.queue:
            return
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)
        self._looks += 1
        for credit in list(self._given):
            self._look_at(credit)
        if self.queue and self._looks >= STARVED_LOOKS and self._by:
            self._looks = 0
            self._drop_largest()
        self.give()

    def _look_at(self, credit: Credit) -> None:
        connection = credit.connection
        if not credit.granted or connection.is_members or connection.is_paused:
            return
        least = max(DEFAULT_LIMITS.progress, credit.size // LEAST_SHARE)
        if credit.filled - credit.seen >= min(least, credit.size):
            credit.seen, credit.idle = credit.filled, 0
            return
        credit.idle += 1
        if credit.idle >= IDLE_LOOKS:
            text = f"it left off in the middle of a message for {IDLE_LOOKS * LOOK_S:g} s while others waited to send theirs"
            self._drop(connection, text, text)
