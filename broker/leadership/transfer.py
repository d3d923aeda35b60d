"""Transfers of leadership: which voters may be given it, what speaks against the others, and the operators' call.

Owns the reasons, in words: one answer for the operator's transfer, for moves that a master makes by itself, and for ``dledger status``.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.units import span
from broker.context import ServiceContext
from dledger.settings import PeerStatus
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

AWAY_MS = 5_000  # a member that is only late, or has just started, may still take over
FAR_ENTRIES = 10_000  # a transfer waits an election timeout for the new leader to catch up
NO_ROOM = "its disk has no room for new messages"
TRANSFER_TIMEOUT_S = 5.0
FORCE_HINT = "or dledger leader transfer --force (force=True)"


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


class TransferService:
    """Served by the leader."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.TRANSFER_LEADER.serve(server, self.transfer_leader)

    async def transfer_leader(self, request: admin_pb2.TransferRequest, _caller: CallContext) -> admin_pb2.TransferReply:
        target = request.target
        context, raft = self._context, self._context.raft
        context.require_leader()
        start_ms = context.env.clock.monotonic_ms()
        own = context.settings.node.id
        if target == own:
            return admin_pb2.TransferReply(old_leader=own, new_leader=own, term=raft.term)
        if not request.force:
            self._check_fit(target)
        taker = await raft.transfer(target or None, TRANSFER_TIMEOUT_S)
        took_ms = context.env.clock.monotonic_ms() - start_ms
        return admin_pb2.TransferReply(old_leader=own, new_leader=taker, term=raft.term, took_ms=took_ms)

    def _check_fit(self, target: str) -> None:
        """InvalidArgumentError when the voter, or every voter, must not lead: leadership would come back, and writes stop twice."""
        unfit = unfit_voters(self._context)
        if not target and unfit and all(unfit.values()):
            reasons = "; ".join(f"{node}: {why}" for node, why in unfit.items())
            raise InvalidArgumentError(f"no other voter may lead now ({reasons}); {FORCE_HINT}")
        if unfit.get(target):
            raise InvalidArgumentError(f"{target} must not lead now: {unfit[target]}; expected another voter, {FORCE_HINT}")
