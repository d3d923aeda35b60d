"""Transaction checks: a producer's stream to the leader of one replica group, which asks for the state of open transactions.

Owns the producer's registration there, for as long as the producer lives.  Both sides send heartbeats, so that a leader that was cut off
does not keep a producer from its successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dledger_client.cluster.leader_stream import CHECK_SILENCE, LeaderStream
from dledger_client.cluster.router import Router
from dledger_client.fetch.records import Chunk, ChunkPlace, ReceivedMessage, decode_chunk
from dledger_wire._pb import broker_pb2, transaction_pb2
from dledger_wire.errors import CorruptFrameError, DledgerError, UnreachableError
from dledger_wire.names import HALF_TOPIC
from dledger_wire.rpc import methods

HEARTBEAT_S = 1.0

_logger = logging.getLogger(__name__)


class TransactionCheckStream:
    """``on_check`` gets each half message in question; it must not block."""

    def __init__(
        self, router: Router, replica_group: str, producer_group: str, client_id: str, on_check: Callable[[ReceivedMessage], None]
    ) -> None:
        self._replica_group, self._on_check = replica_group, on_check
        self._join = transaction_pb2.ProducerJoin(producer_group=producer_group, client_id=client_id).SerializeToString()
        client = f"transaction producers {producer_group}"
        self._stream = LeaderStream(router, replica_group, methods.JOIN_PRODUCER_GROUP, CHECK_SILENCE, client)
        self._warned = ""  # of what, since the leader answered last

    async def run(self) -> None:
        """Stay registered until cancelled."""
        while True:
            try:
                await self._stream.locate()
                await self._serve()
            except DledgerError as error:
                if not (error.retriable or error.refresh_route) and error.message != self._warned:
                    self._warned = error.message
                    _logger.warning("transaction checks of %s: %s", self._replica_group, error.message)
                await self._stream.back_off(error)

    async def _serve(self) -> None:
        stream = self._stream
        stream.open()
        heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats(), name=f"heartbeats to {self._replica_group}")
        try:
            while True:
                message = await stream.read_heartbeat()
                stream.confirm()
                self._warned = ""
                check = methods.JOIN_PRODUCER_GROUP.parse_response(message, stream.address)
                if check.frame:
                    self._on_check(half_message(check, self._replica_group, stream.address))
        except CorruptFrameError as error:
            raise UnreachableError(f"{stream.address}: {error.message}", address=stream.address) from None
        finally:
            heartbeats.cancel()
            await asyncio.gather(heartbeats, return_exceptions=True)
            await stream.close()

    async def _send_heartbeats(self) -> None:
        while True:
            await self._stream.write(self._join)
            await asyncio.sleep(HEARTBEAT_S)


def half_message(check: transaction_pb2.TransactionCheck, replica_group: str, replica: str) -> ReceivedMessage:
    """The message in question, under its real topic and queue; its offset is that of the half message."""
    payload = memoryview(len(check.frame).to_bytes(4, "big") + check.frame)
    header = broker_pb2.FetchResponse(count=1, first_offset=check.half_offset, next_offset=check.half_offset + 1)

    def decoded(topic: str, queue_id: int) -> Chunk:
        return decode_chunk(ChunkPlace(topic, replica_group, queue_id, replica), header, payload)

    stored = decoded(HALF_TOPIC, 0)  # the frame names the half topic, where it is stored
    if stored.damaged_offset() is not None:
        raise CorruptFrameError(f"half message {check.half_offset} does not match its CRC or its position")
    properties = stored.messages()[0].properties
    queue = properties.get("REAL_QID", "")
    return decoded(properties.get("REAL_TOPIC", ""), int(queue) if queue.isdecimal() else 0).messages()[0]
