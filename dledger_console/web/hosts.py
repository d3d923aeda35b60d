"""Which hosts and origins a browser may name: the checks against DNS rebinding and requests of other sites.

A page of another site can reach this port only under a name that its owner controls (its browser says so in ``Host``), or with its own
origin in ``Origin``.  An IP address cannot be such a name, so addresses are taken, and beside them only names that are known here.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit


def own_names() -> frozenset[str]:
    """Names of this machine, lower case; no name server is asked."""
    return frozenset(name.lower() for name in ("localhost", socket.gethostname()) if name)


def host_of(value: str) -> str | None:
    """The host in a ``Host`` header, lower case, without port and brackets; None when it is no such header."""
    if any(mark in value for mark in "/?#@\\"):
        return None
    try:
        parts = urlsplit(f"//{value}")
        _ = parts.port  # ValueError for what is no port
    except ValueError:
        return None
    return parts.hostname


def is_host_allowed(value: str, names: Collection[str]) -> bool:
    """Whether a ``Host`` header is an IP address or one of ``names``."""
    host = host_of(value)
    if not host:
        return False
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.rstrip(".") in names
    return True


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an ``Origin`` header is the site that a ``Host`` header names; the scheme may be that of a proxy."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()
