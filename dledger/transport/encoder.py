"""The bytes of messages to peers: append requests take theirs from the log, everything else has none but its own."""

from __future__ import annotations

from collections.abc import Callable

from dledger.clock.group_time import Clocks
from dledger.core.messages import AppendRequest, Message
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.transport import codec


class Encoder:
    """Encodes the messages of one core.  While it has no log (it is being replaced) no entries are sent."""

    def __init__(self, log: Log, clocks_for: Callable[[Message], Clocks | None]) -> None:
        self._log: Log | None = log
        self._clocks_for = clocks_for
        self._encoded: tuple[tuple[int, int, int, int], bytes] | None = None

    def use(self, log: Log | None) -> None:
        """Entries come from ``log`` from now on."""
        self._log, self._encoded = log, None

    def encode_now(self, message: Message) -> bytes | None:
        """The message as it travels, without its entries being read from a file; None when that would be necessary."""
        if not isinstance(message, AppendRequest) or not message.entries:
            return codec.encode(message, clocks=self._clocks_for(message))
        return self._known(message) or self._joined(message, self._cached(message))

    async def encode(self, message: Message) -> bytes | None:
        """The message as it travels; None when its entries are no longer those of the log."""
        if not isinstance(message, AppendRequest) or not message.entries:
            return codec.encode(message, clocks=self._clocks_for(message))
        return self._known(message) or self._joined(message, await self._read(message))

    def _known(self, request: AppendRequest) -> bytes | None:
        """The same entries were encoded for the other follower."""
        return self._encoded[1] if self._encoded is not None and self._encoded[0] == _key(request) else None

    def _joined(self, request: AppendRequest, entries: list[RawEntry] | None) -> bytes | None:
        metas = request.entries
        if entries is None or len(entries) != len(metas) or any(a.term != b.term for a, b in zip(entries, metas, strict=True)):
            return None
        data = codec.encode(request, entries)
        self._encoded = (_key(request), data)
        return data

    def _log_with(self, request: AppendRequest) -> Log | None:
        """The log, if it reaches over all entries of a request."""
        log, before = self._log, request.prev.index
        return log if log is not None and log.first_index <= before + 1 and before + len(request.entries) <= log.last.index else None

    def _cached(self, request: AppendRequest) -> list[RawEntry] | None:
        log, first, last_index = self._log_with(request), request.prev.index + 1, request.prev.index + len(request.entries)
        return None if log is None else log.cached(first, sum(meta.size_bytes for meta in request.entries), last_index)

    async def _read(self, request: AppendRequest) -> list[RawEntry] | None:
        log, first, metas = self._log_with(request), request.prev.index + 1, request.entries
        last_index = request.prev.index + len(metas)
        if log is None:
            return None
        entries = await log.read(first, sum(meta.size_bytes for meta in metas), last_index)
        while len(entries) < len(metas):
            more = await log.read(first + len(entries), sum(meta.size_bytes for meta in metas[len(entries) :]), last_index)
            if not more:
                return None
            entries = [*entries, *more]
        return entries


def _key(request: AppendRequest) -> tuple[int, int, int, int]:
    return (request.term, request.prev.index, len(request.entries), request.commit)
