"""PULL_MESSAGE and LITE_PULL_MESSAGE: stored frames of a queue, with the long poll of RocketMQ's consumers.

Owns how a request becomes a Fetch at the leader and its chunks an answer.  The frames go out as they are stored; only what lies around them
is looked at.  A client that is told that its offset does not exist moves it, so that is said only after the leader confirmed that it leads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.group_member import Subscription
from broker.remoting.leader import CALL_S, Leader, read
from broker.remoting.offsets import Offsets
from broker.support.limits import at_most
from dledger_wire._pb import broker_pb2
from dledger_wire.checksum import Buffer
from dledger_wire.errors import OffsetOutOfRangeError
from dledger_wire.java_hash import java_hash
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import from_detail

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4  # flags of a request
DEFAULT_BYTES = 256 << 10
MOST_BYTES = 12 << 20  # with its largest message an answer still fits a frame
MOST_SUSPEND_MS = 25_000  # clients give up after 30 s
EVERYTHING = "*"
MAX_EXPRESSION_CHARS = 16_384  # tags of it are hashed for each pull
TAG, SQL92 = "TAG", "SQL92"


def wait_ms_of(request: Command) -> int:
    """How long a pull waits for messages."""
    return min(max(request.number("suspendTimeoutMillis", 0), 0), MOST_SUSPEND_MS) if request.number("sysFlag", 0) & SUSPEND else 0


@dataclass(slots=True)
class Pulled:
    """The answer to a Fetch: frames back to back in ``frames``."""

    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    count: int = 0
    frames: list[Buffer] = field(default_factory=list)


class Pulls:
    """Serves them for one node."""

    def __init__(self, leader: Leader, clients: Clients, offsets: Offsets) -> None:
        self._leader, self._clients, self._offsets = leader, clients, offsets

    def handlers(self) -> Handlers:
        return {Request.PULL_MESSAGE: self.pull, Request.LITE_PULL_MESSAGE: self.pull}

    async def pull(self, request: Command, client: RemotingConnection) -> Command:
        group, topic, queue_id = request.text("consumerGroup"), request.text("topic"), request.number("queueId")
        flags, committed = request.number("sysFlag", 0), request.number("commitOffset", 0)
        if flags & COMMIT and committed > 0:
            self._offsets.note(group, topic, queue_id, committed)
        fetch = broker_pb2.FetchRequest(
            topic=topic,
            queue_id=queue_id,
            offset=max(request.number("queueOffset"), 0),
            max_messages=max(request.number("maxMsgNums", 32), 1),
            max_bytes=min(request.number("maxMsgBytes", DEFAULT_BYTES), MOST_BYTES),
            wait_ms=wait_ms_of(request),
            group=group,
        )
        subscription = self._subscription(request, client, flags)
        if subscription is not None:
            add_filter(fetch, subscription)
        try:
            return _answer(fetch, await self._pulled(fetch))
        except OffsetOutOfRangeError as error:
            if error.min_offset < 0:
                raise
            return _moved(fetch.offset, error)

    def _subscription(self, request: Command, client: RemotingConnection, flags: int) -> Subscription | None:
        """What of the queue is wanted: as the consumer's heartbeats say, or as the request does."""
        known = self._clients.subscription(client, request.text("consumerGroup"), request.text("topic"))
        if flags & SUBSCRIPTION and (known is None or known.kind == TAG):
            return Subscription(request.text("subscription", EVERYTHING), request.text("expressionType", TAG) or TAG)
        return known

    async def _pulled(self, fetch: broker_pb2.FetchRequest) -> Pulled:
        end_s = asyncio.get_running_loop().time() + fetch.wait_ms / 1000

        async def attempt(left_s: float) -> Pulled:
            fetch.wait_ms = max(0, min(fetch.wait_ms, int((end_s - asyncio.get_running_loop().time()) * 1000)))
            return await self.fetch(fetch, left_s)

        try:
            return await self._leader.until(attempt, fetch.wait_ms / 1000 + CALL_S)
        except OffsetOutOfRangeError:
            # A leader that was deposed, or a new one that has not applied everything, knows less than there is.
            fetch.linearizable, fetch.wait_ms = True, 0
            return await self._leader.until(attempt)

    async def fetch(self, fetch: broker_pb2.FetchRequest, timeout_s: float) -> Pulled:
        """The whole answer of the leader to one request."""
        found = Pulled()
        async with self._leader.stream(methods.FETCH) as stream:
            await stream.write(methods.encode(fetch))
            end = False
            while not end:
                header, payload = envelope.decode(broker_pb2.FetchResponse, await read(stream, timeout_s))
                if header.HasField("error"):
                    raise from_detail(header.error)
                end = header.end
                if header.count:
                    found.frames.append(payload[header.count * (12 if header.has_offsets else 4) :])
                    found.count += header.count
                found.next_offset, found.min_offset, found.max_offset = header.next_offset, header.min_offset, header.max_offset
        return found


def add_filter(fetch: broker_pb2.FetchRequest, wanted: Subscription) -> None:
    """Let the leader leave out what the subscription does not want."""
    if wanted.kind == SQL92:
        fetch.sql = wanted.expression
        return
    at_most(len(wanted.expression), "characters of a subscription", MAX_EXPRESSION_CHARS)
    fetch.tag_hashes.extend(tag_hashes_of(wanted.expression))


def tag_hashes_of(expression: str) -> list[int]:
    """The hashes of the tags that an expression wants; none for every message."""
    tags = [tag.strip() for tag in expression.split("||")]
    return [java_hash(tag) for tag in tags if tag] if expression and EVERYTHING not in tags else []


def _answer(fetch: broker_pb2.FetchRequest, found: Pulled) -> Command:
    code = Answer.SUCCESS
    if not found.count:
        code = Answer.PULL_RETRY_IMMEDIATELY if found.next_offset > fetch.offset else Answer.PULL_NOT_FOUND
    body = found.frames[0] if len(found.frames) == 1 else b"".join(found.frames)
    return Command(code, _places(found.next_offset, found.min_offset, found.max_offset), body)


def _moved(wanted: int, error: OffsetOutOfRangeError) -> Command:
    """The answer to a pull of an offset that the queue does not have."""
    low, high = error.min_offset, error.max_offset
    return Command(Answer.PULL_OFFSET_MOVED, _places(low if wanted < low else high, low, high), remark=error.message)


def _places(next_offset: int, low: int, high: int) -> dict[str, str]:
    found = {"nextBeginOffset": next_offset, "minOffset": low, "maxOffset": high, "suggestWhichBrokerId": 0}
    return {name: str(value) for name, value in found.items()}
