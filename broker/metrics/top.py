"""Which of many names have series of their own, so that ten thousand topics do not make ten thousand series.

Owns the choice, and counters that never go back: what is not chosen is summed under one name, and what a name counted before it was chosen
stays in that sum.  So a series that begins does so at what came since, and the sum over all series rises like the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker.metrics.catalog import OTHERS

RANK_MS = 60_000  # how often the choice is repeated
FADING = 0.5  # of what a name had before, at each choice

Pair = tuple[str, str]  # topic, consumer group


class TopCounters:
    """Counters of names, ``width`` of each name.  At most ``limit`` names have series of their own."""

    def __init__(self, limit: int, width: int) -> None:
        self._limit = limit
        self._width = width
        self._seen: dict[str, tuple[int, ...]] = {}  # of each name, at the last look
        self._shown: dict[str, list[int]] = {}
        self._others: list[int] | None = None
        self._scores: dict[str, float] = {}  # traffic of late
        self._ranked_ms = 0

    def update(self, changed: Mapping[str, Sequence[int]], now_ms: int) -> None:
        """What the names that may have changed count now.  A count below the one before is that of another one of the same name."""
        for name, now in changed.items():
            before = self._seen.get(name, (0,) * self._width)
            self._seen[name] = tuple(now)
            risen = [value - old if value >= old else value for value, old in zip(now, before, strict=True)]
            self._scores[name] = self._scores.get(name, 0.0) + sum(risen)
            counters = self._of(name)
            for at, value in enumerate(risen):
                counters[at] += value
        if now_ms - self._ranked_ms >= RANK_MS:
            self._ranked_ms = now_ms
            self._rank()

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Other names are gone."""
        for gone in self._seen.keys() - set(names):
            for table in (self._seen, self._shown, self._scores):
                table.pop(gone, None)

    def series(self) -> Mapping[str, Sequence[int]]:
        """The counters of those chosen and, last, of all others together when there ever were any."""
        others = {OTHERS: self._others} if self._others is not None else {}
        return {**self._shown, **others}

    def _of(self, name: str) -> list[int]:
        found = self._shown.get(name)
        if found is None and len(self._shown) < self._limit:
            found = self._shown[name] = [0] * self._width
        if found is not None:
            return found
        if self._others is None:
            self._others = [0] * self._width
        return self._others

    def _rank(self) -> None:
        """Choose those with the most traffic of late; of equals those that are chosen already."""
        if len(self._scores) > self._limit:
            best = sorted(self._scores, key=lambda name: (self._scores[name], name in self._shown), reverse=True)[: self._limit]
            chosen = set(best)
            for name in [name for name in self._shown if name not in chosen]:
                del self._shown[name]
            for name in best:
                self._shown.setdefault(name, [0] * self._width)
        for name in self._scores:
            self._scores[name] *= FADING


def top_pairs(lags: Mapping[Pair, int], ages: Mapping[Pair, float], limit: int) -> list[Pair]:
    """The ``limit`` pairs that are reported each for itself: half of them the oldest, the rest those with the most messages to go."""
    most = sorted(lags, key=lambda pair: (-lags[pair], pair))
    oldest = sorted(ages, key=lambda pair: (-ages[pair], pair))[: limit // 2]
    return list(dict.fromkeys([*oldest, *most]))[:limit]
