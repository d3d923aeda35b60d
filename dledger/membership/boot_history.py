"""Boot history of a data folder: the number of starts, and a random value drawn at each, which reveals a folder restored from a copy.

Owns ``lives.json``.  The file has a secret as well, from which the folder's key for each peer is made: with it the folder shows that it is
the one that the peer has met before.  What one peer is sent means nothing to another, so a node cannot use it to speak for
the folder elsewhere.

A start is recorded before the node talks to a peer, and peers keep the newest start they have seen
(``peer_stores.py``).  A folder that is behind what a peer has seen, or whose start of that number drew another value, was restored to an
older state: it has forgotten votes and entries that count elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from dataclasses import dataclass, replace
from typing import Any

from dledger.core.state import DrawSource
from dledger.runtime.env import Disk
from dledger.runtime.json_file import JsonFile

PATH = "lives.json"
KEPT = 32  # starts whose value is kept; a peer that saw none of them cannot detect a restore
DRAW_BITS = 32
SECRET_BITS = 128
KEY_DIGITS = 32

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Boot:
    """One start: its number and what it drew."""

    start: int
    drawn: int


@dataclass(frozen=True, slots=True)
class BootHistory:
    """All starts of a folder, the latest with what they drew, oldest first; ``at_ms``: the time of the newest, later than all before it."""

    starts: int = 0
    drawn: tuple[int, ...] = ()
    at_ms: int = 0
    secret: str = ""

    @property
    def newest(self) -> Boot | None:
        return Boot(self.starts, self.drawn[-1]) if self.drawn else None

    def recorded(self, drawn: int, now_ms: int = 0) -> BootHistory:
        return replace(self, starts=self.starts + 1, drawn=(*self.drawn, drawn)[-KEPT:], at_ms=max(now_ms, self.at_ms + 1))

    def shown_to(self, peer: str) -> BootHistory:
        """What ``peer`` is sent of it: the same at each time, and another thing for each peer."""
        return BootHistory(self.starts, tuple(int(self._made_for(peer, draw)[:8], 16) for draw in self.drawn))

    def key_for(self, peer: str) -> str:
        """Empty when no secret could be written."""
        return self._made_for(peer, "key")[:KEY_DIGITS] if self.secret else ""

    def _made_for(self, peer: str, what: object) -> str:
        return hmac.new(self.secret.encode(), json.dumps([peer, what]).encode(), hashlib.sha256).hexdigest()

    def rollback_reason(self, known: Boot) -> str | None:
        """Why this folder was restored to a state before ``known``; None when it may not have been."""
        if self.starts < known.start:
            return f"it was started {self.starts} times, and came with start {known.start} before"
        at = len(self.drawn) - 1 - (self.starts - known.start)
        if at >= 0 and self.drawn[at] != known.drawn:
            return f"its start {known.start} was a different one"
        return None


async def record_boot(disk: Disk, random: DrawSource, now_ms: int) -> BootHistory:
    """Record this start, on stable storage.  If that fails, this start presents itself as the previous one."""
    boots = await read_boots(disk)
    recorded = boots.recorded(random.getrandbits(DRAW_BITS), now_ms)
    recorded = replace(recorded, secret=recorded.secret or f"{random.getrandbits(SECRET_BITS):032x}")
    try:
        await _FILE.write(disk, recorded)
    except OSError as error:
        _logger.warning("cannot write %s: %s", disk.local_path(PATH), error, extra={"event": "file_not_written"})
        return replace(boots, at_ms=recorded.at_ms)
    return recorded


async def read_boots(disk: Disk) -> BootHistory:
    """The starts up to now; none in a new folder.  DataDirectoryError when the file is damaged."""
    return await _FILE.read(disk) or BootHistory()


def _encode(boots: BootHistory) -> dict[str, object]:
    return {"starts": boots.starts, "drawn": boots.drawn, "at_ms": boots.at_ms, "secret": boots.secret}


def _decode(data: Any) -> BootHistory:
    boots = BootHistory(int(data["starts"]), tuple(int(drawn) for drawn in data["drawn"]), int(data.get("at_ms", 0)))
    if len(boots.drawn) != min(boots.starts, KEPT):
        raise ValueError(f"{boots.starts} starts, but draws of {len(boots.drawn)}")
    return replace(boots, secret=str(data.get("secret", "")))


_FILE = JsonFile(PATH, _decode, _encode, advice="an older copy of the folder would go undetected; replace this node as a member")
