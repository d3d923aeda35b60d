"""Asking nodes for their state: all at once, each for a limited time.

Owns which nodes are asked, those of which only leaders know among them, and what is said of one that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from dledger_client.admin.cluster_status import NO_ANSWER, NodeStatus, PeerStatus, ReplicaGroupStatus, judge_group
from dledger_client.cluster.channels import Bootstrap
from dledger_client.cluster.responses import object_of, refusals
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import ReplicaGroup
from dledger_client.runtime.argument_ranges import check_kind
from dledger_client.runtime.environment import environment_for
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import DeadlineExceededError, DledgerError
from dledger_wire.rpc import methods

GRACE_S = 0.3  # for a node that reports the end of its time itself


def known_nodes(groups: Mapping[str, ReplicaGroup]) -> dict[str, dict[str, str]]:
    """Replica group -> node id -> address."""
    return {group.name: {node.id: node.address for node in group.nodes} for group in groups.values()}


async def status_of_nodes(bootstrap: Bootstrap, nodes: Mapping[str, Mapping[str, str]], timeout_s: float) -> list[ReplicaGroupStatus]:
    """As ``Admin.cluster_status``, for a program that asks nothing else: it does not import all that an ``Admin`` can do."""
    router = environment_for(bootstrap).open_router(bootstrap)
    try:
        return await ask_nodes(router, nodes, timeout_s)
    finally:
        await router.close()


async def ask_nodes(router: Router, nodes: Mapping[str, Mapping[str, str]], timeout_s: float) -> list[ReplicaGroupStatus]:
    """Ask all ``nodes`` at once, then members that only leaders know; no node is waited for longer than ``timeout_s``.

    Raises AuthenticationFailedError or PermissionDeniedError when that is all that comes back; the certificate of one node is no refusal of
    who asks.
    """
    check_kind(Mapping, "nodes", nodes, *(nodes.values() if isinstance(nodes, Mapping) else ()))
    errors: list[Exception] = []
    asked = [
        _ask(router, group, node_id, address, timeout_s, errors) for group, members in nodes.items() for node_id, address in members.items()
    ]
    found = list(await asyncio.gather(*asked))
    if not any(node.reachable for node in found):
        refused = refusals(errors)
        for refusal in (each for each in refused if len(refused) == len(found) or "in_handshake" not in each.details):
            raise refusal
    others = {
        (node.replica_group, peer.id): peer.address
        for node in found
        if node.role == "leader"
        for peer in node.peers
        if peer.id not in nodes[node.replica_group]
    }
    asked = [_ask(router, group, node_id, address, timeout_s, errors) for (group, node_id), address in others.items()]
    found += [replace(node, configured=False) for node in await asyncio.gather(*asked)]
    return [judge_group(name, found) for name in nodes]


async def _ask(router: Router, group: str, node_id: str, address: str, timeout_s: float, errors: list[Exception]) -> NodeStatus:
    try:
        call = methods.NODE_STATUS.call(router.channel(address), admin_pb2.Empty(), timeout_s=timeout_s)
        reply = await asyncio.wait_for(call, timeout_s + GRACE_S)
    except (DledgerError, TimeoutError) as error:
        errors.append(error)
        return NodeStatus(group, node_id, address, False, _reason(error, timeout_s))
    if reply.id != node_id:
        text = f"another node answers there: {reply.cluster}/{reply.group}/{reply.id}"
        return NodeStatus(group, node_id, address, False, text)
    return _node_status(group, address, reply)


def _reason(error: DledgerError | TimeoutError, timeout_s: float) -> str:
    if isinstance(error, (TimeoutError, DeadlineExceededError)):
        return f"{NO_ANSWER} {timeout_s:g} s"
    return str(error.details.get("reason") or error.message)


def _node_status(group: str, address: str, reply: admin_pb2.NodeStatusReply) -> NodeStatus:
    return object_of(
        NodeStatus,
        reply,
        replica_group=group,
        address=address,
        reachable=True,
        voters=tuple(reply.voters),
        learners=tuple(reply.learners),
        peers=tuple(object_of(PeerStatus, peer) for peer in reply.peers),
        role_log=tuple(reply.role_log),
        refusals=dict(reply.refusals),
        connection_states=dict(reply.connection_states),
        warnings=tuple(reply.warnings),
    )
