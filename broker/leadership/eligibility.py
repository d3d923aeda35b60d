"""Which voters may be given leadership, and what speaks against the others.

Owns the reasons, in words: one answer for the operator's transfer, for moves that a master makes by itself, and for ``dledger status``.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.units import span
from broker.context import ServiceContext
from dledger.settings import PeerStatus

AWAY_MS = 5_000  # a member that is only late, or has just started, may still take over
FAR_ENTRIES = 10_000  # a transfer waits an election timeout for the new leader to catch up
NO_ROOM = "its disk has no room for new messages"


def unfit_voters(context: ServiceContext) -> dict[str, str]:
    """The other voters, each with why it must not lead; empty: nothing speaks against it.  Known to the leader only."""
    status, off = context.raft.status(), context.raft.clocks.off()
    return {peer.node_id: _unfit(peer, status.commit_index, off) for peer in status.peers if peer.voter and peer.node_id != status.node_id}


def _unfit(peer: PeerStatus, commit_index: int, off: Mapping[str, int]) -> str:
    behind = commit_index - peer.match_index
    if peer.refused:
        return f"connections are refused: {peer.refused}"
    if peer.silent_ms >= AWAY_MS:
        return f"it does not answer, the last time {peer.silent_ms / 1000:.0f} s ago"
    if peer.low_on_space:
        return NO_ROOM
    if peer.node_id in off:
        return f"its clock is off by {span(off[peer.node_id])} from the group's majority"
    if peer.yields:
        return peer.yields
    if peer.state == "copy":
        return "it copies the log from another replica"
    return f"it is {behind} entries behind" if behind > FAR_ENTRIES else ""
