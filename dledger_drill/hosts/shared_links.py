"""Links that several faults strike at once: each fault takes back what it did itself, and what another one did stays.

Owns what is in force between two machines: the worst of what the faults want there.
"""

from __future__ import annotations

import threading

from dledger_drill.hosts.machine import CountedLinks, Links, LinkShape

Pair = tuple[str, str]  # from, to


def worst_of(one: LinkShape, other: LinkShape) -> LinkShape:
    if one.cut or other.cut:
        return LinkShape(cut=True)
    rates = [rate for rate in (one.bytes_per_s, other.bytes_per_s) if rate is not None]
    return LinkShape(
        loss=max(one.loss, other.loss),
        delay_ms=max(one.delay_ms, other.delay_ms),
        jitter_ms=max(one.jitter_ms, other.jitter_ms),
        reorder=max(one.reorder, other.reorder),
        bytes_per_s=min(rates, default=None),
    )


class SharedLinks:
    """``hold`` is for one fault; ``links`` are not changed by others meanwhile."""

    def __init__(self, links: CountedLinks) -> None:
        self._links = links
        self._lock = threading.Lock()
        self._held: list[HeldLinks] = []

    def hold(self) -> HeldLinks:
        return HeldLinks(self)

    def put(self, held: HeldLinks, pair: Pair, shape: LinkShape | None) -> None:
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
                    together = worst_of(each.wanted[pair], together or LinkShape())
            self._apply(pair, together)

    def struck(self, pair: Pair) -> int:
        return self._links.struck(*pair)

    def _apply(self, pair: Pair, shape: LinkShape | None) -> None:
        if shape is None or not shape.cut:
            self._links.restore(*pair)  # it may have been cut
        if shape is not None:
            self._links.shape(*pair, shape)


class HeldLinks(Links):
    """``Links`` as one fault has them: ``heal`` takes back what was done by this one."""

    def __init__(self, shared: SharedLinks) -> None:
        self.wanted: dict[Pair, LinkShape] = {}
        self.struck_before: dict[Pair, int] = {}
        self._shared = shared

    def shape(self, source: str, target: str, shape: LinkShape) -> None:
        self._shared.put(self, (source, target), shape)

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
