"""Other members for a log that is on disk, with no node running on it: what makes it the log of another group of nodes.

Owns the entries that say so, their term and their lineage.  The configuration stands behind everything that the log has, in a term that the
old members do not reach, and names data folders that they do not know.  The lineage is in every handshake, so that neither side connects
with the other.
"""

from __future__ import annotations

from dledger.core.types import EntryId, EntryKind, HardState
from dledger.log.config import LogConfig
from dledger.log.hard_state import HardStateFile
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.membership.configuration_file import content
from dledger.membership.lineage import Origin, write_lineage
from dledger.runtime.env import Disk
from dledger_wire.batches.batch import encode_command
from dledger_wire.errors import DataDirectoryError
from store.commands.replacement import SetReplacement

# Far enough that the members of before never have an entry of such a term, near enough that a peer does not refuse it.
TERMS_AHEAD = 1 << 16


def terms_ahead(lineage: str) -> int:
    """Two lineages that part at the same entry, as of two survivors, get different terms: no entry of one is taken for one of the other."""
    return TERMS_AHEAD + int(lineage[:4], 16)


async def begin_lineage(disk: Disk, lineage: str, least: int, *, log_is_empty: bool) -> int:
    """The term in which it begins: ahead of ``least`` and of all that the folder's node promised.  Durable when this returns.

    The lineage comes first: a node that is started on what an interruption leaves has no part in the group of before.
    """
    promise = await HardStateFile.open(disk, log_is_empty=log_is_empty)
    try:
        term = max(least, promise.state.term) + terms_ahead(lineage)
        await write_lineage(disk, Origin(lineage, term))
        await promise.save(HardState(term, None))
    finally:
        await promise.close()
    return term


async def append_members(
    disk: Disk, config: LogConfig, end: tuple[EntryId, int], term: int, configuration: Configuration, *, at_ms: int
) -> EntryId:
    """Append the configuration to a whole log that ends with ``end``, an entry and its chain CRC.  Durable when this returns."""
    log, report = await Log.open(disk, config)
    try:
        if report.damaged or (log.last, log.chain_crc) != end:
            raise DataDirectoryError(f"{disk.local_path('')}: what was written is not what is read back: {report}")
        # A replacement of a member by a spare node, if one was under way, was one of the old members.
        ended = encode_command(SetReplacement.KIND, SetReplacement().encode() | {"at_ms": at_ms})
        log.append(log.encode(term, EntryKind.CONFIG, [configuration.encode()]))
        index = log.last.index
        log.append(log.encode(term, EntryKind.NORMAL, [ended]))
        await log.flush()
        # A start reads no older configuration: the members in it are the old ones, and must not be dialled if they still run.
        await disk.write_atomic(CONFIGURATION_PATH, content(log.last.index, index, configuration).encode())
        return log.last
    finally:
        await log.close()
