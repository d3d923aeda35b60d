"""What counts as the address of a node: ``host:port``."""

from __future__ import annotations


def is_address(text: str) -> bool:
    """Whether ``text`` is a host and a port from 1 to 65535, as far as can be told without asking."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
