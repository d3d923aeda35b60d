"""Which data folder each peer came with: a known voter that returns with another one has forgotten what it promised.

Owns ``peers.json``.  The first store id seen of a member is kept; another one is refused until a committed configuration left it out,
or until the member shows that it was added anew since: this replica may have been away all the while, and only the others can tell it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from dledger.core.types import NodeId
from dledger.env import Disk
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError

PATH = "peers.json"

_logger = logging.getLogger(__name__)


class PeerStores:
    """Store ids by peer."""

    def __init__(self, disk: Disk, own_id: NodeId) -> None:
        self._disk = disk
        self._own_id = own_id
        self._stores: dict[NodeId, str] = {}
        self._since: dict[NodeId, int] = {}  # when a peer with that folder was added to the group; not there: 0
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        if not await self._disk.exists(PATH):
            return
        file = await self._disk.open(PATH)
        data = await file.pread(0, await file.size())
        await file.close()
        try:
            saved = json.loads(data)
            self._stores = {NodeId(node): str(store) for node, store in saved["stores"].items()}
            self._since = {NodeId(node): int(since) for node, since in saved.get("since", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = self._disk.local_path(PATH)
            raise DataDirectoryError(f"{path}: not a list of peers' store ids: {error}") from None

    async def check(self, peer: NodeId, store_id: str, since: int, *, is_member: bool) -> None:
        """InvalidArgumentError when ``peer`` came with another folder before and was not added anew.  Only a member's is kept in mind."""
        if not store_id:
            raise InvalidArgumentError(f"store: {peer} gave no store id")
        known = self._stores.get(peer)
        if known is None:
            if is_member:
                await self._keep(peer, store_id, since)
        elif since > self._since.get(peer, 0):
            await self._keep(peer, store_id, since)
        elif known != store_id:
            raise InvalidArgumentError(
                f"store: {peer} comes with data folder {store_id}, but {self._own_id} knows it with {known}; "
                "a voter whose folder was lost must be replaced as a member"
            )

    def is_known(self, peer: NodeId, store_id: str) -> bool:
        """Whether ``peer`` was met with this folder before."""
        return bool(store_id) and self._stores.get(peer) == store_id

    async def _keep(self, peer: NodeId, store_id: str, since: int) -> None:
        self._stores[peer], self._since[peer] = store_id, since
        await self.save()

    def keep_only(self, members: Sequence[NodeId]) -> bool:
        """A committed configuration: who is out of it may come back with another folder.  True when somebody was forgotten."""
        gone = [peer for peer in self._stores if peer not in members]
        for peer in gone:
            del self._stores[peer]
            self._since.pop(peer, None)
        return bool(gone)

    async def save(self) -> None:
        """Write the list; a failure is told, and what is in memory counts."""
        async with self._saving:
            saved = {"stores": dict(sorted(self._stores.items())), "since": {peer: at for peer, at in sorted(self._since.items()) if at}}
            data = json.dumps(saved, indent=1).encode() + b"\n"
            try:
                await self._disk.write_atomic(PATH, data)
            except OSError as error:
                _logger.warning("%s: cannot write %s: %s", self._own_id, PATH, error)  # known in memory; written with the next one
