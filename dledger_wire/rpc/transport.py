"""The RPC seam: unary calls and bidirectional byte streams by method name, independent of what carries them.

Owns the interfaces only.  ``dledger_wire/tcp/network.py`` implements them, ``dledger_wire/rpc/grpc_server.py`` those of a server; the
simulator does over its own network, so the same broker services, Raft links and clients run in both.  Methods are full gRPC paths
(``dledger_wire/rpc/methods.py`` has ours).
A handler that raises a ``DledgerError`` makes the caller's side raise the same error; any other failure of the connection is
``UnreachableError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from dledger_wire.rpc.delivery import Take
from dledger_wire.security.principal import Principal

MAX_MESSAGE_BYTES = 64 << 20  # of one message, in either direction

UnaryHandler = Callable[[bytes, "CallContext"], Awaitable[bytes]]
StreamHandler = Callable[["ByteStream", "CallContext"], Awaitable[None]]


class CallContext(Protocol):
    """The caller: ``peer`` is its transport address, ``metadata`` what it sent along (lower-case keys), ``principal`` who it has
    proved to be."""

    @property
    def peer(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...
    @property
    def principal(self) -> Principal: ...


class ByteStream(Protocol):
    """One end of a bidirectional stream of messages.  Reading and writing may run concurrently, each from one task.

    ``receive`` and ``write_now`` do the same as ``read`` and ``write`` without a task that is woken for each message.
    """

    async def read(self) -> bytes | None:
        """The next message, or None when the other side finished.  Raises UnreachableError when the connection broke."""
        ...

    async def receive(self, take: Take) -> bool:
        """Give each message to ``take`` as soon as it is there, until that returns False; whether it did, else the other side finished.

        Raises what ``read`` does, and what ``take`` raises.  What follows a message that ``take`` wanted to be the last one waits, as long
        as nothing is read.  ``take`` may be called while this is awaited only, in a callback of the event loop.
        """
        ...

    async def write(self, message: bytes) -> None:
        """Send one message; waits while the receiver is slow (flow control).  Over TCP, nothing of it leaves when this fails."""
        ...

    def write_now(self, message: bytes) -> bool:
        """Send one message if nothing has to be waited for; False: nothing was sent, ``write`` sends it or says why it cannot be.

        Not while a ``write`` is under way.
        """
        ...

    async def close(self) -> None:
        """Finish this side.  Idempotent."""
        ...


@runtime_checkable
class TimedStream(Protocol):
    """A ``ByteStream`` that knows how long its messages are under way: a large one may have waited to be read.

    ``since_s``: when that given last began to come, by the clock of the event loop; 0: just now.
    """

    since_s: float


@runtime_checkable
class RecallingStream(Protocol):
    """A ``ByteStream`` that knows what has not left yet."""

    def recall(self) -> bool:
        """Break the connection if the message written last has not left whole: then the other side never gets it.  Whether that was so."""
        ...


class Channel(Protocol):
    """A connection to one address; reconnects by itself."""

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes: ...
    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream: ...
    async def close(self) -> None: ...


class Server(Protocol):
    """Serves registered handlers on one address."""

    def add_unary(self, method: str, handler: UnaryHandler) -> None: ...
    def add_stream(self, method: str, handler: StreamHandler) -> None: ...
    async def start(self) -> None:
        """Listen.  Raises AddressInUseError when the port is taken."""
        ...

    async def stop(self, grace_s: float) -> None: ...


class WrappedServer:
    """Passes everything on to another server: the base of those that look at each call.  Implements ``Server``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._server.add_unary(method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._server.add_stream(method, handler)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)


class Network(Protocol):
    """Makes channels and servers; addresses are ``host:port``."""

    def connect(self, address: str) -> Channel: ...
    def serve(self, address: str) -> Server: ...


@runtime_checkable
class CertifiedNetwork(Protocol):
    """A network that sees the certificate of the answering side."""

    def connect_to(self, address: str, answering: Principal) -> Channel:
        """A channel on which calls fail with AuthenticationFailedError when another node than ``answering`` answers."""
        ...


def connect_to(network: Network, address: str, answering: Principal) -> Channel:
    """A channel to ``answering``, verified where the network can: a process that serves at the address of a replica with a
    certificate of the cluster would be sent the log otherwise, and could give another one in its place."""
    return network.connect_to(address, answering) if isinstance(network, CertifiedNetwork) else network.connect(address)
