"""Being asked what became of transactions: a producer's stream to the master of one replica group.

Owns the stream, and starts it again, at whoever is master, for as long as the producer lives.  Beats go both ways, so that a master that
is cut off does not keep a producer that another one wants to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dledger_client.cluster.leader_tracker import LeaderTracker
from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_client.cluster.retry import JitteredBackoff
from dledger_client.fetch.records import Chunk, ReceivedMessage, decode_chunk
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import BusyError, CorruptFrameError, DledgerError, UnreachableError
from dledger_wire.names import HALF_TOPIC
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream

BEAT_S = 1.0
SILENCE_S = 2.5
CLOSE_TIMEOUT_S = 1.0

_logger = logging.getLogger(__name__)


class TransactionCheckStream:
    """``asked`` gets each half message in question; it must not wait."""

    def __init__(self, router: Router, group: str, producer_group: str, client_id: str, asked: Callable[[ReceivedMessage], None]) -> None:
        self._router, self._group, self._asked = router, group, asked
        self._join = transaction_pb2.ProducerJoin(producer_group=producer_group, client_id=client_id).SerializeToString()
        self._leader = LeaderTracker(router, group)

    async def run(self) -> None:
        """Attend until cancelled."""
        pauses, attempt = JitteredBackoff(self._router.random), 0
        while True:
            try:
                await self._attend(await self._leader.address())
            except DledgerError as error:
                if not (error.retriable or error.refresh_route):
                    _logger.warning("transactions at %s: %s", self._group, error.message)
                attempt = 1 if self._leader.works else attempt + 1
                await asyncio.sleep(pauses.pause_ms(attempt, busy=isinstance(error, BusyError)) / 1000)

    async def _attend(self, address: str) -> None:
        stream = methods.JOIN_PRODUCER_GROUP.open(self._router.channel(address))
        beats = asyncio.get_running_loop().create_task(self._beat(stream), name=f"attend at {self._group}")
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    message = await stream.read()
                if message is None:
                    raise UnreachableError(f"{address}: the stream ended", address=address)
                self._leader.answered()
                check = parse(transaction_pb2.TransactionCheck, message, address)
                if check.frame:
                    self._asked(half_message(check, self._group, address))
        except TimeoutError:
            raise UnreachableError(f"{address} said nothing for {SILENCE_S:g} s", address=address) from None
        except CorruptFrameError as error:
            raise UnreachableError(f"{address}: {error.message}", address=address) from None
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            with contextlib.suppress(DledgerError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await stream.close()

    async def _beat(self, stream: ByteStream) -> None:
        while True:
            await stream.write(self._join)
            await asyncio.sleep(BEAT_S)


def half_message(check: transaction_pb2.TransactionCheck, group: str, replica: str) -> ReceivedMessage:
    """The message in question, under the topic and queue it is meant for; its offset is that of the half message."""
    payload = memoryview(len(check.frame).to_bytes(4, "big") + check.frame)

    def decoded(topic: str, queue_id: int) -> Chunk:
        return decode_chunk(
            topic,
            group,
            queue_id,
            replica,
            count=1,
            first_offset=check.half_offset,
            has_offsets=False,
            payload=payload,
            next_offset=check.half_offset + 1,
            max_offset=0,
        )

    stored = decoded(HALF_TOPIC, 0)  # what its frame says of itself is where it waits
    if stored.damaged_offset() is not None:
        raise CorruptFrameError(f"half message {check.half_offset} is not what its CRC or its place says")
    properties = stored.messages()[0].properties
    queue = properties.get("REAL_QID", "")
    return decoded(properties.get("REAL_TOPIC", ""), int(queue) if queue.isdecimal() else 0).messages()[0]
