"""The lineage of a data folder: which of the histories of its replica group it belongs to, where a recovery or a restore parted them.

Owns ``lineage.json``.  A new group has no lineage id and no file.  ``dledger member unsafe-recover`` and ``dledger restore`` begin a
lineage: they write its id into the folders that go on with the group.  Every handshake names the id, and replicas of two lineages refuse
each other, whatever their terms: their logs may have other entries in the same places, and the votes of one mean nothing in the other.

A folder without an id and with an empty log belongs to no lineage yet.  It joins that of the first leader that it stores something of,
and the file is durable before that.  A handshake alone decides nothing: whoever dials an empty node could claim it.
"""

from __future__ import annotations

import json

from dledger.runtime.env import Disk, read_file
from dledger_wire import strict_json
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError

PATH = "lineage.json"
ID_DIGITS = 32


class Lineage:
    """Of one replica; ``id`` is empty in a group that was never recovered or restored."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.id = ""

    async def load(self) -> None:
        self.id = await read_lineage(self._disk)

    async def join(self, lineage: str) -> None:
        """Durable when this returns."""
        await write_lineage(self._disk, lineage)
        self.id = lineage


async def read_lineage(disk: Disk) -> str:
    """Empty without the file.  DataDirectoryError when it is damaged: the folder could count in a history that it is not of."""
    if not await disk.exists(PATH):
        return ""
    data = await read_file(disk, PATH)
    try:
        lineage = str(strict_json.parse(data)["lineage"])
        if not is_lineage(lineage):
            raise ValueError(f"lineage {lineage[:40]!r}")
    except (ValueError, KeyError, TypeError) as error:
        where = disk.local_path(PATH)
        raise DataDirectoryError(f"{where} is damaged ({error}): move the folder away, and replace this node as a member") from None
    return lineage


async def write_lineage(disk: Disk, lineage: str) -> None:
    """Durable when this returns."""
    await disk.write_atomic(PATH, json.dumps({"lineage": lineage}).encode() + b"\n")


def is_lineage(text: str) -> bool:
    return len(text) == ID_DIGITS and set(text) <= set("0123456789abcdef")


def named(lineage: str) -> str:
    """As texts name it."""
    return f"lineage {lineage[:8]}" if lineage else "the first lineage"


def other_lineage(peer: str, theirs: str, own: str, ours: str) -> InvalidArgumentError:
    """The refusal of a replica whose group went on without this one, or this one's without it."""
    text = f"lineage: {peer} has the log of {named(theirs)}, {own} that of {named(ours)}: a recovery or a restore parted them"
    return InvalidArgumentError(f"{text}; the node that was left behind has to start with an empty folder")
