"""The lineage of a data folder: which of the histories of its replica group it belongs to, where a recovery or a restore parted them.

Owns ``lineage.json``.  A new group has no lineage id and no file.  ``dledger member unsafe-recover`` and ``dledger restore`` begin a
lineage: they write its id into the folders that go on with the group.  Every handshake names the id, and replicas of two lineages refuse
each other, whatever their terms: their logs may have other entries in the same places, and the votes of one mean nothing in the other.
Of two lineages the one that began in the later term is the newer one.  A replica that is refused by a voter of its group for a newer one
was left behind: it does not lead any more, so that clients write to the newer one only.

A folder without an id and with an empty log belongs to no lineage yet.  It joins that of the first leader that it stores something of,
and the file is durable before that.  A handshake alone decides nothing: any caller of an empty node could claim it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dledger.runtime.env import Disk
from dledger.runtime.json_file import JsonFile
from dledger_wire.errors import InvalidArgumentError

PATH = "lineage.json"
ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a lineage begins: its id, empty in a group that was never recovered or restored, and its first term."""

    lineage: str = ""
    term: int = 0

    @property
    def is_valid(self) -> bool:
        return len(self.lineage) == ID_DIGITS and set(self.lineage) <= set("0123456789abcdef") and self.term > 0

    def __str__(self) -> str:
        return named(self.lineage)


FIRST = Origin()


class Lineage:
    """Of one replica."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.origin = FIRST

    @property
    def id(self) -> str:
        return self.origin.lineage

    async def load(self) -> None:
        self.origin = await read_lineage(self._disk)

    async def join(self, origin: Origin) -> None:
        """Durable when this returns."""
        await write_lineage(self._disk, origin)
        self.origin = origin


def _decode(data: Any) -> Origin:
    origin = Origin(str(data["lineage"]), int(data["term"]))
    if not origin.is_valid:
        raise ValueError(f"lineage {origin.lineage[:40]!r} from term {origin.term}")
    return origin


_FILE = JsonFile(PATH, _decode, asdict, advice="move the folder away, and replace this node as a member")


async def read_lineage(disk: Disk) -> Origin:
    """The first lineage without the file.  DataDirectoryError when it is damaged: the folder could count in a history that it is not of."""
    return await _FILE.read(disk) or FIRST


async def write_lineage(disk: Disk, origin: Origin) -> None:
    """Durable when this returns."""
    await _FILE.write(disk, origin)


def named(lineage: str) -> str:
    """As texts name it."""
    return f"lineage {lineage[:8]}" if lineage else "the first lineage"


def other_lineage(peer: str, theirs: Origin, own: str, ours: Origin) -> InvalidArgumentError:
    """The refusal of a replica whose group went on without this one, or this one's without it."""
    text = f"lineage: {peer} has the log of {theirs}, {own} that of {ours}: a recovery or a restore parted them"
    left_behind = peer if theirs.term < ours.term else own
    return InvalidArgumentError(f"{text}; the node that was left behind has to start with an empty folder", left_behind=left_behind)


def is_left_behind(refusal: InvalidArgumentError, node: str) -> bool:
    """Whether the group went on without ``node``, which received ``refusal``."""
    return refusal.details.get("left_behind") == node
