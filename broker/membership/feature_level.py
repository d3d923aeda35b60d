"""Raising the feature level of this replica group.

Owns the condition: every member, voter or learner, is connected to the leader and has reported a build with the level.  A member that
is away may come back with any build, so it is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.context import ServiceContext
from dledger.settings import PeerStatus
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.feature_levels import release_of
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.feature_level import RaiseFeatureLevel

COMMAND_TIMEOUT_S = 5.0


class FeatureLevelService:
    """Operators' call about the feature level."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.RAISE_FEATURE_LEVEL.serve(server, self.raise_level)

    async def raise_level(self, request: admin_pb2.RaiseFeatureLevelRequest, _caller: CallContext) -> admin_pb2.RaiseFeatureLevelReply:
        """Raise it to the level asked for; 0: to the highest that every member can do."""
        context = self._context
        context.require_master()
        now, peers = context.store.feature_level.now, context.raft.status().peers
        wanted = request.level or _highest(now.level, peers)
        if wanted < now.level:
            raise InvalidArgumentError(f"the replica group is at feature level {now.level}, which is never lowered")
        if wanted > now.level:
            if reasons := list(_reasons_against(wanted, peers)):
                name = context.settings.group.name
                raise NotReadyError(f"replica group {name} stays at feature level {now.level}: {'; '.join(reasons)}")
            now_at = await context.command(RaiseFeatureLevel(level=wanted, release=release_of(wanted)), COMMAND_TIMEOUT_S)
        else:
            now_at = now
        return admin_pb2.RaiseFeatureLevelReply(
            group=context.settings.group.name, old_level=now.level, level=now_at.level, release=now_at.release
        )


def _highest(now: int, peers: Sequence[PeerStatus]) -> int:
    """The highest level that every member that is there can do; if that is the present one, the highest that any can, to name the others.

    A member that is away is a reason against any level, and named as one.
    """
    can = [peer.levels.highest for peer in peers if peer.connected]
    return next((level for level in (min(can), max(can)) if level > now), now)


def _reasons_against(level: int, peers: Sequence[PeerStatus]) -> Iterator[str]:
    for peer in peers:
        if not peer.connected:
            yield f"{peer.node_id} is away, and what its build can do is not known"
        elif level not in peer.levels:
            yield f"{peer.node_id} ({peer.version}) can do levels {peer.levels} only"
