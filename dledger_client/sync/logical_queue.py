"""The synchronous logical queue: the asyncio one on the shared loop thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from dledger_client.aio.logical_queue import LogicalQueueReader as AsyncReader
from dledger_client.aio.logical_queue import LogicalQueueWriter as AsyncWriter
from dledger_client.cluster.metadata import Bootstrap
from dledger_client.fetch.records import NumberedMessage
from dledger_client.message import Message
from dledger_client.runtime.loop_thread import LoopThread


class LogicalQueueWriter:
    """See ``dledger_client.aio.LogicalQueueWriter``; open when made."""

    def __init__(self, bootstrap: Bootstrap, topic: str, **settings: Any) -> None:
        self._thread = LoopThread.shared()
        self._inner = self._thread.call(lambda: AsyncWriter(bootstrap, topic, **settings))
        try:
            self._thread.run(self._inner.open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def next_number(self) -> int:
        return self._inner.next_number

    def send(self, message: Message) -> int:
        """Send one message and wait until a majority has it; its number."""
        return self._thread.run(self._inner.send(message))

    def close(self) -> None:
        if not self._thread.is_inherited:
            self._thread.run(self._inner.close())


class LogicalQueueReader:
    """See ``dledger_client.aio.LogicalQueueReader``."""

    def __init__(self, bootstrap: Bootstrap, topic: str, group: str = "", **settings: Any) -> None:
        self._thread = LoopThread.shared()
        self._inner = self._thread.call(lambda: AsyncReader(bootstrap, topic, group, **settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def next_number(self) -> int:
        return self._inner.next_number

    def seek(self, number: int) -> None:
        self._thread.run(self._inner.seek(number))

    def seek_start(self) -> None:
        self._thread.run(self._inner.seek_start())

    def seek_committed(self) -> None:
        self._thread.run(self._inner.seek_committed())

    def read(self, max_messages: int = 32, wait_ms: int = 0) -> list[NumberedMessage]:
        """The next messages in order; empty when there is none within ``wait_ms``."""
        return self._thread.run(self._inner.read(max_messages, wait_ms))

    def commit(self) -> None:
        self._thread.run(self._inner.commit())

    def close(self) -> None:
        if not self._thread.is_inherited:
            self._thread.run(self._inner.close())
