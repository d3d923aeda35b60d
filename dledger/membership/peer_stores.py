"""The data folder of each member as far as this replica knows it: a cache, which the log overrides.

Owns ``peers.json``.  A folder registered in a committed configuration counts.  Until the initial members are registered, the folder first
seen counts, so that a member that was wiped meanwhile is not mistaken for the old one.  The newest start of each folder
(``boot_history.py``) is kept too: it reveals a folder restored from an older copy.

Only folders reached at a member's own address are kept: a caller may claim any name, and must not be able to lock a member out.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from dledger.core.types import Membership, NodeId
from dledger.membership.boot_history import Boot
from dledger.membership.handshake import Handshake
from dledger.runtime.env import Disk
from dledger.runtime.json_file import JsonFile
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError

PATH = "peers.json"

_logger = logging.getLogger(__name__)


class PeerStores:
    """Store ids, newest starts and keys, by peer."""

    def __init__(self, disk: Disk, own_id: NodeId) -> None:
        self._disk = disk
        self._own_id = own_id
        self._stores: dict[NodeId, str] = {}
        self._boots: dict[NodeId, Boot] = {}  # of the folder in _stores
        self._keys: dict[NodeId, str] = {}  # the same
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        """A damaged file counts as absent: what it adds to the log is a hint, and peers send their starts again when they connect."""
        try:
            known = await read_stores(self._disk)
            self._stores, self._boots, self._keys = known.stores, known.boots, known.keys
        except DataDirectoryError as error:
            _logger.warning("%s: reset", error.message, extra={"event": "file_reset"})

    def check(self, peer: NodeId, said: Handshake, named: str, index: int, *, dialled: bool) -> None:
        """InvalidArgumentError when ``peer`` is on another folder than the one that is ``named`` (empty: the one first met), or on an older
        copy of it, or has not the key that this folder had when it was met.

        ``index`` is the committed configuration that says so.  A peer with a newer configuration may have been added again by it, so it is
        admitted: what its folder counts for is decided by the log, message by message.
        """
        known = self._stores.get(peer, "")
        expected = named or known
        if expected and said.store_id != expected and said.configuration <= index:
            known_by = "the configuration names" if named else f"{self._own_id} knows it with"
            raise InvalidArgumentError(
                f"store: {peer} comes with data folder {said.store_id}, but {known_by} {expected}; "
                "a member whose folder was lost or exchanged must be replaced as a member"
            )
        if said.store_id != known:
            return
        is_unsaid = dialled and not said.key  # an acceptor sends key and starts to members only; a dialler always does
        if said.key != self._keys.get(peer, said.key) and not is_unsaid:
            text = f"store: {peer} comes with data folder {said.store_id}, but without its key: another process under that name"
            raise InvalidArgumentError(f"{text}, or a folder that lost lives.json and must be replaced as a member")
        life = self._boots.get(peer)
        why = said.boots.rollback_reason(life) if life is not None and not is_unsaid else None
        if why is not None:
            raise older_folder(peer, why)

    async def met(self, peer: NodeId, said: Handshake, named: str) -> None:
        """A member answered at its address, and was let in: keep its folder if none is known, and its newest start."""
        store = named or self._stores.get(peer, "") or said.store_id
        if said.store_id != store:
            return
        newest = said.boots.newest
        known = self._stores.get(peer), self._boots.get(peer), self._keys.get(peer, "")
        if known == (store, newest or known[1], said.key or known[2]):
            return
        self._keep(peer, store)
        if newest is not None:
            self._boots[peer] = newest
        if said.key:
            self._keys.setdefault(peer, said.key)
        await self.save()

    def _keep(self, peer: NodeId, store: str) -> None:
        if self._stores.get(peer) != store:
            self._forget(peer)
            self._stores[peer] = store

    def _forget(self, peer: NodeId) -> None:
        for known in (self._stores, self._boots, self._keys):
            known.pop(peer, None)

    def is_known(self, peer: NodeId, store_id: str) -> bool:
        """Whether ``peer`` was met with this folder before, or is named with it."""
        return bool(store_id) and self._stores.get(peer) == store_id

    def settle(self, committed: Membership, *, over_others: bool = False) -> bool:
        """A configuration is committed: its folders count, and a removed member may come back with another one.

        ``over_others``: changes between were not seen, as with a copy, so a member that it does not name may have been removed.  True when
        something changed.
        """
        before = dict(self._stores)
        for peer in before:
            if peer not in committed or (over_others and not committed.store_of(peer)):
                self._forget(peer)
        for peer, store in committed.stores:
            if peer != self._own_id:
                self._keep(peer, store)
        return self._stores != before

    async def save(self) -> None:
        """Write the list; a failure is logged, and what is in memory counts."""
        async with self._saving:
            try:
                await _FILE.write(self._disk, KnownPeers(self._stores, self._boots, self._keys))
            except OSError as error:
                _logger.warning(
                    "%s: cannot write %s: %s", self._own_id, PATH, error, extra={"event": "file_not_written"}
                )  # known in memory; written with the next one


@dataclass(frozen=True, slots=True)
class KnownPeers:
    """What the file has, by peer."""

    stores: dict[NodeId, str] = field(default_factory=dict)
    boots: dict[NodeId, Boot] = field(default_factory=dict)
    keys: dict[NodeId, str] = field(default_factory=dict)


def _encode(known: KnownPeers) -> dict[str, object]:
    boots = {peer: (life.start, life.drawn) for peer, life in sorted(known.boots.items())}
    return {"stores": dict(sorted(known.stores.items())), "lives": boots, "keys": dict(sorted(known.keys.items()))}


def _decode(data: Any) -> KnownPeers:
    return KnownPeers(
        {NodeId(node): str(store) for node, store in data["stores"].items()},
        {NodeId(node): Boot(int(start), int(drawn)) for node, (start, drawn) in data.get("lives", {}).items()},
        {NodeId(node): str(key) for node, key in data.get("keys", {}).items()},
    )


_FILE = JsonFile(PATH, _decode, _encode, indent=1)


async def read_stores(disk: Disk) -> KnownPeers:
    """Nothing without the file.  DataDirectoryError when it is damaged."""
    return await _FILE.read(disk) or KnownPeers()


def older_folder(node: NodeId, why: str) -> InvalidArgumentError:
    """The refusal of a folder restored from an older copy; the node that receives it stops (``is_older_folder``)."""
    text = f"{node}: its data folder is older than what it acknowledged ({why}): replace it as a member"
    return InvalidArgumentError(text, older_folder=node)


def is_older_folder(refusal: InvalidArgumentError, node: NodeId) -> bool:
    return refusal.details.get("older_folder") == node
