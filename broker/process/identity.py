"""The owner of a data folder: ``identity.json``, written when the folder is first used, and when the replica group's feature level rises.

Owns the file and the refusal of a folder that belongs to another node, group or cluster, or that needs a newer release.  The store id is
random, so a known node that comes back with a wiped folder is recognised as a node that has forgotten what it promised.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from broker.process.data_dir_lock import instead_of_lost
from dledger.log.segment import UNITS_FOLDER
from dledger.runtime.env import Disk, Environment, read_file
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger_wire import strict_json
from dledger_wire.errors import DataDirectoryError
from dledger_wire.feature_levels import THIS_BUILD, LevelRange, refusal
from dledger_wire.formats import IDENTITY, newer
from store.queues.queue_files import QUEUE_FOLDER

IDENTITY_FILE = IDENTITY.file
OWN_FOLDERS = tuple(f"{folder}/" for folder in (LOG_FOLDER, UNITS_FOLDER, QUEUE_FOLDER, SNAPSHOT_FOLDER))
RESTORING_MARK = "restoring"  # there while ``dledger restore`` makes the folder


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """``feature_level``: what a build must be able to do to work on the folder; ``release``: the first one that can."""

    format_version: int
    cluster: str
    group: str
    node_id: str
    store_id: str
    feature_level: int = 0
    release: str = ""

    def at_level(self, level: int, release: str) -> FolderIdentity:
        return replace(self, feature_level=level, release=release)


async def open_identity(env: Environment, cluster: str, group: str, node_id: str, build: LevelRange = THIS_BUILD) -> FolderIdentity:
    """Read the folder's identity, or make one in an empty folder.  DataDirectoryError when it is another node's, or not for ``build``."""
    where = env.disk.local_path("")
    names = await env.disk.list("")
    if RESTORING_MARK in names:
        raise DataDirectoryError(
            f"data folder {where}: a restore has not ended here (file {RESTORING_MARK}); remove the folder, restore again"
        )
    if IDENTITY_FILE not in names:
        used = [name for name in names if name in OWN_FOLDERS]
        if used:
            what = f"has {', '.join(used)} but no {IDENTITY_FILE}: it is damaged or not a node's folder"
            raise DataDirectoryError(
                f"data folder {where} {what}; move it away, then restore it from a backup, or: {instead_of_lost(node_id)}"
            )
        made = FolderIdentity(IDENTITY.current, cluster, group, node_id, f"{env.random.getrandbits(128):032x}")
        await write_identity(env.disk, made)
        return made
    return await own_identity(env.disk, cluster, group, node_id, build)


async def own_identity(disk: Disk, cluster: str, group: str, node_id: str, build: LevelRange = THIS_BUILD) -> FolderIdentity:
    """The identity of a folder that has one.  DataDirectoryError when it is another node's, or not for ``build``."""
    where = disk.local_path("")
    found = await read_identity(disk)
    if (found.cluster, found.group, found.node_id) != (cluster, group, node_id):
        owner = f"node {found.node_id} of replica group {found.group}, cluster {found.cluster}"
        raise DataDirectoryError(
            f"data folder {where} belongs to {owner}, not to node {node_id} of replica group {group}, cluster {cluster}"
        )
    if text := refusal("this build", build, found.feature_level, found.release):
        raise DataDirectoryError(f"data folder {where}: {text}", feature_level=str(found.feature_level))
    return found


async def write_identity(disk: Disk, identity: FolderIdentity) -> None:
    """Durable when this returns."""
    await disk.write_atomic(IDENTITY_FILE, json.dumps(asdict(identity), indent=1).encode() + b"\n")


async def read_identity(disk: Disk) -> FolderIdentity:
    """As it is written.  DataDirectoryError when it is damaged, or of a newer release."""
    text = await read_file(disk, IDENTITY_FILE)
    where = disk.local_path(IDENTITY_FILE)
    try:
        fields = strict_json.parse(text)
        if not isinstance(fields, dict):
            raise DataDirectoryError(f"{where} is damaged: expected a JSON object, found {type(fields).__name__}")
        # Another version may have other fields: it is reported first.
        version = fields["format_version"]
        if version not in range(IDENTITY.oldest, IDENTITY.current + 1):
            raise newer(where, version, IDENTITY)
        return FolderIdentity(**fields)
    except KeyError as error:
        raise DataDirectoryError(f"{where} is damaged: no {error.args[0]} in it") from error
    except (ValueError, TypeError) as error:
        raise DataDirectoryError(f"{where} is damaged: {error}") from error
