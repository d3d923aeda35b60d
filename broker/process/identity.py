"""Who a data folder belongs to: ``identity.json``, written once when the folder is first used.

Owns the file and the refusal of a folder that belongs to another node, group, cluster or format version.  The store id is random, so a
known node that comes back with a wiped folder is recognised as somebody who has forgotten what he promised.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dledger.log.segment import UNITS_FOLDER
from dledger.runtime.env import Environment
from dledger.runtime.folders import LOG_FOLDER
from dledger_wire import strict_json
from dledger_wire.errors import DataDirectoryError
from store.queues.queue_files import QUEUE_FOLDER

IDENTITY_FILE = "identity.json"
FORMAT_VERSION = 1
OWN_FOLDERS = tuple(f"{folder}/" for folder in (LOG_FOLDER, UNITS_FOLDER, QUEUE_FOLDER))


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    format_version: int
    cluster: str
    group: str
    node_id: str
    store_id: str


async def open_identity(env: Environment, cluster: str, group: str, node_id: str) -> FolderIdentity:
    """Read the folder's identity, or make one in an empty folder.  DataDirectoryError when it is somebody else's."""
    if not await env.disk.exists(IDENTITY_FILE):
        used = [name for name in await env.disk.list("") if name in OWN_FOLDERS]
        if used:
            where = env.disk.local_path("")
            raise DataDirectoryError(
                f"data folder {where} has {', '.join(used)} but no {IDENTITY_FILE}: it is damaged or not a node's folder"
            )
        made = FolderIdentity(FORMAT_VERSION, cluster, group, node_id, f"{env.random.getrandbits(128):032x}")
        await env.disk.write_atomic(IDENTITY_FILE, json.dumps(asdict(made), indent=1).encode() + b"\n")
        return made
    found = await _read(env)
    wanted = FolderIdentity(FORMAT_VERSION, cluster, group, node_id, found.store_id)
    if found != wanted:
        where = env.disk.local_path("")
        owner = f"node {found.node_id} of replica group {found.group}, cluster {found.cluster}"
        raise DataDirectoryError(
            f"data folder {where} belongs to {owner}, not to node {node_id} of replica group {group}, cluster {cluster}"
        )
    return found


async def _read(env: Environment) -> FolderIdentity:
    file = await env.disk.open(IDENTITY_FILE)
    try:
        text = await file.pread(0, await file.size())
    finally:
        await file.close()
    where = env.disk.local_path(IDENTITY_FILE)
    try:
        fields = strict_json.parse(text)
        if not isinstance(fields, dict):
            raise DataDirectoryError(f"{where} is damaged: expected a JSON object, found {type(fields).__name__}")
        # Another version may have other fields: it is told first.
        version = fields["format_version"]
        if version != FORMAT_VERSION:
            raise DataDirectoryError(
                f"data folder {env.disk.local_path('')} has format version {version}, this program reads {FORMAT_VERSION}"
            )
        return FolderIdentity(**fields)
    except KeyError as error:
        raise DataDirectoryError(f"{where} is damaged: no {error.args[0]} in it") from error
    except (ValueError, TypeError) as error:
        raise DataDirectoryError(f"{where} is damaged: {error}") from error
