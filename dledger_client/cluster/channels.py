"""The channels of one client: one to each address that it talks to.

Owns the event loop that the client belongs to, which is the one of its first connection: asyncio's texts about another one name no client.
A channel has connections only while it is used: the network closes the one for calls when none was made for a while.
"""

from __future__ import annotations

import asyncio

from dledger_wire.errors import ClientClosedError
from dledger_wire.rpc.transport import Channel, Network


class Channels:
    """Made at first use, closed together."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._channels: dict[str, Channel] = {}
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
