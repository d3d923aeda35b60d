"""The channels of one client: the addresses it begins with, and one channel to each address that it talks to.

Owns the event loop that the client belongs to, which is the one of its first connection: asyncio's texts about another one name no client.
A channel has connections only while it is used: the network closes the one for calls when none was made for a while.  Owns also the order
in which several addresses are asked one question: the next when one has failed, or in parallel when none has answered for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from dledger_wire.addresses import is_address
from dledger_wire.errors import AuthenticationFailedError, ClientClosedError, DledgerError, InvalidArgumentError, PermissionDeniedError
from dledger_wire.rpc.transport import Channel, Network

Bootstrap: TypeAlias = str | Sequence[str]  # host:port,host:port or a list of them


def parse_bootstrap(bootstrap: Bootstrap) -> list[str]:
    """The addresses of ``host:port,host:port``, or of a list of them.  Raises InvalidArgumentError."""
    if isinstance(bootstrap, list | tuple) and all(isinstance(each, str) for each in bootstrap):
        bootstrap = ",".join(bootstrap)
    if not isinstance(bootstrap, str):
        raise InvalidArgumentError(f"bootstrap {bootstrap!r}: expected host:port,host:port,...")
    addresses = list(dict.fromkeys(part.strip() for part in bootstrap.split(",") if part.strip()))
    for address in addresses:
        if not is_address(address):
            raise InvalidArgumentError(f"bootstrap {bootstrap!r}: {address!r} is not host:port; expected host:port,host:port,...")
    if not addresses:
        raise InvalidArgumentError(f"bootstrap {bootstrap!r}: no address; expected host:port,host:port,...")
    return addresses


MAX_REFUSALS = 2  # a password that two nodes do not accept is wrong: the others are not asked, nor is it tried again
HEDGE_S = 0.15  # without an answer by then, the next address is asked in parallel

Answer = TypeVar("Answer")


async def ask_in_turn(
    next_address: Callable[[], str | None], ask: Callable[[str], Coroutine[Any, Any, Answer]], problems: list[DledgerError]
) -> tuple[str, Answer] | None:
    """The first answer and its sender; None when there was none, with the reasons in ``problems``.

    ``next_address`` returns the next address, None for the end; it is called again after every answer, which may have named others.
    """
    asked: dict[asyncio.Task[Answer], str] = {}
    try:
        while True:
            address = next_address() if _refusals(problems) < MAX_REFUSALS else None
            if address is not None:
                asked[asyncio.ensure_future(ask(address))] = address
            if not asked:
                return None
            await asyncio.wait(asked, timeout=None if address is None else HEDGE_S, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                answered = asked.pop(task)
                error = task.exception()
                if error is None:
                    return answered, task.result()
                if not isinstance(error, DledgerError):
                    raise error
                problems.append(error)
    finally:
        drop(*asked)


def _refusals(problems: Sequence[DledgerError]) -> int:
    return sum(isinstance(error, AuthenticationFailedError) for error in problems)


def refused(problems: Sequence[DledgerError]) -> DledgerError | None:
    """The error of a node that does not know the caller, or refuses it, or of a closed client: no other node will answer otherwise."""
    final = AuthenticationFailedError | ClientClosedError | PermissionDeniedError
    return next((error for error in problems if isinstance(error, final)), None)


def drop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks whose outcome does not matter any more, also in a coroutine that is being closed, which may not wait for them."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


class Channels:
    """Made at first use, closed together."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._channels: dict[str, Channel] = {}
        self._left: set[asyncio.Task[None]] = set()  # they close channels that were given up
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def to(self, address: str) -> Channel:
        """The channel to ``address``.  ClientClosedError once the client is closed."""
        self.require_open()
        channel = self._channels.get(address)
        if channel is None:
            self._loop = asyncio.get_running_loop()
            channel = self._channels[address] = self._network.connect(address)
        return channel

    def give_up(self, address: str) -> None:
        """Connect anew at the next use: another node than the one of this address is at the other end.  What is under way there breaks."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            closing = asyncio.get_running_loop().create_task(channel.close(), name=f"give up {address}")
            self._left.add(closing)
            closing.add_done_callback(self._left.discard)

    @property
    def is_open(self) -> bool:
        """Whether there are connections to close."""
        return bool(self._channels)

    def require_open(self) -> None:
        """ClientClosedError once the client is closed.  RuntimeError on another event loop than before."""
        if self._closed:
            raise ClientClosedError("the client is closed")
        self.require_loop()

    def require_loop(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            what = "has ended" if self._loop.is_closed() else "is not this one"
            raise RuntimeError(f"this client was first used on an event loop that {what}; make one in each asyncio.run, and close it there")

    def refuse(self) -> None:
        """No connection is opened any more: the client closes."""
        self._closed = True
        self.require_loop()

    async def close(self) -> None:
        self.refuse()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
        await asyncio.gather(*self._left)
