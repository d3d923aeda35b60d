"""Polled consumption from a thread: callbacks run in the thread that polls, and may use the consumer."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from dledger_client.aio.polled import IN_HAND, Call
from dledger_client.aio.polled import Consumer as AsyncConsumer
from dledger_client.fetch.arrow_types import POLLED_COLUMNS, ArrowTable, arrow_table
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.argument_ranges import MAX_U32, within
from dledger_client.sync.base import SyncClient
from dledger_wire.errors import ClientClosedError


class ConsumerBase(SyncClient[AsyncConsumer]):
    """The hand-written part of ``Consumer``."""

    _sync_notes: ClassVar[str] = """
    Callbacks run in the thread that polls. Membership is kept in the background, however long a message takes.
    """

    def start(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close(is_consumed=kind is None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            while (message := self._inner._polling.next()) is None:
                self._filled(IN_HAND, None)
        except ClientClosedError:
            raise StopIteration from None
        return message

    def _sync_poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[ReceivedMessage]:
        within(1, MAX_U32, max_messages=max_messages)
        within(0, MAX_U32, timeout_ms=timeout_ms)
        deadline_ms = self._inner._router.clock.monotonic_ms() + timeout_ms
        while self._filled(max_messages, deadline_ms):
            if messages := self._inner._polling.give():
                return messages
        return []

    def _sync_poll_arrow(
        self, max_messages: int = 100_000, timeout_ms: int = 1_000, *, columns: Sequence[str] = POLLED_COLUMNS
    ) -> ArrowTable:
        arrow_table((), columns)
        return arrow_table(self._sync_poll(max_messages, timeout_ms), columns)

    def _filled(self, max_messages: int, deadline_ms: int | None) -> bool:
        while not isinstance(found := self._run(self._inner._fill(max_messages, deadline_ms)), bool):
            self._make(found)
        return found

    def _make(self, call: Call) -> None:
        try:
            call()
        finally:
            self._call(self._inner._polling.told)

    def _sync_close(self) -> None:
        self._close(is_consumed=False)

    def _close(self, *, is_consumed: bool) -> None:
        if self._thread.is_inherited:
            return
        try:
            if (call := self._call(lambda: self._inner._last_call(is_consumed=is_consumed))) is not None:
                self._make(call)
        finally:
            self._finish(self._inner._end_polling)
