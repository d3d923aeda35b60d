"""Producers that can be asked about their transactions: the members of each producer group, on the master of one term.

Owns the table and the rotation: each check of a group goes to its next member, so that a member that does not answer is not asked again
at once.  A member is removed when its stream ends, or when it sent nothing for ``SESSION_MS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.support.member_stream import MemberStream
from dledger_wire._pb import transaction_pb2
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError
from dledger_wire.names import check_group
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream

SESSION_MS = 5000
# Checks that may wait for one member that does not read: well below what ends its stream, since other members may answer instead.
MAX_WAITING_CHECKS = 2000
MAX_WAITING_CHECK_BYTES = 8 << 20

_HEARTBEAT = methods.encode(transaction_pb2.TransactionCheck())  # acknowledges a join or a heartbeat


@dataclass(slots=True, eq=False)
class _Member:
    group: str
    stream: MemberStream
    last_seen_ms: int


class ProducerSessions:
    """The members of every producer group, least recently asked first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[_Member, None]] = {}

    def counts(self) -> dict[str, int]:
        """The number of members, by group."""
        return {group: len(members) for group, members in sorted(self._groups.items())}

    def check(self, group: str, offset: int, times: int, frame: bytes) -> bool:
        """Send a transaction check to a member of the group; False when no member can take it."""
        members = self._groups.get(group, {})
        for member in members:
            if member.stream.has_room(MAX_WAITING_CHECKS, MAX_WAITING_CHECK_BYTES):
                members[member] = members.pop(member)  # to the end of the rotation
                check = transaction_pb2.TransactionCheck(half_offset=offset, check_times=times, frame=frame)
                member.stream.send(methods.encode(check))
                return True
        return False

    def expire(self) -> None:
        """Remove the members that sent nothing for ``SESSION_MS``."""
        now_ms = self._clock.monotonic_ms()
        for member in [member for members in self._groups.values() for member in members if now_ms - member.last_seen_ms > SESSION_MS]:
            member.stream.end(NotReadyError(f"no heartbeat from this producer for {SESSION_MS} ms; join again"))
            self._remove(member)

    def end(self, error: DledgerError) -> None:
        """End every stream."""
        for member in [member for members in self._groups.values() for member in members]:
            member.stream.end(error)

    def _remove(self, member: _Member) -> None:
        members = self._groups.get(member.group)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self._groups[member.group]

    async def join(self, join: transaction_pb2.ProducerJoin, stream: ByteStream) -> None:
        """Serve one producer's stream until it ends."""
        member = _Member(check_group(join.producer_group), MemberStream(stream), self._clock.monotonic_ms())
        self._groups.setdefault(member.group, {})[member] = None
        member.stream.send(_HEARTBEAT)
        try:
            await member.stream.serve(self._receive(member))
        finally:
            self._remove(member)

    async def _receive(self, member: _Member) -> None:
        while (message := await member.stream.read()) is not None:
            if methods.decode(transaction_pb2.ProducerJoin, message).producer_group != member.group:
                raise InvalidArgumentError("a producer cannot change its group on one stream")
            member.last_seen_ms = self._clock.monotonic_ms()
            member.stream.send(_HEARTBEAT)
