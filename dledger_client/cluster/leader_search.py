"""Who leads a replica group: the leader that is known, or a search among the nodes.

Owns the choice between claims.  A leader that failed counts again only if it claims to lead itself, or leads in a newer term.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger_client.cluster.node_metadata import NodeMetadata, group_of, info_of
from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.routes import ReplicaGroup
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import NotLeaderError, UnreachableError


class LeaderSearch:
    """Searches for one client."""

    def __init__(self, nodes: NodeMetadata, cache: RouteCache) -> None:
        self._nodes, self._cache = nodes, cache

    async def leader(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """The known leader of ``group``; searched for when there is none, or when it is ``failed`` in no term after ``failed_term``."""
        known = self._cache.groups.get(group)
        if known is None or not known.leader_address or (known.leader_address == failed and known.term <= failed_term):
            return await self.find(group, failed, failed_term)
        return known

    async def find(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """Who leads ``group`` now, by asking everybody; one search.  ``failed`` counts as leader only if it says so itself, or in a term
        after ``failed_term``.  Raises NotLeaderError when no node is known to lead."""

        def leads(address: str, info: broker_pb2.GroupInfo) -> bool:
            claimed = info.leader_address
            return bool(claimed) and (claimed != failed or claimed == address or info.term > failed_term)

        def enough(address: str, response: broker_pb2.MetadataResponse) -> bool:
            return (info := info_of(group, response)) is not None and leads(address, info)

        answers = await self._nodes.survey(self._nodes.addresses(), [], enough)
        claims = [info for address, response in answers if (info := info_of(group, response)) is not None and leads(address, info)]
        if not claims:
            raise NotLeaderError(self._without_leader(group, [address for address, _ in answers]), leader_address="")
        found = group_of(max(claims, key=lambda info: info.term))
        self._cache.groups[group] = found
        return found

    def _without_leader(self, group: str, answered: Sequence[str]) -> str:
        if not answered:
            return f"no node reachable at {', '.join(self._nodes.addresses())}"
        known = self._cache.groups.get(group)
        members = {node.address for node in known.nodes} if known is not None else set(self._nodes.addresses())
        return f"group {group} has no leader now ({len(members.intersection(answered))} of its {len(members)} nodes answered)"

    async def confirm(self, group: str, address: str) -> None:
        """Ask the nodes who leads.  UnreachableError when another node than ``address`` does, NotLeaderError when none is known to."""
        leader = (await self.find(group)).leader_address
        if leader != address:
            raise UnreachableError(f"no response from {address}; {leader} is the new leader", address=address)
