"""One of RocketMQ's consumers as a member of its group: a session at the leader, kept as long as the consumer is there.

Owns the session's stream.  The list of members comes on it, and each change of it is passed on to the consumer, which shares queues out by
itself.  Queues of an orderly consumer are locked by the same session: who joins is no orderly member until it asks for a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from broker.remoting.codes import Request
from broker.remoting.connection import RemotingConnection
from broker.remoting.leader import CALLER, Leader
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream

STRATEGY = "AVG"
RETRY_S = 0.1

_logger = logging.getLogger(__name__)

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer wants of a topic: an expression of tags, or of SQL92."""

    expression: str
    kind: str = "TAG"


class GroupMember:
    """``start`` and ``stop`` may be called at any time; ``held`` has the epochs of the locks it has."""

    def __init__(self, leader: Leader, group: str, client_id: str) -> None:
        self.group, self.client_id = group, client_id
        self.connection: RemotingConnection | None = None
        self.caller = CALLER.get()  # of its last heartbeat
        self.seen_s = 0.0
        self.subscriptions: dict[str, Subscription] = {}
        self.says: dict[str, str] = {}  # how it consumes, in the words of its heartbeats
        self.members: tuple[str, ...] = ()
        self.held: dict[Queue, int] = {}
        self._broadcast = self._orderly = False
        self._leader = leader
        self._task: asyncio.Task[None] | None = None
        self._stream: ByteStream | None = None
        self._joined = asyncio.Event()
        self._granted = asyncio.Event()

    # What the consumer says

    def subscribe(self, subscriptions: dict[str, Subscription], *, broadcast: bool) -> None:
        """Join again when something of it is new: the others are to see it."""
        if (subscriptions, broadcast) == (self.subscriptions, self._broadcast):
            return
        self.subscriptions, self._broadcast = subscriptions, broadcast
        self._join_again()

    def start(self) -> None:
        """Be a member."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._attend(), name=f"remoting member of {self.group}")

    def stop(self) -> None:
        """Leave: the session and its locks end at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _join_again(self) -> None:
        if self._task is not None:
            self.stop()
            self.start()

    async def joined(self, timeout_s: float) -> None:
        """Wait until it is a member, but not for ever: its next heartbeat comes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._joined.wait()

    # Locks

    async def lock(self, queues: Sequence[Queue], timeout_s: float) -> list[Queue]:
        """Those of the queues that it holds, after waiting so long for them; requests for the others are withdrawn."""
        if not self._orderly:
            self._orderly = True
            self._join_again()
        await self.joined(timeout_s)
        wanted = [queue for queue in queues if queue not in self.held]
        if wanted:
            await self._send(wish=sessions_pb2.LockWish(queues=_places(wanted)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while any(queue not in self.held for queue in wanted):
                        self._granted.clear()
                        await self._granted.wait()
            if missing := [queue for queue in wanted if queue not in self.held]:
                await self._send(release=sessions_pb2.LockRelease(queues=_places(missing)))
        return [queue for queue in queues if queue in self.held]

    async def unlock(self, queues: Sequence[Queue]) -> None:
        release = sessions_pb2.LockRelease()
        for topic, queue_id in queues:
            release.queues.add(topic=topic, queue_id=queue_id, epoch=self.held.pop((topic, queue_id), 0))
        await self._send(release=release)

    async def _send(self, **body: object) -> None:
        if self._stream is not None:
            message = sessions_pb2.MemberMessage(**body)  # type: ignore[arg-type]
            await self._stream.write(methods.encode(message))

    # The session

    async def _attend(self) -> None:
        """Be a member until cancelled; join again when the stream ends."""
        try:
            while True:
                CALLER.set(self.caller)
                try:
                    await self._session()
                except DledgerError as error:
                    _logger.info("member %s of group %s joins again: %s", self.client_id, self.group, error.message)
                await asyncio.sleep(RETRY_S)
        finally:
            self._joined.clear()

    async def _session(self) -> None:
        async with self._leader.stream(methods.JOIN_GROUP) as stream:
            self._stream = stream
            beating: asyncio.Task[None] | None = None
            try:
                await stream.write(methods.encode(sessions_pb2.MemberMessage(join=self._join())))
                while (data := await stream.read()) is not None:
                    message = methods.JOIN_GROUP.parse_response(data, "leader")
                    if message.HasField("welcome") and beating is None:
                        self.held = {(lock.topic, lock.queue_id): lock.epoch for lock in message.welcome.locks}
                        beating = asyncio.get_running_loop().create_task(
                            self._beat(stream, message.welcome.heartbeat_ms / 1000), name=f"remoting heartbeats of {self.group}"
                        )
                        self._joined.set()
                    self._received(message)
            finally:
                self._stream = None
                self._joined.clear()
                self.held = {}
                if beating is not None:
                    beating.cancel()

    def _join(self) -> sessions_pb2.SessionJoin:
        rows = [sessions_pb2.SessionSubscription(topic=topic, expression=each.expression) for topic, each in self.subscriptions.items()]
        return sessions_pb2.SessionJoin(
            group=self.group,
            client_id=self.client_id,
            session_id=f"remoting@{self.client_id}"[:255],
            subscriptions=rows,
            broadcast=self._broadcast,
            orderly=self._orderly,
            strategy=STRATEGY,
            known_members=self.members,
        )

    def _received(self, message: sessions_pb2.MasterMessage) -> None:
        if message.HasField("granted"):
            self.held.update({(lock.topic, lock.queue_id): lock.epoch for lock in message.granted.locks})
            self._granted.set()
        elif message.HasField("members"):
            members = tuple(member.client_id for member in message.members.members)
            if members != self.members and self.connection is not None:
                self.connection.notify(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": self.group})
            self.members = members

    async def _beat(self, stream: ByteStream, every_s: float) -> None:
        """Keep the session."""
        for number in count(1):
            await asyncio.sleep(every_s)
            with contextlib.suppress(DledgerError):  # the reader learns it, too
                await stream.write(methods.encode(sessions_pb2.MemberMessage(heartbeat=sessions_pb2.SessionHeartbeat(number=number))))


def _places(queues: Sequence[Queue]) -> list[sessions_pb2.QueuePlace]:
    return [sessions_pb2.QueuePlace(topic=topic, queue_id=queue_id) for topic, queue_id in queues]
