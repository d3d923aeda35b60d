"""Checks of transactions, for the producers of RocketMQ's clients that are at this node.

Owns one attendance at the leader for each producer group that has a producer here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from broker.remoting.leader import CALLER, Leader
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.rpc.transport import ByteStream

LOOK_S = 0.2  # for producer groups that are new
RETRY_S = 0.5
HEARTBEAT_S = 1.0

_logger = logging.getLogger(__name__)


class Producers(Protocol):
    """Those at this node."""

    @property
    def producer_groups(self) -> set[str]: ...
    def caller_for(self, group: str) -> LocalCaller:
        """One who may attend for a group."""

    async def check(self, group: str, check: transaction_pb2.TransactionCheck) -> None:
        """Ask one of them what became of a transaction."""


class Checks:
    """``name`` distinguishes its producers at the leader; ``run`` it until it is cancelled."""

    def __init__(self, leader: Leader, name: str, producers: Producers) -> None:
        self._leader, self._name, self._producers = leader, name, producers
        self._attending: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Attend for the producer groups that are here, until cancelled."""
        try:
            while True:
                groups = self._producers.producer_groups
                for group in groups - self._attending.keys():
                    self._attending[group] = asyncio.get_running_loop().create_task(self._attend(group), name=f"checks of {group}")
                for group in self._attending.keys() - groups:
                    self._attending.pop(group).cancel()
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._attending.values():
                task.cancel()

    async def _attend(self, group: str) -> None:
        while True:
            term = self._leader.term
            CALLER.set(self._producers.caller_for(group))
            try:
                async with self._leader.stream(methods.JOIN_PRODUCER_GROUP) as stream:
                    join = methods.encode(transaction_pb2.ProducerJoin(producer_group=group, client_id=self._name))
                    await stream.write(join)
                    beating = asyncio.get_running_loop().create_task(_beat(stream, join), name="heartbeats of producers")
                    try:
                        while (data := await stream.read()) is not None:
                            check = methods.JOIN_PRODUCER_GROUP.parse_response(data, "leader")
                            if check.frame:
                                await self._producers.check(group, check)
                    finally:
                        beating.cancel()
            except DledgerError as error:
                if term == self._leader.term:
                    _logger.debug("producers of group %s attend again: %s", group, error.message)
            await asyncio.sleep(RETRY_S)


async def _beat(stream: ByteStream, join: bytes) -> None:
    """Keep attending."""
    with contextlib.suppress(DledgerError):  # the reader learns it, too
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await stream.write(join)
