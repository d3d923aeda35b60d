"""Leases that a node keeps for RocketMQ's gRPC push consumers, which do not say for how long they need a message.

Owns the table of them.  A message is the consumer's for a minute, and for another one as long as the consumer is heard of at this node,
for three hours at most.  Nothing else depends on the table: when the node dies, the messages come back after their minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.remoting.leader import CALLER, Leader
from broker.rocketmq_grpc._pb.definition_pb2 import Code
from broker.rocketmq_grpc.client import Client
from broker.rocketmq_grpc.receipts import receipt_in
from broker.rocketmq_grpc.statuses import StatusError
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller

LEASE_MS = 60_000
LOOK_S = 10.0
RENEW_S = 25.0  # before the minute is over
SILENT_S = 35.0  # a consumer asks for messages, or sends a heartbeat, more often
MOST_S = 3 * 3600.0
MAX_KEPT = 20_000  # of one client, which by default holds some thousand a queue
AT_ONCE = 1_000  # receipts in one call

_logger = logging.getLogger(__name__)

Key = tuple[int, int, int]  # queue, offset, lease


@dataclass(frozen=True, slots=True)
class Held:
    """Whose a lease is."""

    group: str
    topic: str
    incarnation: str


@dataclass(slots=True)
class _Kept:
    """Of one client: when each lease ends, and when it began."""

    seen_s: float
    caller: LocalCaller = field(default_factory=CALLER.get)
    leases: dict[Held, dict[Key, tuple[float, float]]] = field(default_factory=dict)


class Leases:
    """``run`` it until it is cancelled."""

    def __init__(self, leader: Leader, *, invisible_ms: int = LEASE_MS) -> None:
        self._leader, self.invisible_ms = leader, invisible_ms
        self._kept: dict[str, _Kept] = {}  # by client id

    def heard(self, client: Client) -> None:
        """The client is there."""
        kept = self._kept.get(client.client_id)
        if kept is not None:
            kept.seen_s, kept.caller = asyncio.get_running_loop().time(), CALLER.get()

    def seen(self, client: Client) -> None:
        """The client is about to get messages.  StatusError when it has too many."""
        self.heard(client)
        kept = self._kept.get(client.client_id)
        if kept is not None and sum(map(len, kept.leases.values())) >= MAX_KEPT:
            raise StatusError(Code.TOO_MANY_REQUESTS, f"{MAX_KEPT} messages are not acknowledged")

    def keep(self, client: Client, held: Held, receipts: Sequence[pop_pb2.Receipt]) -> None:
        """These are the client's, from now on."""
        now_s = asyncio.get_running_loop().time()
        kept = self._kept.setdefault(client.client_id, _Kept(now_s))
        theirs = kept.leases.setdefault(held, {})
        theirs |= {_key(receipt): (now_s + self.invisible_ms / 1000, now_s) for receipt in receipts}

    def drop(self, client: Client, held: Held, receipts: Sequence[pop_pb2.Receipt]) -> None:
        """The client has said what becomes of these."""
        kept = self._kept.get(client.client_id)
        theirs = kept.leases.get(held) if kept is not None else None
        if theirs is not None:
            for receipt in receipts:
                theirs.pop(_key(receipt), None)

    async def left(self, client: Client) -> None:
        """The client has gone in order: what it has is given back at once."""
        kept = self._kept.pop(client.client_id, None)
        for held, leases in kept.leases.items() if kept is not None else ():
            with contextlib.suppress(DledgerError):
                await self._change(held, list(leases), 0, uncounted=True)

    async def give_back(self, group: str, topic: str, handles: Sequence[str]) -> None:
        """The client never got these."""
        by: dict[str, list[Key]] = {}
        for handle in handles:
            incarnation, receipt = receipt_in(handle)
            by.setdefault(incarnation, []).append(_key(receipt))
        for incarnation, keys in by.items():
            await self._change(Held(group, topic, incarnation), keys, 0, uncounted=True)

    async def run(self) -> None:
        """Renew leases, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for client_id, kept in list(self._kept.items()):
                if asyncio.get_running_loop().time() - kept.seen_s > SILENT_S:
                    del self._kept[client_id]
                    continue
                CALLER.set(kept.caller)
                for held, leases in list(kept.leases.items()):
                    await self._renew(held, leases)
                    if not leases:
                        kept.leases.pop(held, None)

    async def _renew(self, held: Held, leases: dict[Key, tuple[float, float]]) -> None:
        now_s = asyncio.get_running_loop().time()
        for key, (_, since_s) in list(leases.items()):
            if now_s - since_s > MOST_S:
                del leases[key]
        due = [key for key, (end_s, _) in leases.items() if end_s - now_s < RENEW_S + LOOK_S]
        for at in range(0, len(due), AT_ONCE):
            part = due[at : at + AT_ONCE]
            try:
                results = (await self._change(held, part, self.invisible_ms)).results
            except DledgerError as error:
                _logger.debug("leases of group %s are not renewed now: %s", held.group, error.message)
                continue
            for key, result in zip(part, results, strict=True):
                if key not in leases:
                    continue  # acknowledged meanwhile
                if result.HasField("error"):
                    del leases[key]
                else:
                    leases[key] = now_s + self.invisible_ms / 1000, leases[key][1]

    async def _change(self, held: Held, keys: Sequence[Key], invisible_ms: int, *, uncounted: bool = False) -> pop_pb2.ReceiptsResponse:
        request = pop_pb2.ChangeInvisibleRequest(group=held.group, topic=held.topic, incarnation=held.incarnation)
        request.invisible_ms, request.uncounted = invisible_ms, uncounted
        for queue_id, offset, lease in keys:
            request.receipts.add(queue_id=queue_id, offset=offset, lease=lease)
        return await self._leader.call(methods.CHANGE_INVISIBLE, request)


def _key(receipt: pop_pb2.Receipt) -> Key:
    return receipt.queue_id, receipt.offset, receipt.lease
