"""Messages that end with bytes of files: a stream may send those without taking them into memory.

Owns the interfaces.  A stream that can is a ``StoredSender``; over TLS, by gRPC and wherever else bytes have to pass through this
process, messages are written whole.  Why: docs/adr/0033.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable


class SocketHandle(Protocol):
    """A socket that does not block, and is not closed while anybody holds this: its number belongs to nothing else meanwhile."""

    def fileno(self) -> int: ...


class OpenBytes(Protocol):
    """Stored bytes, while what they lie in is kept open."""

    async def send(self, target: SocketHandle, done: int) -> int:
        """Send what follows the first ``done`` bytes; how many went, 0 when the socket takes none now.

        OSError of the file or the socket.
        """
        ...

    async def read(self, done: int) -> bytes:
        """All that follows the first ``done`` bytes.  DledgerError when they cannot be read."""
        ...


class StoredBytes(Protocol):
    """Bytes that lie in files, one piece after the other."""

    @property
    def size(self) -> int: ...
    def opened(self) -> AbstractAsyncContextManager[OpenBytes]:
        """Keep the files open, even if they are removed.  DledgerError when they are gone."""
        ...


@runtime_checkable
class StoredSender(Protocol):
    """A ``ByteStream`` that may send stored bytes by itself."""

    @property
    def sends_stored(self) -> bool:
        """Whether it does on this connection."""
        ...

    async def write_stored(self, head: bytes, stored: StoredBytes) -> None:
        """As ``ByteStream.write``, for the message that is ``head`` and then the stored bytes.

        An error once the message has begun breaks the connection: what was announced can no longer be sent.
        """
        ...


def sender_of(stream: object) -> StoredSender | None:
    """The stream, if it sends stored bytes by itself."""
    return stream if isinstance(stream, StoredSender) and stream.sends_stored else None
