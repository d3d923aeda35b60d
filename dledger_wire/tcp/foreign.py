"""What the other side of a connection speaks when its bytes are no frames of ours: another program's port, or a client that took ours."""

from __future__ import annotations

SHOWN_BYTES = 8
_BEGINNINGS = (
    (b"HTTP/", "HTTP"),
    (b"\x15\x03", "TLS"),
    (b"\x16\x03", "TLS"),
    (b"SSH-", "SSH"),
    (b"AMQP", "AMQP"),
    (b"\x00\x00\x00", "another protocol, such as Kafka's"),  # a length, where ours has the kind of a frame
)


def spoken(begun: bytes) -> str:
    """The protocol that begins so, with its first bytes."""
    name = next((name for start, name in _BEGINNINGS if begun.startswith(start)), "another protocol")
    return f"{name} (its bytes are {begun[:SHOWN_BYTES].hex(' ')})"
