"""The handshake of a link: what each replica says of its data folder.

Owns the value and its form on the wire (``LinkHello``).  These are claims; ``replica/admission.py`` decides what they may bring about.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.types import NodeId
from dledger.membership.boot_history import BootHistory
from dledger_wire._pb import raft_pb2
from dledger_wire.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Handshake:
    """``configuration`` is the entry of the newest configuration in its log, 0 for none; ``term`` and ``last_index`` what it holds."""

    store_id: str
    configuration: int
    term: int
    last_index: int
    boots: BootHistory

    def encode(self, node_id: NodeId) -> bytes:
        hello = raft_pb2.LinkHello(
            node_id=node_id,
            store_id=self.store_id,
            configuration=self.configuration,
            term=self.term,
            last_index=self.last_index,
            starts=self.boots.starts,
            lives=self.boots.drawn,
        )
        return bytes(hello.SerializeToString())


def decode(data: bytes) -> tuple[NodeId, Handshake]:
    """Who speaks, and of which folder.  InvalidArgumentError when it is no introduction."""
    try:
        hello = raft_pb2.LinkHello.FromString(data)
    except Exception as error:  # protobuf raises its own class
        raise InvalidArgumentError("malformed handshake") from error
    if not hello.store_id:
        raise InvalidArgumentError(f"store: {hello.node_id!r} sent no store id")
    boots = BootHistory(hello.starts, tuple(hello.lives))
    return NodeId(hello.node_id), Handshake(hello.store_id, hello.configuration, hello.term, hello.last_index, boots)
