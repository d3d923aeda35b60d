"""What a server grants a connection, before it is authenticated and after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one process, over all its addresses of one kind: those that nodes and clients dial, that of metrics, that of a console.

    Attributes:
        connections: In all.
        per_source: From one address: one of IPv4, a /64 of IPv6.
        reserve: Beyond either, for members of the cluster only.
        unknown: Connections that are not authenticated yet.
        chance_s: When too many have not, the oldest of them gives way to a new one, but not within this time.
        handshake_s: From being accepted to being known: TLS, opening and authentication together.
        stalled_s: A message that has begun brings ``progress`` bytes or its end within that time.
        unread_s: What is written is read at ``progress`` bytes within that time.
        progress: Bytes.
        unsent: Bytes that wait in all for callers that do not read them.
    """

    connections: int = 50_000
    per_source: int = 10_000
    reserve: int = 64
    unknown: int = 2048
    chance_s: float = 1.0
    handshake_s: float = 5.0
    stalled_s: float = 30.0
    unread_s: float = 120.0
    progress: int = 64 << 10
    unsent: int = 512 << 20


DEFAULT_LIMITS = Limits()
