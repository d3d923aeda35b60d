"""The synchronous Admin: the asyncio one on the shared loop thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from dledger_client.aio.admin import Admin as AsyncAdmin
from dledger_client.aio.admin import NodeStatus
from dledger_client.loop_thread import LoopThread
from dledger_client.router import TopicQueues


class Admin:
    """What an application needs to manage its topics; see ``dledger_client.aio.Admin``."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self._thread = LoopThread.shared()
        self._inner = self._thread.call(lambda: AsyncAdmin(bootstrap, **settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if not self._thread.is_inherited:
            self._thread.run(self._inner.close())

    def create_topic(self, name: str, queues: int = 0, **spec: Any) -> TopicQueues:
        """Create a topic.  TopicExistsError unless ``if_not_exists``."""
        return self._thread.run(self._inner.create_topic(name, queues, **spec))

    def update_topic(self, name: str, **spec: Any) -> TopicQueues:
        """Change what is given of a topic."""
        return self._thread.run(self._inner.update_topic(name, **spec))

    def delete_topic(self, name: str, *, group: str = "") -> None:
        """Delete a topic and its messages."""
        self._thread.run(self._inner.delete_topic(name, group=group))

    def list_topics(self) -> list[TopicQueues]:
        """All topics, by name."""
        return self._thread.run(self._inner.list_topics())

    def describe_topic(self, name: str) -> list[TopicQueues]:
        """A topic's queues, group by group."""
        return self._thread.run(self._inner.describe_topic(name))

    def status(self) -> list[NodeStatus]:
        """Every node's status."""
        return self._thread.run(self._inner.status())
