"""Invariant checks that stay on in production (``assert`` vanishes under ``python -O``)."""

from __future__ import annotations


class InvariantBrokenError(Exception):
    """A bug: the program is in a state its own rules exclude.  Nothing catches it but the supervisor, which stops the node."""


def require(condition: object, text: str, *values: object) -> None:
    """Raise InvariantBrokenError with ``text % values`` unless ``condition`` holds."""
    if not condition:
        raise InvariantBrokenError(text % values if values else text)
