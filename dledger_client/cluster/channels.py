"""The channels of one client: one to each address that it talks to.

A channel has connections only while it is used: the network closes the one for calls when none was made for a while.
"""

from __future__ import annotations

from dledger_wire.errors import ClientClosedError
from dledger_wire.rpc.transport import Channel, Network


class Channels:
    """Made at first use, closed together."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._channels: dict[str, Channel] = {}
        self._closed = False

    def to(self, address: str) -> Channel:
        """The channel to ``address``.  ClientClosedError once the client is closed."""
        self.require_open()
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._network.connect(address)
        return channel

    @property
    def is_open(self) -> bool:
        """Whether there are connections to close."""
        return bool(self._channels)

    def require_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    def refuse(self) -> None:
        """No connection is opened any more: the client closes."""
        self._closed = True

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
