"""The synchronous pull consumer: the asyncio one on the shared loop thread."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from dledger_client.admin.send_back import SendBackResult
from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_client.cluster.metadata import Bootstrap, TopicQueues
from dledger_client.deprecation import renamed_arguments
from dledger_client.fetch.records import Chunk, QueueOffsets, ReceivedMessage
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.unclosed import warn as warn_unclosed


class PullConsumer:
    """Reads queues by offset; see ``dledger_client.aio.PullConsumer`` for the settings and errors."""

    def __init__(self, bootstrap: Bootstrap, group: str = "", **settings: Any) -> None:
        self._thread = LoopThread.shared()
        self._inner = self._thread.call(lambda: AsyncPullConsumer(bootstrap, group, **settings))
        self._inner.has_outside = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner.described}>"

    def __del__(self) -> None:
        inner = getattr(self, "_inner", None)
        if inner is not None and inner.is_open and not self._thread.is_inherited:
            warn_unclosed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if not self._thread.is_inherited:
            self._thread.run(self._inner.close())

    def topic(self, name: str) -> list[TopicQueues]:
        """The queues of a topic, group by group."""
        return self._thread.run(self._inner.topic(name))

    def replicas(self) -> dict[str, list[str]]:
        """The node ids of every replica group, the leader first."""
        return self._thread.run(self._inner.replicas())

    def offsets(
        self, topic: str, timestamp_ms: int | None = None, *, or_followers: bool | None = None
    ) -> dict[tuple[str, int], QueueOffsets]:
        """By (replica group, queue id): what each readable queue holds; ``or_followers``: as followers know it while nobody leads."""
        return self._thread.run(self._inner.offsets(topic, timestamp_ms, or_followers=or_followers))

    @renamed_arguments(group_name="replica_group")
    def commit(self, positions: Mapping[tuple[str, int], int], *, replica_group: str | None = None, reset: bool = False) -> None:
        """Remember where this consumer group has come to: (topic, queue id) -> next offset to read."""
        self._thread.run(self._inner.commit(positions, replica_group=replica_group, reset=reset))

    def committed(self, topic: str) -> dict[tuple[str, int], int]:
        """By (replica group, queue id): where this consumer group has come to."""
        return self._thread.run(self._inner.committed(topic))

    def send_back(self, topic: str, queue_id: int, offsets: Iterable[int], **how: Any) -> list[SendBackResult]:
        """Give messages that could not be processed back: they come again, later, in this consumer group's retry topic."""
        return self._thread.run(self._inner.send_back(topic, queue_id, offsets, **how))

    def fetch(self, topic: str, queue_id: int, offset: int, max_messages: int = 32, **how: Any) -> list[ReceivedMessage]:
        """Up to ``max_messages`` from ``offset`` on; empty at the end of the queue."""
        return self._thread.run(self._inner.fetch(topic, queue_id, offset, max_messages, **how))

    def fetch_chunks(self, topic: str, queue_id: int, offset: int, max_messages: int = 32, **how: Any) -> list[Chunk]:
        """``fetch`` without its decoding: chunks tell where to read on, and how far behind the replica was."""
        return self._thread.run(self._inner.fetch_chunks(topic, queue_id, offset, max_messages, **how))

    @renamed_arguments(upto="end")
    def read_chunks(self, topic: str, queue_id: int, offset: int, end: int, **how: Any) -> Generator[Chunk]:
        """Everything of a queue from ``offset`` to ``end`` as chunks of raw frames."""
        chunks = self._inner.read_chunks(topic, queue_id, offset, end, **how)
        try:
            while (chunk := self._thread.run(_next(chunks))) is not None:
                yield chunk
        finally:
            self._thread.run(_close(chunks))


async def _next(chunks: Any) -> Chunk | None:
    async for chunk in chunks:
        found: Chunk = chunk
        return found
    return None


async def _close(chunks: Any) -> None:
    await chunks.aclose()
