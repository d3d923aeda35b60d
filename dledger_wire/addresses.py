"""What counts as the address of a node: ``host:port``."""

from __future__ import annotations

import re

_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+")


def is_address(text: str) -> bool:
    """Whether ``text`` is a host (a name, IPv4, [IPv6]) and a port from 1 to 65535, without resolving the name."""
    host, _, port = text.rpartition(":")
    return _HOST.fullmatch(host) is not None and port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
