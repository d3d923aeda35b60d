"""What configurations say of members beside their votes: where they are, and since when they belong to the group.

Owns the newest word on each.  "Since" is the length of the log when a member was added to a running group, 0 for the first members: a
replica that comes back with another data folder may do so only if it was added anew, and with that number it shows that it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dledger.configuration import Configuration
from dledger.core.types import Membership, NodeId
from dledger_wire.errors import InvalidArgumentError


class Members:
    """Addresses and beginnings of everybody a configuration has named."""

    def __init__(self, addresses: Mapping[NodeId, str]) -> None:
        self._addresses = dict(addresses)
        self._since: dict[NodeId, int] = {}

    @property
    def addresses(self) -> Mapping[NodeId, str]:
        return MappingProxyType(self._addresses)

    def since(self, member: NodeId) -> int:
        return self._since.get(member, 0)

    def learn(self, configuration: Configuration) -> None:
        """From one in the log or in a copy, in the log's order."""
        self._addresses.update(configuration.addresses)
        self._since.update({member: configuration.since.get(member, 0) for member in configuration.members})

    def changed(self, now: Membership, wanted: Membership, addresses: Mapping[str, str], log_length: int) -> Configuration:
        """The configuration that makes ``now`` the ``wanted`` one.  InvalidArgumentError when a member has no address."""
        known = {**self._addresses, **{NodeId(node): address for node, address in addresses.items()}}
        members = (*wanted.voters, *wanted.learners)
        missing = [member for member in members if member not in known]
        if missing:
            raise InvalidArgumentError(f"no address known for {', '.join(missing)}")
        since = {member: self.since(member) if member in now else log_length for member in members}
        return Configuration(wanted, known, since)
