"""Bits that flip in log files, which no process notices until it reads them.

Owns where: inside entries that were written a while ago (docs/reference/formats.md has their layout).  A flip at a log's very end together
with a crash is a torn write, which looks the same; and the block that the log ends in is written again, whole, with the next
entry, which would undo the flip.  The node is restarted when the fault ends, since that is what finds and repairs damage for certain.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

from dledger.runtime.real_direct import BLOCK
from dledger_drill.faults.base import Fault, Strike, Target
from dledger_drill.faults.roles import Do, Role, pick, strike
from dledger_drill.plan.model import FaultChoice
from dledger_wire.errors import InvalidArgumentError

LOG_FOLDER = "commitlog"
OLD_SHARE = 0.8  # of the entries of the newest file: those behind were written just now
_HEAD = struct.Struct(">ii")  # magic, size of the entry
_MAGICS = (1, 2, 3)
_MIN_ENTRY_BYTES = 48


def entry_ends(file: Path) -> list[int]:
    """Where each entry of a segment ends."""
    ends = []
    at = 0
    with open(file, "rb") as opened:
        while len(head := opened.read(_HEAD.size)) == _HEAD.size:
            magic, size = _HEAD.unpack(head)
            if magic not in _MAGICS or size < _MIN_ENTRY_BYTES:
                break
            at += size
            ends.append(at)
            opened.seek(at)
    return ends


def segments(folder: Path) -> list[tuple[Path, list[int]]]:
    """The segments of a node's folder that hold entries, oldest first, and where those end."""
    files = sorted(file for file in (folder / LOG_FOLDER).iterdir() if file.name.isdecimal())
    found = [(file, entry_ends(file)) for file in files]
    return [(file, ends) for file, ends in found if ends]


def flip(sealed: bool, role: Role) -> Do:
    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        nodes = pick(target, choice.group, role, draw)
        notes: list[str] = []
        held = target.machines.hold()

        def flip_one(node: str) -> None:
            disk = target.machines[node].disk
            file, byte = place(segments(disk.path / node), sealed, draw)
            bit = draw.randrange(8)
            disk.flip_bit(str(file.relative_to(disk.path)), byte, bit)
            notes.append(f"{node} {file.name} byte {byte} bit {bit}")

        def restart(node: str) -> None:
            held.kill(node)
            held.release(node)

        struck = strike(nodes, flip_one, restart)
        struck.note = ", ".join(notes)
        return struck

    return do


def place(found: list[tuple[Path, list[int]]], sealed: bool, draw: random.Random) -> tuple[Path, int]:
    """A file and a byte in it.  While nothing is sealed, the newest one has to do, and the one before it when that has just begun."""
    if not found:
        raise InvalidArgumentError("no entry in the log to flip a bit of")
    closed, (file, ends) = found[:-1], found[-1]
    settled = min(ends[int((len(ends) - 1) * OLD_SHARE)], ends[-1] - ends[-1] % BLOCK)
    if closed and (sealed or not settled):
        file, ends = draw.choice(closed) if sealed else closed[-1]
        settled = ends[-1]
    if not settled:
        raise InvalidArgumentError(f"{file.name} has only entries that were written just now")
    return file, draw.randrange(settled)


_WHERE = {Role.FOLLOWER: "of a follower", Role.MINORITY: "of each node of a minority, the leader perhaps"}

FAULTS: tuple[Fault, ...] = tuple(
    Fault(f"flip-{name}-{role}", "damage", f"a bit flips in {what} {where}", (1.0, 3.0), flip(sealed, role))
    for name, what, sealed in (("sealed", "a closed log file", True), ("active", "the log file being written", False))
    for role, where in _WHERE.items()
)
