"""Who attends: the sessions of one term, and what the members of a consumer group are told of each other.

Owns the table only; nothing here waits or reads a clock.  A session with a link is a member.  One whose link is lost stays for as long as
its locks may still be in use: until its owner is back, or its time is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import DledgerError, NotReadyError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream

# What may wait for a member that does not read.
MAX_WAITING = 5000
MAX_WAITING_BYTES = 16 << 20


class Link:
    """The sending side of one stream.  ``ended``: resolved with the error the member is told, or None, when the stream is to end.

    A member that writes and does not read is sent things until its link is full; then the stream ends.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self.ended: asyncio.Future[DledgerError | None] = asyncio.get_running_loop().create_future()

    def has_room(self, messages: int, size_bytes: int) -> bool:
        """Whether no more than that waits to be sent."""
        return len(self._waiting) <= messages and self._waiting_bytes <= size_bytes

    def send(self, message: bytes) -> None:
        if self.ended.done():
            return
        if not self.has_room(MAX_WAITING, MAX_WAITING_BYTES):
            self.end(NotReadyError(f"{len(self._waiting)} messages wait for this member to read them; join again"))
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        self._news.set()

    def end(self, error: DledgerError | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    async def write(self) -> None:
        """Send what there is to send, until cancelled."""
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message)
                await self._stream.write(message)
            self._news.clear()
            await self._news.wait()


@dataclass(slots=True, eq=False)
class Session:
    """One member's session; ``link`` None: its stream is lost, or it belongs to a term before this one."""

    group: str
    client_id: str
    session_id: str
    heard_ms: int
    link: Link | None = None
    told: sessions_pb2.GroupMember = field(default_factory=sessions_pb2.GroupMember)

    @property
    def needs_lease(self) -> bool:
        return bool(self.told.orderly)


@dataclass(slots=True)
class Members:
    """The sessions of one consumer group, by session id; ``expected``: clients that a new master waits for a little."""

    sessions: dict[str, Session] = field(default_factory=dict)
    expected: dict[str, None] = field(default_factory=dict)

    def attending(self) -> list[Session]:
        return [session for session in self.sessions.values() if session.link is not None]

    def by_client(self, client_id: str) -> Session | None:
        """The member with that client id."""
        return next((session for session in self.attending() if session.client_id == client_id), None)

    def told(self) -> bytes:
        """What every member is told."""
        members = sorted((session.told for session in self.attending()), key=lambda told: told.client_id)
        return methods.encode(sessions_pb2.MasterMessage(members=sessions_pb2.GroupMembers(members=members)))


class SessionTable:
    """All groups of one term."""

    def __init__(self) -> None:
        self._groups: dict[str, Members] = {}

    def of(self, group: str) -> Members:
        """The group's sessions; for a group without any, a table of nobody."""
        return self._groups.get(group) or Members()

    def groups(self) -> list[str]:
        """Groups with members, by name."""
        return sorted(name for name, members in self._groups.items() if members.attending())

    def __iter__(self) -> Iterator[Session]:
        return iter([session for members in self._groups.values() for session in members.sessions.values()])

    def add(self, session: Session) -> None:
        self._groups.setdefault(session.group, Members()).sessions[session.session_id] = session

    def remove(self, session: Session) -> None:
        members = self.of(session.group)
        if members.sessions.get(session.session_id) is session:
            del members.sessions[session.session_id]
            if not members.sessions:
                del self._groups[session.group]
