"""What must hold at every step of every run, whatever clients see: Raft's safety, watched from inside the nodes.

Owns the global record: who led which term, which entry was ever applied at which index.  It wraps two methods of a node's state machine
and changes nothing of what they do.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from broker.node import BrokerNode
from dledger.core.effects import RoleChanged
from dledger.core.types import Role
from dledger.log.entry import RawEntry
from tests.sim.trace import Trace


class SafetyViolationError(AssertionError):
    """Two nodes disagree where no two nodes may."""


class Invariants:
    """Election safety, and state machine safety: one entry an index, for ever, on every node and across restarts."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.leaders: dict[int, str] = {}
        self.applied: dict[int, tuple[int, int, str]] = {}  # index -> (term, checksum, first node that applied it)
        self.violations: list[str] = []

    def watch(self, node_id: str, node: BrokerNode) -> None:
        """Look at everything ``node`` applies and becomes from now on."""
        store = node.store
        apply, role_changed = store.apply, store.role_changed

        async def watched_apply(entries: Sequence[RawEntry]) -> None:
            for entry in entries:
                self._check_applied(node_id, entry)
            await apply(entries)

        def watched_role(event: RoleChanged) -> None:
            if event.role is Role.LEADER:
                self._check_leader(node_id, event.term)
            role_changed(event)

        store.apply, store.role_changed = watched_apply, watched_role  # type: ignore[method-assign]

    def _check_leader(self, node_id: str, term: int) -> None:
        first = self.leaders.setdefault(term, node_id)
        if first != node_id:
            self._violated(f"election safety: {first} and {node_id} both lead term {term}")

    def _check_applied(self, node_id: str, entry: RawEntry) -> None:
        checksum = zlib.crc32(b"".join(bytes(buffer) for buffer in entry.buffers))
        known = self.applied.setdefault(entry.index, (entry.term, checksum, node_id))
        if known[:2] != (entry.term, checksum):
            text = f"{node_id} applied term {entry.term} crc {checksum:08x}, {known[2]} term {known[0]} crc {known[1]:08x}"
            self._violated(f"state machine safety: index {entry.index}: {text}")

    def _violated(self, text: str) -> None:
        self._trace.note("VIOLATED", "safety", text)
        self.violations.append(text)
        raise SafetyViolationError(text)


async def check_logs_match(nodes: Sequence[BrokerNode]) -> None:
    """Log matching after the dust has settled: byte for byte the same entries on every node."""
    wanted = None
    for node in nodes:
        log = node.raft.log
        data = []
        index = log.first_index
        while index <= log.last.index:
            entries = await log.read(index, 1 << 20, log.last.index)
            data += [(entry.index, entry.term, zlib.crc32(b"".join(bytes(buffer) for buffer in entry.buffers))) for entry in entries]
            index = entries[-1].index + 1
        if wanted is not None and data != wanted:
            different = next((pair for pair in zip(data, wanted, strict=False) if pair[0] != pair[1]), (len(data), len(wanted)))
            raise SafetyViolationError(f"log matching: {node.settings.node.id} differs: {different}")
        wanted = data
