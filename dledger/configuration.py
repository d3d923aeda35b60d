"""The body of a configuration entry: voters, learners, the addresses by which replicas reach one another, and since when each belongs.

Owns that format: JSON, since such entries are rare and a human reads them in a dump.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.core.types import Membership, NodeId
from dledger.env import Buffer
from dledger_wire.errors import CorruptEntryError


@dataclass(frozen=True, slots=True)
class Configuration:
    """A membership, where its members are, and how long the log was when each was added (not named: one of the first)."""

    membership: Membership
    addresses: Mapping[NodeId, str]
    since: Mapping[NodeId, int] = field(default_factory=dict)

    @property
    def members(self) -> tuple[NodeId, ...]:
        return (*self.membership.voters, *self.membership.learners)

    def encode(self) -> bytes:
        members = self.members
        value = {
            "voters": list(self.membership.voters),
            "learners": list(self.membership.learners),
            "addresses": {node: self.addresses[node] for node in members},
            "since": {node: self.since[node] for node in members if self.since.get(node)},
        }
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    @staticmethod
    def decode(body: Buffer) -> Configuration:
        """CorruptEntryError when the body is not a configuration."""
        try:
            value = json.loads(bytes(body))
            voters, learners, addresses = value["voters"], value["learners"], value["addresses"]
            since = {NodeId(node): int(length) for node, length in value.get("since", {}).items()}
            texts = [*voters, *learners, *addresses, *addresses.values()]
            if not isinstance(voters, list) or not isinstance(learners, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError("expected lists of texts")
            if not voters or len({*voters, *learners}) != len(voters) + len(learners) or not {*voters, *learners} <= addresses.keys():
                raise ValueError("expected voters, nobody named twice, everybody with an address")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptEntryError(f"configuration entry: {error}") from None
        membership = Membership(tuple(NodeId(node) for node in voters), tuple(NodeId(node) for node in learners))
        return Configuration(membership, {NodeId(node): address for node, address in addresses.items()}, since)
