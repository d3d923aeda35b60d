"""The body of a configuration entry: voters, learners, their data folders, and the addresses of the replicas.

Owns that format.  It is JSON: such entries are rare, and operators read them in a dump.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dledger.core.types import Membership, NodeId
from dledger.runtime.env import Buffer
from dledger_wire import strict_json
from dledger_wire.errors import CorruptEntryError


@dataclass(frozen=True, slots=True)
class Configuration:
    """A membership, and where its members are."""

    membership: Membership
    addresses: Mapping[NodeId, str]

    @property
    def members(self) -> tuple[NodeId, ...]:
        return self.membership.members

    def encode(self) -> bytes:
        value = {
            "voters": list(self.membership.voters),
            "learners": list(self.membership.learners),
            "addresses": {node: self.addresses[node] for node in self.members},
            "stores": dict(self.membership.stores),
        }
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    @staticmethod
    def decode(body: Buffer) -> Configuration:
        """CorruptEntryError when the body is not a configuration."""
        try:
            value = strict_json.parse(bytes(body))
            voters, learners, addresses = value["voters"], value["learners"], value["addresses"]
            stores = value.get("stores", {})  # entries of before folders were named have none
            texts = [*voters, *learners, *addresses, *addresses.values(), *stores, *stores.values()]
            if not isinstance(voters, list) or not isinstance(learners, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError("expected lists of strings")
            if not voters or len({*voters, *learners}) != len(voters) + len(learners) or not {*voters, *learners} <= addresses.keys():
                raise ValueError("expected at least one voter, no duplicate members, an address for every member")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptEntryError(f"configuration entry: {error}") from None
        membership = Membership(tuple(NodeId(node) for node in voters), tuple(NodeId(node) for node in learners)).with_stores(stores)
        return Configuration(membership, {NodeId(node): address for node, address in addresses.items()})
