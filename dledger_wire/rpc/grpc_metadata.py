"""Metadata as gRPC carries it, both ways.  Needs no gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def to_wire(metadata: Mapping[str, str]) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata as gRPC takes it: printable ASCII only, so anything else goes as bytes under the same name with -bin."""
    return tuple(
        (key, value) if value.isascii() and value.isprintable() and value == value.strip() else (key + "-bin", value.encode())
        for key, value in metadata.items()
    )


def from_wire(pairs: Sequence[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Metadata as gRPC gives it, with what had to go as bytes under its own name again."""
    return {key.removesuffix("-bin"): value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in pairs or ()}
