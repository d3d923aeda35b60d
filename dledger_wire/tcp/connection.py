"""One TCP (or TLS) connection: frames out of bytes, memory that grows with what has arrived, and writing that waits for a slow peer.

Owns the bytes of a connection; what frames mean is the affair of its receiver (``stream``, ``calls``, ``server``).

    kind u8 | length u32 | payload

All connections of a thread receive into one shared buffer: an idle connection keeps none.  A frame that does not fit gets a buffer of
its own once a part of it is there: of 256 KiB, when these are there of some 2 MiB, then of four times what has arrived; never of a length
that was only claimed.
``ReceivedBytes`` counts over all connections what was received and not yet taken, and gives credit for large frames: without it the
connection is not read until it has some.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from typing import cast

from dledger_wire.errors import AuthenticationFailedError, DledgerError, UnreachableError
from dledger_wire.forked import close_in_child, run_in_children
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES
from dledger_wire.security.tls import certificate_alert
from dledger_wire.tcp.connection_state import LEAST_WAIT_S
from dledger_wire.tcp.dead_peers import watch_for_death
from dledger_wire.tcp.foreign import SHOWN_BYTES, spoken
from dledger_wire.tcp.rare_warning import RareWarning
from dledger_wire.tcp.received_bytes import Credit, ReceivedBytes

SCRATCH_BYTES = 128 << 10
OWN_BUFFER_FROM = 32 << 10  # of a large frame must have arrived before it gets a buffer of its own
FIRST_BUFFER_BYTES = 256 << 10  # its first size: cleared on the loop for every sender of the beginning of a large frame
OWN_BUFFER_BYTES = (2 << 20) + (128 << 10)  # its next: a producer's request and a log entry fit; growing costs a copy
GROWTH = 4
SHORT_READ_BYTES = 16 << 10  # what is read at a time, and how long a frame may be that needs no credit, once bytes are scarce
WRITE_BUFFER_BYTES = 4 << 20
REVOKED_S = 1.0

PREFACE = b"DLTP"  # what the opening of a connection begins with
FRAME = struct.Struct(">BI")
MESSAGE, END, ERROR, REQUEST, ANSWER, FAILURE, PART, CANCEL, AUTHENTICATION = range(1, 10)


class Receiver:
    """What a connection carries; this one before and after there is one."""

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame came."""

    def lost(self) -> None:
        """The connection is gone."""

    def shed(self) -> None:
        """Keep nothing of what has arrived and was not taken yet: it will not be answered."""


NO_RECEIVER = Receiver()


