"""Who leads a replica group: the leader that is known, or a search among the nodes of the group.

Owns the choice between claims.  A leader that failed counts again only if it claims to lead itself, or leads in a newer term.  A search
ends as soon as the watch of routes tells of a newer leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dledger_client.cluster.asking import drop, refused
from dledger_client.cluster.node_metadata import NodeAnswer, NodeMetadata, info_of
from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.route_watch import RouteWatch
from dledger_client.cluster.routes import ReplicaGroup
from dledger_client.cluster.silent_leaders import SilentLeaders
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import AuthenticationFailedError, DledgerError, NotLeaderError, PermissionDeniedError, UnreachableError

HANGS_S = 0.05  # a search that takes longer waits for a node that hangs; meanwhile the others may get a leader


class LeaderSearch:
    """Searches for one client."""

    def __init__(self, nodes: NodeMetadata, cache: RouteCache, watch: RouteWatch, silent: SilentLeaders) -> None:
        self._nodes, self._cache, self._watch, self._silent = nodes, cache, watch, silent

    async def leader(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """The known leader of ``group``; searched for when there is none, or when it is ``failed`` in no term after ``failed_term``."""
        known = self._cache.groups.get(group)
        return known if known is not None and _may_lead(known, failed, failed_term) else await self.find(group, failed, failed_term)

    async def find(self, group: str, failed: str = "", failed_term: int = 0, silent: str = "") -> ReplicaGroup:
        """Who leads ``group`` now, by asking its nodes; one search.  ``failed`` counts as leader only if it says so itself, or in a term
        after ``failed_term``; ``silent`` hardly answers.  Raises NotLeaderError when no node is known to lead, and why the nodes refuse the
        caller when that is all they say."""
        self._watch.doubt()
        search = asyncio.ensure_future(self._among_nodes(group, failed, failed_term))
        told = asyncio.ensure_future(self._told(group, failed, failed_term))
        try:
            while not (await asyncio.wait([search, told], timeout=HANGS_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if failed or silent:
                    self._silent.ask_others(group, failed or silent)
            return search.result() if search.done() else told.result()
        finally:
            drop(search, told)

    async def _told(self, group: str, failed: str, failed_term: int) -> ReplicaGroup:
        """A leader in a newer term than the one known now, as soon as somebody tells of it."""
        known = self._cache.groups.get(group)
        term = known.term if known is not None else 0
        while True:
            found = await self._cache.led_after(group, term)
            if _may_lead(found, failed, failed_term):
                return found
            term = found.term

    async def _among_nodes(self, group: str, failed: str, failed_term: int) -> ReplicaGroup:
        addresses = self._nodes.addresses_of(group)
        known = self._cache.groups.get(group)
        known_term = known.term if known is not None and known.leader_address else 0

        def claim(answer: NodeAnswer) -> ReplicaGroup | None:
            address, response = answer
            info = info_of(group, response)
            if info is None or not info.leader_address:
                return None
            leads = info.leader_address == address or _may_lead(info, failed, failed_term)
            return self._nodes.group_of(info, address) if leads else None

        def enough(answer: NodeAnswer) -> bool:
            found = claim(answer)
            return found is not None and found.term >= known_term

        problems: list[DledgerError] = []
        answers = await self._nodes.survey(addresses, [], enough, problems)
        if not answers and (refusal := refused(problems)) is not None:
            raise refusal
        claims = [found for answer in answers if (found := claim(answer)) is not None]
        best = max(claims, key=lambda found: found.term, default=None)
        if best is None or (best.term < known_term and not _refutes(answers, group, known_term, len(addresses))):
            raise NotLeaderError(_without_leader(group, addresses, answers), leader_address="")
        self._cache.set_group(best)
        return best

    async def leads(self, group: str, address: str) -> bool:
        """Whether the node at ``address`` itself says that it leads now."""
        try:
            return is_leader(group, address, await self._nodes.ask(address, []))
        except DledgerError:
            return False

    async def confirm(self, group: str, address: str) -> None:
        """Ask the nodes who leads.  UnreachableError when another node than ``address`` does, NotLeaderError when none is known to."""
        try:
            leader = (await self.find(group, silent=address)).leader_address
        except (AuthenticationFailedError, PermissionDeniedError) as error:  # it says nothing of what ``address`` was asked before
            raise NotLeaderError(error.message) from error
        if leader != address:
            raise UnreachableError(f"no response from {address}; {leader} is the new leader", address=address)


def is_leader(group: str, address: str, response: broker_pb2.MetadataResponse) -> bool:
    """Whether the node at ``address``, which answered so, leads."""
    info = info_of(group, response)
    return info is not None and info.leader_address == address


def _without_leader(group: str, members: Sequence[str], answers: Sequence[NodeAnswer]) -> str:
    if not answers:
        return f"replica group {group}: no node reachable at {', '.join(members)}"
    answered = {address for address, _ in answers}
    count = f"{len(answered.intersection(members))} of its {len(members)} nodes"
    if (leader := _named_leader(group, answers)) and leader not in answered:  # as behind a firewall that lacks one of the nodes
        return f"replica group {group}: its leader {leader} does not answer ({count} do)"
    text = f"replica group {group} has no leader now ({count} answered"
    full = sorted(address for address, response in answers if response.disk_full)
    return f"{text}; full disks: {', '.join(full)})" if full else f"{text})"


def _named_leader(group: str, answers: Sequence[NodeAnswer]) -> str:
    """Who leads by what nodes of the newest term say; empty when they know nobody."""
    infos = [info for _, response in answers if (info := info_of(group, response)) is not None]
    newest = max(infos, key=lambda info: (info.term, info.leader_address), default=None)
    return newest.leader_address if newest is not None else ""


def _may_lead(claimed: ReplicaGroup | broker_pb2.GroupInfo, failed: str, failed_term: int) -> bool:
    """Whether somebody is said to lead who is not the one that failed, or is, in a newer term."""
    return bool(claimed.leader_address) and (claimed.leader_address != failed or claimed.term > failed_term)


def _refutes(answers: Sequence[NodeAnswer], group: str, term: int, nodes: int) -> bool:
    """Whether there was no leader of ``term``: a majority of the nodes, of which some must have voted for it, has not seen that term."""
    seen = [info.term for _, response in answers if (info := info_of(group, response)) is not None]
    return 2 * len(seen) > nodes and max(seen) < term
