"""Addresses: what counts as that of a node, the host in one, and what a limit for each source counts as one source."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+")


def is_address(text: str) -> bool:
    """Whether ``text`` is a host (a name, IPv4, [IPv6]) and a port from 1 to 65535, without resolving the name."""
    host, _, port = text.rpartition(":")
    return _HOST.fullmatch(host) is not None and port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def host_of(address: str) -> str:
    """The address without its port, which differs at each connection."""
    return address.rpartition(":")[0] or address


def source_of(host: str) -> str:
    """What a limit for each source counts as one: an address of IPv4, a /64 of IPv6."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
