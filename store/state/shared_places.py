"""A bounded table that several owners share: whose entry is forgotten when it is full.

Owns the order of use by owner, no content.  The owner with the most entries loses its longest unused one, so no owner can push out what an
owner with fewer entries has.  Everything follows from the order of calls, so replicas that apply the same log forget the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Share(Generic[K]):
    """The entries of one owner, longest unused first."""

    minor: OrderedDict[K, None] = field(default_factory=OrderedDict)  # forgotten before the others
    others: OrderedDict[K, None] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.minor) + len(self.others)


class SharedPlaces(Generic[K]):
    """At most ``limit`` keys, provided that after each ``use`` the caller forgets what ``surplus`` returns."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._shares: dict[str, _Share[K]] = {}

    def use(self, key: K, owner: str, *, minor: bool = False) -> None:
        """Add ``key``, or make it the last used one of its owner.  A minor one may become an ordinary one, never the reverse."""
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share()
        chosen = share.minor if minor else share.others
        if key in chosen:
            chosen.move_to_end(key)
            return
        if not minor and key in share.minor:
            del share.minor[key]
        else:
            self._count += 1
        chosen[key] = None

    def remove(self, key: K, owner: str) -> None:
        """Forget ``key``; it must be there."""
        share = self._shares[owner]
        if key in share.minor:
            del share.minor[key]
        else:
            del share.others[key]
        self._count -= 1
        if not share:
            del self._shares[owner]

    def surplus(self) -> K | None:
        """The key to forget next while there are more than the limit; never the one that was used last."""
        if self._count <= self._limit:
            return None
        largest = max(self._shares, key=lambda owner: (len(self._shares[owner]), owner))
        share = self._shares[largest]
        return next(iter(share.minor if len(share.minor) > 1 or not share.others else share.others))

    def __iter__(self) -> Iterator[K]:
        """All keys, each owner's in the order of their use."""
        for share in self._shares.values():
            yield from share.minor
            yield from share.others

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        self._shares.clear()
        self._count = 0
