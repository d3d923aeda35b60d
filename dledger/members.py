"""What configurations say of members beside their votes: where they are, and since when they belong to the group.

Owns the newest word on each; what is cut from the log was never said.  "Since" is the length of the log when a member was added to a
running group, 0 for the first members: a replica that comes back with another data folder may do so only if it was added anew, and with
that number it shows that it was.

A configuration counts from the moment it is in the log, but a known address only gives way to another one that is committed.  Otherwise a
leader that loses its change, with a wrong address in it, could not even answer the new leader who would have it cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dledger.configuration import Configuration
from dledger.core.types import Membership, NodeId
from dledger_wire.errors import InvalidArgumentError


class Members:
    """Addresses and beginnings of everybody a configuration has named."""

    def __init__(self, addresses: Mapping[NodeId, str], links: Mapping[NodeId, str]) -> None:
        self._links = dict(links)
        self._committed_addresses, self._committed_since = dict(addresses), dict[NodeId, int]()
        self._settled = tuple(addresses)  # the members of the newest configuration known to be committed
        self._open: list[tuple[int, Configuration]] = []  # not known to be committed, in the log's order
        self._recount()

    def _recount(self) -> None:
        self._addresses, self._since = dict(self._committed_addresses), dict(self._committed_since)
        for _index, configuration in self._open:
            self._addresses = {**configuration.addresses, **self._addresses}
            self._since.update(_since_of(configuration))

    @property
    def addresses(self) -> Mapping[NodeId, str]:
        return MappingProxyType(self._addresses)

    @property
    def links(self) -> dict[NodeId, str]:
        """Where this node dials whom: at the address, unless its settings name another place."""
        return {**self._addresses, **self._links}

    def links_of(self, membership: Membership) -> dict[NodeId, str]:
        """Where to dial the members of the configuration in force.

        Until that one is known to be committed, those of the one before too: one of them may lead and have it cut, and must be answered.
        """
        links, before = self.links, self._settled if self._open else ()
        return {node: links[node] for node in (*membership.voters, *membership.learners, *before) if node in links}

    def since(self, member: NodeId) -> int:
        return self._since.get(member, 0)

    def learn(self, index: int, configuration: Configuration) -> None:
        """From the entry ``index`` of the log, or of a copy; in the log's order."""
        self._open.append((index, configuration))
        self._recount()

    def committed(self, index: int) -> bool:
        """Everything up to ``index`` is; whether a configuration became so."""
        if not self._open or self._open[0][0] > index:
            return False
        while self._open and self._open[0][0] <= index:
            configuration = self._open.pop(0)[1]
            self._committed_addresses.update(configuration.addresses)
            self._committed_since.update(_since_of(configuration))
            self._settled = tuple(configuration.members)
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

    def changed(self, now: Membership, wanted: Membership, addresses: Mapping[str, str], log_length: int) -> Configuration:
        """The configuration that makes ``now`` the ``wanted`` one.  InvalidArgumentError when a member has no address."""
        known = {**self._addresses, **{NodeId(node): address for node, address in addresses.items()}}
        members = (*wanted.voters, *wanted.learners)
        missing = [member for member in members if member not in known]
        if missing:
            raise InvalidArgumentError(f"no address known for {', '.join(missing)}")
        since = {member: self.since(member) if member in now else log_length for member in members}
        return Configuration(wanted, known, since)


def _since_of(configuration: Configuration) -> dict[NodeId, int]:
    return {member: configuration.since.get(member, 0) for member in configuration.members}
