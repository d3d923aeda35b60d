"""Producers of transactions that can be asked: who attends, by producer group, on the master of one term.

Owns the table and the turn: each question of a group goes to its next member, so that one that does not answer is not asked again at once.
A member is gone when its stream ends or nothing was heard of it for ``SILENCE_MS``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from broker.groups.session_table import Link
from dledger_wire._pb import transaction_pb2
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError
from dledger_wire.names import check_group
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream

SILENCE_MS = 5000
# Of one member that does not read: well below what ends its stream, since others may answer instead.
HELD_CHECKS = 2000
HELD_BYTES = 8 << 20


@dataclass(slots=True, eq=False)
class _Member:
    group: str
    link: Link
    heard_ms: int


class ProducerSessions:
    """The members of every producer group, in the order of their turns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[_Member, None]] = {}

    def counts(self) -> dict[str, int]:
        """How many attend, by group."""
        return {group: len(members) for group, members in sorted(self._groups.items())}

    def ask(self, group: str, offset: int, times: int, frame: bytes) -> bool:
        """Send a question to a member of the group; False when nobody is there to be asked."""
        members = self._groups.get(group, {})
        member = next((member for member in members if member.link.has_room(HELD_CHECKS, HELD_BYTES)), None)
        if member is None:
            return False
        members[member] = members.pop(member)  # to the end of the line
        check = transaction_pb2.TransactionCheck(half_offset=offset, check_times=times, frame=frame)
        member.link.send(methods.encode(check))
        return True

    def drop_silent(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for member in [member for members in self._groups.values() for member in members if now_ms - member.heard_ms > SILENCE_MS]:
            member.link.end(NotReadyError(f"nothing was heard of this producer for {SILENCE_MS} ms; join again"))
            self._remove(member)

    def end(self, error: DledgerError) -> None:
        """End every stream."""
        for member in [member for members in self._groups.values() for member in members]:
            member.link.end(error)

    def _remove(self, member: _Member) -> None:
        members = self._groups.get(member.group)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self._groups[member.group]

    async def attend(self, join: transaction_pb2.ProducerJoin, stream: ByteStream) -> None:
        """Serve one producer's stream until it ends."""
        member = _Member(check_group(join.producer_group), Link(stream), self._clock.monotonic_ms())
        self._groups.setdefault(member.group, {})[member] = None
        member.link.send(methods.encode(transaction_pb2.TransactionCheck()))
        loop = asyncio.get_running_loop()
        telling = loop.create_task(member.link.write(), name="tell a producer")
        hearing = loop.create_task(self._hear(member, stream), name="hear a producer")
        tasks: list[asyncio.Future[Any]] = [telling, hearing]
        try:
            await asyncio.wait([*tasks, member.link.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            self._remove(member)
        for problem in (member.link.ended.result() if member.link.ended.done() else None, *outcomes):
            if isinstance(problem, Exception):
                raise problem

    async def _hear(self, member: _Member, stream: ByteStream) -> None:
        while (message := await stream.read()) is not None:
            if methods.decode(transaction_pb2.ProducerJoin, message).producer_group != member.group:
                raise InvalidArgumentError("a producer may not change its group on one stream")
            member.heard_ms = self._clock.monotonic_ms()
            member.link.send(methods.encode(transaction_pb2.TransactionCheck()))
