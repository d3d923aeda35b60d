"""The synchronous Admin: the asyncio one on the shared loop thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.message_query import QueryResult
from dledger_client.admin.message_trace import Trace
from dledger_client.admin.open_transactions import GroupTransactions
from dledger_client.aio.admin import Admin as AsyncAdmin
from dledger_client.aio.admin import NodeStatus
from dledger_client.cluster.metadata import Bootstrap, TopicQueues
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.loop_thread import LoopThread


class Admin:
    """What an application needs to manage its topics; see ``dledger_client.aio.Admin``."""

    def __init__(self, bootstrap: Bootstrap, **settings: Any) -> None:
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

    def list_topics(self, *, or_followers: bool = False) -> list[TopicQueues]:
        """All topics, by name.  ``or_followers``: while a group has no leader, those its followers know."""
        return self._thread.run(self._inner.list_topics(or_followers=or_followers))

    def describe_topic(self, name: str) -> list[TopicQueues]:
        """A topic's queues, group by group."""
        return self._thread.run(self._inner.describe_topic(name))

    def dead_letters(self, consumer_group: str = "") -> list[DeadLetters]:
        """The dead letters of a consumer group, or of all."""
        return self._thread.run(self._inner.dead_letters(consumer_group))

    def redrive(self, letters: DeadLetters, **how: Any) -> int:
        """Send dead letters to their original topic, or to their group alone."""
        return self._thread.run(self._inner.redrive(letters, **how))

    def transactions(self, producer_group: str = "", *, most: int = 100) -> list[GroupTransactions]:
        """What is open, replica group by replica group."""
        return self._thread.run(self._inner.transactions(producer_group, most=most))

    def query_by_key(self, topic: str, key: str, **limits: int) -> QueryResult:
        """The newest messages of a topic that have ``key`` among their keys."""
        return self._thread.run(self._inner.query_by_key(topic, key, **limits))

    def query_by_id(self, msg_id: str, topic: str = "", *, max_messages: int = 32) -> QueryResult:
        """The messages with this id."""
        return self._thread.run(self._inner.query_by_id(msg_id, topic, max_messages=max_messages))

    def query_by_time(self, topic: str, begin_ms: int, end_ms: int = 0, *, max_messages: int = 32) -> QueryResult:
        """The first messages of a topic stored from ``begin_ms`` to ``end_ms``."""
        return self._thread.run(self._inner.query_by_time(topic, begin_ms, end_ms, max_messages=max_messages))

    def query_by_offset(self, topic: str, queue_id: int, offset: int, *, group: str | None = None) -> ReceivedMessage | None:
        """The message at an offset of a queue."""
        return self._thread.run(self._inner.query_by_offset(topic, queue_id, offset, group=group))

    def trace(self, *, topic: str = "", key: str = "", msg_id: str = "", max_messages: int = 32) -> Trace:
        """What became of messages, by key or by id."""
        return self._thread.run(self._inner.trace(topic=topic, key=key, msg_id=msg_id, max_messages=max_messages))

    def update_group(self, consumer_group: str, **settings: int | bool) -> None:
        """Change settings of a consumer group: ``retry_max_times``, ``consume_enable`` and so on."""
        self._thread.run(self._inner.update_group(consumer_group, **settings))

    def status(self) -> list[NodeStatus]:
        """Every node's status."""
        return self._thread.run(self._inner.status())
