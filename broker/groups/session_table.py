"""The sessions of one term: which members each consumer group has, and which sessions without a stream still own locks.

Owns the table only; nothing here waits or reads a clock.  A session with a stream is a member.  A session that lost its stream stays for as
long as its locks may still be in use: until its owner rejoins, or the session expires.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.support.member_stream import MemberStream
from dledger_wire._pb import sessions_pb2
from dledger_wire.rpc import methods


@dataclass(slots=True, eq=False)
class Session:
    """One member's session.  ``stream`` None: the stream is lost, or the session belongs to an earlier term."""

    group: str
    client_id: str
    session_id: str
    last_seen_ms: int
    stream: MemberStream | None = None
    info: sessions_pb2.GroupMember = field(default_factory=sessions_pb2.GroupMember)

    @property
    def needs_lease(self) -> bool:
        return bool(self.info.orderly)


@dataclass(slots=True)
class GroupSessions:
    """The sessions of one consumer group, by session id; ``expected``: clients that a new master waits for a little;
    ``next_list_ms``: before that the member list is not sent again."""

    sessions: dict[str, Session] = field(default_factory=dict)
    expected: dict[str, None] = field(default_factory=dict)
    next_list_ms: int = 0

    def members(self) -> list[Session]:
        """The sessions that have a stream."""
        return [session for session in self.sessions.values() if session.stream is not None]

    def by_client(self, client_id: str) -> Session | None:
        """The member with that client id."""
        return next((session for session in self.members() if session.client_id == client_id), None)

    def member_infos(self) -> list[sessions_pb2.GroupMember]:
        """The members, by client id."""
        return sorted((session.info for session in self.members()), key=lambda info: info.client_id)

    def members_message(self) -> bytes:
        """The message with the member list."""
        members = sessions_pb2.GroupMembers(members=self.member_infos())
        return methods.encode(sessions_pb2.MasterMessage(members=members))


class SessionTable:
    """All groups of one term."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupSessions] = {}

    def of(self, group: str) -> GroupSessions:
        """The group's sessions; an empty table for a group without any."""
        return self._groups.get(group) or GroupSessions()

    def groups(self) -> list[str]:
        """Groups with members, by name."""
        return sorted(name for name, group in self._groups.items() if group.members())

    def __iter__(self) -> Iterator[Session]:
        return iter([session for group in self._groups.values() for session in group.sessions.values()])

    def add(self, session: Session) -> None:
        self._groups.setdefault(session.group, GroupSessions()).sessions[session.session_id] = session

    def remove(self, session: Session) -> None:
        group = self.of(session.group)
        if group.sessions.get(session.session_id) is session:
            del group.sessions[session.session_id]
            if not group.sessions:
                del self._groups[session.group]
