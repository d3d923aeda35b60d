"""Files in a node's data folder that no part of a node has written: left alone, and reported to the operator.

Owns the list of names that a data folder may have.  Index files are checked by the key index.
"""

from __future__ import annotations

from broker.process import audit_file
from dledger.log import quarantine
from dledger.log.segment import UNITS_FOLDER, list_starts
from dledger.runtime.env import Disk
from dledger.runtime.folders import LOG_FOLDER
from dledger_wire.layout import parse_segment_name
from store.durability.disk_reserve import PATH as RESERVE
from store.durability.snapshots import CONFIG_FOLDER
from store.queues.queue_files import QUEUE_FOLDER

SHOWN = 5
SOCKET = ".sock"  # of gRPC behind a port (dledger_wire/tcp/joined_grpc.py); a killed node leaves it, the next start takes its place
TEMPORARY = ".tmp"  # of a crash while a file was replaced; the next replacement of that file takes its place
_FILES = (
    "lock",
    "identity.json",
    "spare.json",
    "hardstate",
    "logstart.json",
    "configuration.json",
    "peers.json",
    "lives.json",
    "lineage.json",
    "leaders.json",
    "removed.json",
    "checkpoint",
    "abort",
    "unsynced.json",
    RESERVE,
)
_FOLDERS = (LOG_FOLDER, UNITS_FOLDER, QUEUE_FOLDER, CONFIG_FOLDER, quarantine.FOLDER, audit_file.FOLDER, "index", "copy")
_OWN = frozenset([*_FILES, *(f"{name}/" for name in _FOLDERS)])


async def foreign_files(disk: Disk, *, thorough: bool) -> list[str]:
    """Their paths (folders end with /), in the order of the folder's parts.  ``thorough``: also between the files of every queue."""
    found = [name for name in await disk.list("") if name not in _OWN and not name.endswith((TEMPORARY, SOCKET))]
    for folder in (LOG_FOLDER, UNITS_FOLDER):
        found += [f"{folder}/{name}" for name in (await list_starts(disk, folder))[1]]
    found += [f"{CONFIG_FOLDER}/{name}" for name in await disk.list(CONFIG_FOLDER) if not _is_config(name)]
    for topic in await disk.list(QUEUE_FOLDER):
        if not topic.endswith("/"):
            found.append(f"{QUEUE_FOLDER}/{topic}")
            continue
        for queue in await disk.list(f"{QUEUE_FOLDER}/{topic[:-1]}"):
            path = f"{QUEUE_FOLDER}/{topic}{queue}"
            if not queue.endswith("/") or not queue[:-1].isdecimal():
                found.append(path)
            elif thorough:
                found += [path + name for name in await disk.list(path[:-1]) if parse_segment_name(name) is None]
    return found


def _is_config(name: str) -> bool:
    return name.removesuffix(TEMPORARY).removesuffix(".bak").endswith(".json")


def describe_foreign(disk: Disk, found: list[str]) -> str:
    """One line about them."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"data folder {disk.local_path('')}: not files of a node, left alone: {', '.join(found[:SHOWN])}{more}"
