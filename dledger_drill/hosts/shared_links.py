"""Links that several faults strike at once: each fault takes back what it did itself, and what another one did stays.

Owns what is in force between two machines: the worst of what the faults want there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dledger_drill.hosts.machine import CountedLinks, Links

Pair = tuple[str, str]  # from, to


@dataclass(frozen=True, slots=True)
class _Shape:
    cut: bool = False
    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float | None = None

    def with_(self, other: _Shape) -> _Shape:
        rates = [rate for rate in (self.bytes_per_s, other.bytes_per_s) if rate is not None]
        return _Shape(
            self.cut or other.cut,
            max(self.loss, other.loss),
            max(self.delay_ms, other.delay_ms),
            max(self.jitter_ms, other.jitter_ms),
            max(self.reorder, other.reorder),
            min(rates, default=None),
        )


class SharedLinks:
    """``hold`` is for one fault; ``links`` are not told anything by others meanwhile."""

    def __init__(self, links: CountedLinks) -> None:
        self._links = links
        self._lock = threading.Lock()
        self._held: list[HeldLinks] = []

    def hold(self) -> HeldLinks:
        return HeldLinks(self)

    def put(self, held: HeldLinks, pair: Pair, shape: _Shape | None) -> None:
        """What one fault wants of a link; None: nothing any more."""
        with self._lock:
            if pair not in held.struck_before:
                held.struck_before[pair] = self._links.struck(*pair)
            if shape is None:
                held.wanted.pop(pair, None)
            else:
                held.wanted[pair] = shape
            others = [each for each in self._held if each is not held]
            self._held = [*others, held] if held.wanted else others
            together = None
            for each in self._held:
                if pair in each.wanted:
                    together = each.wanted[pair].with_(together or _Shape())
            self._apply(pair, together)

    def struck(self, pair: Pair) -> int:
        return self._links.struck(*pair)

    def _apply(self, pair: Pair, shape: _Shape | None) -> None:
        if shape is None:
            self._links.restore(*pair)
        elif shape.cut:
            self._links.cut(*pair)
        else:
            self._links.restore(*pair)  # it may have been cut
            self._links.shape(
                *pair,
                loss=shape.loss,
                delay_ms=shape.delay_ms,
                jitter_ms=shape.jitter_ms,
                reorder=shape.reorder,
                bytes_per_s=shape.bytes_per_s,
            )


class HeldLinks(Links):
    """``Links`` as one fault has them: ``heal`` takes back what was done by this one."""

    def __init__(self, shared: SharedLinks) -> None:
        self.wanted: dict[Pair, _Shape] = {}
        self.struck_before: dict[Pair, int] = {}
        self._shared = shared

    def cut(self, source: str, target: str) -> None:
        self._shared.put(self, (source, target), _Shape(cut=True))

    def shape(
        self,
        source: str,
        target: str,
        *,
        loss: float = 0.0,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        reorder: float = 0.0,
        bytes_per_s: float | None = None,
    ) -> None:
        self._shared.put(self, (source, target), _Shape(False, loss, delay_ms, jitter_ms, reorder, bytes_per_s))

    def restore(self, source: str, target: str) -> None:
        self._shared.put(self, (source, target), None)

    @property
    def without_effect(self) -> str:
        """Why nothing came of it; empty: something was dropped or held back."""
        struck = any(self._shared.struck(pair) > before for pair, before in self.struck_before.items())
        return "" if struck else "nothing was sent over these links meanwhile"

    def heal(self) -> None:
        for pair in list(self.wanted):
            self.restore(*pair)
