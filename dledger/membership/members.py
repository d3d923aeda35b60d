"""What configurations say of members beyond their votes: addresses, and committed data folders.

Owns the newest of each; a truncated configuration has no effect.

A configuration counts from the moment it is in the log, but a known address is replaced only by a committed one.  Otherwise a
leader that loses its change, with a wrong address in it, could not even respond to the new leader that truncates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dledger.core.types import Membership, NodeId
from dledger.membership.configuration import Configuration
from dledger_wire.errors import InvalidArgumentError


class Members:
    """Addresses and committed folders of all members that a configuration has named."""

    def __init__(self, addresses: Mapping[NodeId, str], links: Mapping[NodeId, str]) -> None:
        self._links = dict(links)
        self._configured = dict(addresses)  # by the settings
        self._committed_addresses = dict(addresses)
        self._settled = Membership(tuple(addresses))  # of the newest configuration known to be committed
        self.settled_index = 0
        self._open: list[tuple[int, Configuration]] = []  # not known to be committed, in the log's order
        self._recount()

    def _recount(self) -> None:
        self._addresses = dict(self._committed_addresses)
        for _index, configuration in self._open:
            self._addresses = {**configuration.addresses, **self._addresses}

    @property
    def addresses(self) -> Mapping[NodeId, str]:
        return MappingProxyType(self._addresses)

    @property
    def links(self) -> dict[NodeId, str]:
        """Where this node dials each replica: its address, unless the settings name another one."""
        return {**self._addresses, **self._links}

    def links_of(self, membership: Membership) -> dict[NodeId, str]:
        """Where to dial the members of the configuration in force.

        Until that one is known to be committed, those of the one before too: one of them may lead and have it cut, and must be answered.
        """
        links, before = self.links, self._settled.members if self._open else ()
        return {node: links[node] for node in (*membership.members, *before) if node in links}

    def places_of(self, peer: NodeId, known: str, sent: str) -> tuple[str, ...]:
        """Where to dial a replica, one after the other until it answers: where it says that it is, where it is ``known`` to be, and where
        the settings have it.  A member that moved is found by one of them, even if the whole group moved while it was stopped.

        An address for links in the settings is the only one: it leads through a network of its own.
        """
        places = (known,) if peer in self._links else (sent, known, self._configured.get(peer, ""))
        return tuple(dict.fromkeys(place for place in places if place)) or (known,)  # a log may hold a member without an address

    @property
    def newest_index(self) -> int:
        """The entry of the newest configuration in the log; 0: none is."""
        return self._open[-1][0] if self._open else self.settled_index

    @property
    def settled(self) -> tuple[int, Membership]:
        """The newest configuration known to be committed; index 0: the membership of the settings."""
        return self.settled_index, self._settled

    def settled_store(self, member: NodeId) -> str:
        """The folder that the newest configuration known to be committed names; empty when it names none."""
        return self._settled.store_of(member)

    def learn(self, index: int, configuration: Configuration) -> None:
        """From the entry ``index`` of the log or a snapshot; in the log's order."""
        self._open.append((index, configuration))
        self._recount()

    def committed(self, index: int) -> bool:
        """Everything up to ``index`` is; whether a configuration became so."""
        if not self._open or self._open[0][0] > index:
            return False
        while self._open and self._open[0][0] <= index:
            self.settled_index, configuration = self._open.pop(0)
            self._committed_addresses.update(configuration.addresses)
            self._settled = configuration.membership
        self._recount()
        return True

    def cut(self, from_index: int) -> bool:
        """The log lost everything from ``from_index``; whether a configuration was among it."""
        if not self._open or self._open[-1][0] < from_index:
            return False
        while self._open and self._open[-1][0] >= from_index:
            self._open.pop()
        self._recount()
        return True

    def changed(self, wanted: Membership, addresses: Mapping[str, str]) -> Configuration:
        """The configuration of ``wanted``.  InvalidArgumentError when a member has no address."""
        known = {**self._addresses, **{NodeId(node): address for node, address in addresses.items()}}
        missing = [member for member in wanted.members if member not in known]
        if missing:
            raise InvalidArgumentError(f"no address known for {', '.join(missing)}")
        return Configuration(wanted, known)

    def moves(self, configuration: Configuration) -> bool:
        """Whether it has another address for a member that is known."""
        return any(self._addresses.get(member, address) != address for member, address in configuration.addresses.items())
