"""The synchronous push consumer: the asyncio one on the shared loop thread, its listener in threads of its own."""

from __future__ import annotations

from types import TracebackType
from typing import Self, Unpack

from dledger_client.aio.push import PushConsumer as AsyncPushConsumer
from dledger_client.cluster.metadata import Bootstrap
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import ThreadExecutor
from dledger_client.consumer.listener import Listener
from dledger_client.consumer.settings import PushSettings
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.unclosed import warn as warn_unclosed


class PushConsumer:
    """Gives messages to ``listener(messages, context)`` in ``consume_threads`` threads; see ``dledger_client.aio.PushConsumer`` for the
    settings.  The listener may use synchronous clients."""

    def __init__(self, bootstrap: Bootstrap, group: str, listener: Listener | None = None, **settings: Unpack[PushSettings]) -> None:
        self._thread = LoopThread.shared()
        self._inner = self._thread.call(lambda: AsyncPushConsumer(bootstrap, group, listener, **settings))
        self._inner._make_executor = ThreadExecutor
        self._inner.has_outside = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner.described}>"

    def __del__(self) -> None:
        inner = getattr(self, "_inner", None)
        if inner is not None and inner.is_running and not self._thread.is_inherited:
            warn_unclosed(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def subscribe(self, topic: str, expression: str = "*", *, sql: str = "") -> None:
        """Before ``start``: consume this topic too."""
        self._inner.subscribe(topic, expression, sql=sql)

    def set_listener(self, listener: Listener) -> None:
        """Before ``start``: who gets the messages."""
        self._inner.listener = listener

    @property
    def client_id(self) -> str:
        """This member's name in the group."""
        return self._inner.client_id

    def start(self) -> None:
        """Join the group and begin."""
        self._thread.run(self._inner.start())

    def assigned(self) -> list[MessageQueue]:
        """The queues that are consumed here now."""
        return self._thread.call(self._inner.assigned)

    def shutdown(self) -> None:
        """Wait for listeners at work, commit, leave.  Idempotent."""
        if not self._thread.is_inherited:
            self._thread.run(self._inner.shutdown())

    close = shutdown
