"""The handshake of a link: what each replica says of its data folder.

Owns the value and its form on the wire (``LinkHello``).  These are claims; ``replica/admission.py`` decides what they may bring about.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.types import NodeId
from dledger.membership.boot_history import BootHistory
from dledger.membership.lineage import FIRST, Origin
from dledger_wire._pb import raft_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.feature_levels import LEVEL_0, LevelRange


@dataclass(frozen=True, slots=True)
class Handshake:
    """``configuration`` is the entry of the newest configuration in its log, 0 for none; ``term`` and ``last_index`` what it holds.

    ``levels``: the feature levels that its build can do; ``group_level``: the one it knows its group to be at, and ``group_release`` the
    first release for that.  ``may_lack``: its log may end before what it acknowledged (``replica/unsynced.py``).  ``boots``
    and ``key`` are made for the receiver (``boot_history.py``).
    """

    store_id: str
    configuration: int
    term: int
    last_index: int
    boots: BootHistory
    levels: LevelRange = LEVEL_0
    group_level: int = 0
    group_release: str = ""
    version: str = ""
    origin: Origin = FIRST
    key: str = ""
    may_lack: bool = False

    @property
    def is_undecided(self) -> bool:
        """Whether its folder belongs to no lineage yet."""
        return not self.origin.lineage and not self.last_index

    def encode(self, node_id: NodeId) -> bytes:
        hello = raft_pb2.LinkHello(
            node_id=node_id,
            store_id=self.store_id,
            configuration=self.configuration,
            term=self.term,
            last_index=self.last_index,
            starts=self.boots.starts,
            lives=self.boots.drawn,
            lowest_level=self.levels.lowest,
            highest_level=self.levels.highest,
            group_level=self.group_level,
            group_release=self.group_release,
            version=self.version,
            lineage=self.origin.lineage,
            lineage_term=self.origin.term,
            key=self.key,
            may_lack=self.may_lack,
        )
        return bytes(hello.SerializeToString())


def decode(data: bytes) -> tuple[NodeId, Handshake]:
    """The speaker and its data folder.  InvalidArgumentError when it is no introduction."""
    try:
        hello = raft_pb2.LinkHello.FromString(data)
    except Exception as error:  # protobuf raises its own class
        raise InvalidArgumentError("malformed handshake") from error
    if not hello.store_id:
        raise InvalidArgumentError(f"store: {hello.node_id!r} sent no store id")
    boots = BootHistory(hello.starts, tuple(hello.lives))
    said = Handshake(
        store_id=hello.store_id,
        configuration=hello.configuration,
        term=hello.term,
        last_index=hello.last_index,
        boots=boots,
        levels=LevelRange(hello.lowest_level, hello.highest_level),
        group_level=hello.group_level,
        group_release=hello.group_release,
        version=hello.version,
        origin=Origin(hello.lineage, hello.lineage_term),
        key=hello.key,
        may_lack=hello.may_lack,
    )
    return NodeId(hello.node_id), said
