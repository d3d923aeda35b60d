"""A producer's session with one replica group: the id and epoch that its sequences count under.

Owns the registration.  With a stable ``producer_id``, the replica group also returns what earlier processes with that id have stored, and
whether it has forgotten some of it.
"""

from __future__ import annotations

import asyncio

from dledger_client.cluster.router import Router
from dledger_client.producer.settings import ProducerOptions
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import NotReadyError, OutcomeUnknownError
from dledger_wire.rpc import methods

TIMEOUT_MS = 5000


class ProducerSession:
    """``stored``: by topic and queue id, how many messages earlier processes with this producer's id have stored; they may have stored more
    where it ``is_incomplete``."""

    def __init__(self, router: Router, replica_group: str, options: ProducerOptions) -> None:
        self.producer_id = 0
        self.epoch = -1  # not registered yet
        self.stored: dict[tuple[str, int], int] = {}
        self.is_incomplete = False
        self._router, self._replica_group, self._options = router, replica_group, options
        self._registering = asyncio.Lock()

    async def ensure(self) -> bool:
        """Register unless that is done; whether it was done now."""
        async with self._registering:
            if self.epoch >= 0:
                return False
            await self.register()
            return True

    async def register(self) -> None:
        """Register, or get a new epoch: sequences start at 0."""
        request = broker_pb2.InitProducerRequest(
            producer_name=self._options.group, producer_id=self.producer_id, stable_id=self._options.producer_id
        )
        deadline_ms = self._router.clock.monotonic_ms() + TIMEOUT_MS
        try:
            response = await self._router.call_leader(self._replica_group, methods.INIT_PRODUCER, request, deadline_ms=deadline_ms)
        except OutcomeUnknownError as error:  # a registration may be repeated: no message depends on it
            raise NotReadyError(
                f"no majority of replica group {self._replica_group} acknowledged the producer's registration in time"
            ) from error
        self.producer_id, self.epoch = response.producer_id, response.epoch
        self.is_incomplete = response.is_incomplete
        self.stored = {(each.topic, each.queue_id): each.count for each in response.stored}