class _Scratch(threading.local):
    """The shared buffer.  Loops read one connection after the other, and each takes out what it was given before the next is read."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SCRATCH_BYTES))


_scratch = _Scratch()


class Connection(asyncio.BufferedProtocol):
    """One connection, of either side.  ``prologue`` takes what comes before frames (bytes used, or -1 for more); ``raw`` takes the place
    of frames where the other side speaks another protocol."""

    receiver: Receiver = NO_RECEIVER
    max_frame = MAX_MESSAGE_BYTES
    is_members = True  # of a member of the cluster, or one that this process has dialled

    def __init__(self, peer: str, memory: ReceivedBytes, *, write_buffer: int = WRITE_BUFFER_BYTES) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer = peer
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.prologue: Callable[[memoryview], int] | None = None
        self.raw: Callable[[bytes], None] | None = None
        self.last_received_s = self._loop.time()  # when the last bytes came
        self.frame_since_s = 0.0  # when the frame that is given to the receiver began to come; 0: just now
        self._begun_s = self.last_received_s  # when the frame that is not complete began, or last brought as much as it must
        self._large_seen = 0  # how much of a large one was there at that time
        self._reading_paused = False
        self.resumed_s = -math.inf  # when it went on after a pause
        self._kept_s = math.inf  # since when the receiver has kept a message that the next one waits for
        self._credit: Credit | None = None  # of the frame that is not complete
        self._credits = 0  # granted, of frames and of messages in parts
        self._uncredited = 0  # asked for and not granted: until then nothing is read
        self._written = 0
        self._held_s = 0.0  # when writing was held back, or the other side last read as much as it must
        self._held_sent = 0
        self._memory = memory
        self._write_buffer = write_buffer
        self._gathers = False
        self._scratch = _scratch.view
        self._rest = b""
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_kind = self._large_length = 0
        self._drained: asyncio.Future[None] | None = None
        self._turns = asyncio.Lock()
        self._refused = False
        self._foreign = ""  # what the other side speaks when it is no dledger
        self._alert = ""  # why the other side refused this one's certificate
        self._behind: list[bytes] | None = None  # what waits while a frame goes around the transport
        self._closes_behind = False

    @property
    def socket(self) -> socket.socket | None:
        """The socket below, while connected."""
        return self.transport.get_extra_info("socket") if self.transport is not None else None

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # The base class joins, which copies; what has a way of its own hands both parts to one system call.
        self._gathers = type(self.transport).writelines is not asyncio.WriteTransport.writelines
        _connections.add(self)
        run_in_children(_after_fork)
        self.set_write_buffer(self._write_buffer)
        if self.socket is not None:
            watch_for_death(self.socket)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        begun, memory = len(self._rest), self._memory
        if begun:
            self._scratch[:begun] = self._rest
        if (memory.held > memory.room or memory.queue) and not self.is_members:
            return self._scratch[begun : begun + SHORT_READ_BYTES]
        return self._scratch[begun:] if begun else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received_s = self._loop.time()
        if self._refused:
            return
        if self._large is not None:
            self._large_filled += nbytes
            if self._credit is not None:
                self._credit.filled = self._large_filled
            if self._large_filled == len(self._large):
                self._large_full()
            return
        begun = len(self._rest)
        filled = begun + nbytes
        at = self._take(filled)
        if at or not begun:
            self._begun_s = self.last_received_s
        if self._refused or self._large is not None:
            at = filled
        if begun or at < filled:
            self._keep(bytes(self._scratch[at:filled]))

    def _keep(self, rest: bytes) -> None:
        """What has come of the frame that is not complete, as long as it has no buffer of its own."""
        change, self._rest = len(rest) - len(self._rest), rest
        if change:
            self._memory.wait(self, change)

    def _take(self, filled: int) -> int:
        """Take whole frames out of the shared buffer; how far."""
        at, scratch = 0, self._scratch
        while not self._refused:
            if self.prologue is not None:
                used = self.prologue(scratch[at:filled])
                if used < 0:
                    return at
                at += used
                continue
            if self.raw is not None:
                if filled > at:
                    self.raw(bytes(scratch[at:filled]))
                return filled
            start = at + FRAME.size
            if filled < start:
                return at
            kind, length = FRAME.unpack_from(scratch, at)
            if not MESSAGE <= kind <= AUTHENTICATION or length > self.max_frame:
                self.not_ours(spoken(bytes(scratch[at:filled][:SHOWN_BYTES])))
                return filled
            if filled - start < length:
                if length > SHORT_READ_BYTES and self._waits_for_credit(length, filled - start):
                    return at
                if length > SCRATCH_BYTES // 2 and filled - start >= OWN_BUFFER_FROM:
                    self._start_large(kind, length, scratch[start:filled])
                    return filled
                return at
            at = start + length
            credit, self._credit = self._credit, None
            if credit is None:
                self.receiver.frame(kind, bytes(scratch[start:at]))
            else:
                self._whole(credit, kind, bytes(scratch[start:at]))
        return filled

    def _waits_for_credit(self, length: int, begun: int) -> bool:
        """Whether the frame of which ``begun`` bytes are there may not be read on.  One whose beginning only was sent needs no credit yet.

        Once bytes are scarce small frames need some as well, but not the parts of a message that has credit.
        """
        if self._credit is None:
            is_scarce = self._memory.queue or self._memory.held > self._memory.room
            if length > SCRATCH_BYTES // 2:
                if begun < OWN_BUFFER_FROM:
                    return False
            elif not is_scarce or self._credits or self._uncredited:
                return False
            self._credit = self.ask_credit(length)
            self._credit.since_s = self.last_received_s
        self._credit.filled = begun
        return not self._credit.granted

    def _start_large(self, kind: int, length: int, begun: memoryview) -> None:
        self._large_kind, self._large_length, self._large_filled = kind, length, len(begun)
        self._large_seen = 0
        self._large = bytearray(min(length, FIRST_BUFFER_BYTES))
        memoryview(self._large)[: len(begun)] = begun  # a slice of the array itself would copy twice

    def _large_full(self) -> None:
        """The own buffer is full: the message is complete, or needs a larger one."""
        large = cast(bytearray, self._large)
        if len(large) < self._large_length:
            # A new one, since the loop still holds the old one; most that is copied over a message's life is a third of it.
            self._large = bytearray(min(self._large_length, max(OWN_BUFFER_BYTES, GROWTH * len(large))))
            self._large[: len(large)] = large
            return
        credit, self._credit, self._large = cast(Credit, self._credit), None, None
        self._whole(credit, self._large_kind, large)  # type: ignore[arg-type]  # a bytearray with no other owner

    def _whole(self, credit: Credit, kind: int, payload: bytes) -> None:
        """A frame that has credit is complete: it counts as a message that waits, if it does, before others get what it had."""
        self._end(credit)
        self.frame_since_s = credit.since_s
        self.receiver.frame(kind, payload)
        self.frame_since_s = 0.0
        self._memory.give()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self._alert = None, certificate_alert(exc)
        self._drop_buffers()
        if not self.closed.done():
            self.closed.set_result(None)
        self.resume_writing()  # writers that are held back learn that the connection is lost
        # Nothing is to hold the connection through itself: it goes at once, without the collector.
        receiver, self.receiver = self.receiver, NO_RECEIVER
        self.prologue = self.raw = None
        receiver.lost()

    def _drop_buffers(self) -> None:
        self._large = None
        self._keep(b"")
        credit, self._credit = self._credit, None
        if credit is not None:
            self.end_credit(credit)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._held_s, self._held_sent = self._loop.time(), self._written - self.unsent

    def resume_writing(self) -> None:
        self.resumed_s = self._loop.time()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # -- reading

    def took_in(self, size: int) -> None:
        """A receiver keeps (or, negative, gives back) so many bytes of complete messages."""
        self._memory.wait(self, size)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of complete messages a receiver may keep before it pauses reading."""
        return self._memory.waiting_bytes

    def taker_waits(self, *, on: bool) -> None:
        """Whether what reads this connection takes no more messages for now."""
        now_s = self._loop.time()
        if not on and now_s - self._kept_s >= LEAST_WAIT_S:
            self.resumed_s = now_s
        self._kept_s = now_s if on else math.inf

    def waits_for_taker(self, now_s: float) -> bool:
        return self._reading_paused or now_s - self._kept_s >= LEAST_WAIT_S

    @property
    def waits_for_credit(self) -> bool:
        return self._uncredited > 0

    @property
    def received_bytes(self) -> int:
        """Bytes of it that are here and not taken, and credit for more."""
        return self._memory.held_of(self)

    def pause_reading(self) -> None:
        self._reading_paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._resume()

    def _resume(self) -> None:
        if self.is_paused:
            return
        self._begun_s = self.resumed_s = self._loop.time()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is read, for its receiver's sake or for want of credit."""
        return self._reading_paused or self._uncredited > 0

    # -- credit

    def may_ask(self, size: int) -> bool:
        """Whether credit for a message of ``size`` bytes is granted at once, or may be waited for: what has credit must not wait for more,
        or all could wait for each other."""
        return not (self._credits or self._uncredited) or self._memory.has_room(self, size)

    def ask_credit(self, size: int) -> Credit:
        """Credit for a message of which a part is there.  Until it is granted nothing is read."""
        credit = self._memory.ask(self, size)
        if credit.granted:
            self._credits += 1
        else:
            self._uncredited += 1
            if self.transport is not None:
                self.transport.pause_reading()
        return credit

    def credited(self, credit: Credit) -> None:
        """``credit``, which was waited for, is granted."""
        self._credits, self._uncredited = self._credits + 1, self._uncredited - 1
        if credit is self._credit and len(self._rest) - FRAME.size >= OWN_BUFFER_FROM:
            kind, length = FRAME.unpack_from(self._rest)
            if length > SCRATCH_BYTES // 2:
                self._start_large(kind, length, memoryview(self._rest)[FRAME.size :])
                self._keep(b"")
        self._resume()

    def end_credit(self, credit: Credit) -> None:
        """Its message is not waited for any more, or complete and taken."""
        was_granted = credit.granted
        self._end(credit)
        if not was_granted:
            self._resume()
        self._memory.give()

    def _end(self, credit: Credit) -> None:
        if credit.granted:
            self._credits -= 1
        else:
            self._uncredited -= 1
        self._memory.end(credit)

    def waits_for_bytes_since(self, progress: int) -> float:
        """When the frame that is not complete began, or last brought ``progress`` bytes; infinite when nothing is waited for."""
        if self.is_paused or not (self._large is not None or self._rest):
            return math.inf
        if self._large is not None and self._large_filled - self._large_seen >= progress:
            self._large_seen, self._begun_s = self._large_filled, self._loop.time()
        return self._begun_s

    # -- writing

    @property
    def unsent(self) -> int:
        """Bytes written that have not gone out."""
        waiting = sum(map(len, self._behind)) if self._behind is not None else 0
        return waiting + (self.transport.get_write_buffer_size() if self.transport is not None else 0)

    def waits_for_reader_since(self, progress: int) -> float:
        """When writing was held back, or the other side last read ``progress`` bytes; infinite when writing is not held back."""
        if self._drained is None:
            return math.inf
        sent = self._written - self.unsent
        if sent - self._held_sent >= progress:
            self._held_sent, self._held_s = sent, self._loop.time()
        return self._held_s

    def set_write_buffer(self, high: int) -> None:
        self._write_buffer = high
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=high)

    @property
    def held_back(self) -> asyncio.Future[None] | None:
        """Done when what was written has gone out so far that more may be written; None when it has."""
        return self._drained

    async def drained(self) -> None:
        while self._drained is not None:
            await asyncio.shield(self._drained)

    @property
    def is_encrypted(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("ssl_object") is not None

    @property
    def is_connected(self) -> bool:
        """Whether what was written can still go out."""
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_open(self) -> bool:
        return self.is_connected and not self._refused and not self._closes_behind

    def put(self, kind: int, payload: bytes) -> None:
        """Write one frame, whatever waits already.  Raises ``gone`` when the connection is lost."""
        if self.transport is None or self.transport.is_closing():
            raise self.gone()
        head = FRAME.pack(kind, len(payload))
        self._written += len(payload)
        if self._behind is not None:
            self._behind += (head, payload)
        elif len(payload) < 1 << 16:
            self.transport.write(b"".join([head, payload]))
        elif self._gathers:
            self.transport.writelines((head, payload))
        else:
            self.transport.write(head)
            self.transport.write(payload)

    async def put_in_turn(self, kind: int, payload: bytes) -> None:
        """Write one frame once the connection takes more, in the order of asking."""
        if self._drained is not None or self._turns.locked():
            async with self._turns:
                await self.drained()
        self.put(kind, payload)

    def put_raw(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._written += len(data)
            self.transport.write(data)

    # -- writing around the transport (stored_frame.py)

    async def flushed(self) -> None:
        """Wait until nothing that was written waits in memory, or the connection is lost."""
        if not self.unsent:
            return
        before = self._write_buffer
        self.set_write_buffer(0)
        try:
            while self.unsent:
                await (self.drained() if self._drained is not None else asyncio.sleep(0))
        finally:
            self.set_write_buffer(before)

    def go_around(self) -> None:
        """From now on another writer uses the socket: what is put waits until ``come_back``."""
        self._behind = []

    def sent_around(self, size: int) -> None:
        self._written += size

    def come_back(self) -> None:
        """The socket is the transport's again."""
        behind, self._behind = self._behind or [], None
        if self.transport is not None and not self.transport.is_closing():
            for each in behind:
                self.transport.write(each)
        if self._closes_behind:
            self.close_after_flush()

    async def why_gone(self) -> DledgerError:
        """Of a connection that the other side ended: wait until it is known."""
        await asyncio.shield(self.closed)
        return self.gone()

    def gone(self) -> DledgerError:
        if self._alert:
            return AuthenticationFailedError(f"{self.peer}: does not accept the certificate of this side: {self._alert}", address=self.peer)
        if self._foreign:
            text = f"{self.peer}: no dledger listens there: it speaks {self._foreign}; expected the port of a node or name server"
            return UnreachableError(text, address=self.peer)
        return UnreachableError(f"{self.peer}: connection lost", address=self.peer)

    # -- ending

    def not_ours(self, foreign: str) -> None:
        """The other side, which was dialled, speaks something else: waiting callers get that error."""
        self._foreign, self._refused = foreign, True
        self.abort()

    def violate(self, what: str) -> None:
        """The other side does not speak our protocol."""
        violations.log(f"{self.peer} sent {what}: connection closed")
        self._refused = True
        self.abort()

    def refuse(self, error: DledgerError) -> None:
        """Take nothing more from this connection; send the reason, then close it."""
        self._refused = True
        self._drop_buffers()
        if self.raw is not None:  # the other side does not speak our protocol
            self.abort()
            return
        with contextlib.suppress(UnreachableError):
            self.put(ERROR, to_detail(error).SerializeToString())
            self.put(END, b"")
        self.close_after_flush()

    def drop(self, error: DledgerError) -> None:
        """As ``refuse``, and nothing is kept of what has come."""
        self.refuse(error)
        self.receiver.shed()

    def revoke(self, error: DledgerError) -> None:
        """As ``refuse``, for a connection that was in use: what its other side does not read in time is not kept for it."""
        self.refuse(error)
        self._loop.call_later(REVOKED_S, self.abort)

    def close_after_flush(self) -> None:
        """Close once everything written has gone out."""
        if self._behind is not None:
            self._closes_behind = True
        elif self.transport is not None:
            self.transport.close()

    def shut(self) -> bool:
        """Have the kernel take nothing more to be sent, from now on; whether it does not.  Some loops go on writing for a moment after
        ``abort``."""
        found = self.socket
        if found is None:
            return False
        try:
            with socket.fromfd(found.fileno(), found.family, found.type) as same:
                same.shutdown(socket.SHUT_WR)
        except OSError as error:
            return error.errno == errno.ENOTCONN
        return True

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


violations = RareWarning()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        if connection.socket is not None and connection.socket.fileno() > 2:
            close_in_child(connection.socket.fileno())


def fresh(error: DledgerError) -> DledgerError:
    """The same error to be raised again: one that is kept and raised would keep the frames it passed, and what they hold."""
    return type(error)(error.message, **error.details)
