"""Push consumption with threads: listeners run in ``consume_threads`` threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from dledger_client.aio.push import PushConsumer as AsyncPushConsumer
from dledger_client.consumer.executors import ThreadExecutor
from dledger_client.sync.base import SyncClient


class PushConsumerBase(SyncClient[AsyncPushConsumer]):
    """The hand-written part of ``PushConsumer``."""

    _sync_notes: ClassVar[str] = """
    The listener runs in ``consume_threads`` threads and may use synchronous clients. ``with`` starts the consumer and shuts it down.
    """

    def _open(self, make: Callable[[], AsyncPushConsumer]) -> None:
        super()._open(make)
        self._inner._make_executor = ThreadExecutor

    def start(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._finish(self._inner.shutdown)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._finish(self._inner.shutdown)
