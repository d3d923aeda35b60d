"""Receiving from threads: the loop over a consumer."""

from __future__ import annotations

from typing import Self

from dledger_client.aio.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from dledger_client.consumer.leased_messages import LeasedMessage
from dledger_client.sync.base import SyncClient


class SimpleConsumerBase(SyncClient[AsyncSimpleConsumer]):
    """The hand-written part of ``SimpleConsumer``."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LeasedMessage:
        try:
            return self._run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
