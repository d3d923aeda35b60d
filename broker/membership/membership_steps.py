"""Membership changes as operators name them, as steps that add or remove one voter each.

Owns the checks before a step goes into the log: once committed, a bad name or address reaches every client and every peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker.config.values import is_any_host, split_address
from dledger.core.types import Membership, NodeId
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import is_node_name


def check_new_member(node: str, address: str, others: Mapping[str, str]) -> None:
    """Refuse a node that could not be reached or identified: InvalidArgumentError.  ``others``: the addresses of all other nodes, by id."""
    if not is_node_name(node):
        raise InvalidArgumentError(f"node id {node!r}: expected letters, digits, _ and -, at most 64")
    try:
        host, _ = split_address(address)
    except ValueError as error:
        raise InvalidArgumentError(f"address of {node}: {error}") from None
    if is_any_host(host):
        raise InvalidArgumentError(f"address of {node}: {address} is a wildcard; expected the address that clients connect to")
    for other, known in others.items():
        if other != node and known.lower() == address.lower():
            raise InvalidArgumentError(f"address of {node}: {address} is the address of {other}; expected one of its own")


def membership_steps(now: Membership, action: str, node: str, replaces: str = "", known_address: str = "") -> list[Membership]:
    """The memberships to go through, in order.  InvalidArgumentError when the request does not fit the current membership.

    ``known_address``: of ``node``, if it has one.
    """
    is_there = f"{node} is already a member{known_address and f' at {known_address}'}"
    node_id = NodeId(node)
    if not node:
        raise InvalidArgumentError("expected the id of a node")
    if action == "add":
        _require(node_id not in now, is_there)
        return [Membership(now.voters, (*now.learners, node_id))]
    if action == "promote":
        _require(node_id in now.learners, f"{node} is not a learner; the learners are {', '.join(now.learners) or 'none'}")
        return [Membership((*now.voters, node_id), without(now, node).learners)]
    if action == "remove":
        _require(node_id in now, f"{node} is not a member; the members are {', '.join((*now.voters, *now.learners))}")
        _require(now.voters != (node_id,), f"{node} is the only voter; a group cannot lose it")
        return [without(now, node_id)]
    if action == "replace":
        gone = NodeId(replaces)
        members = ", ".join((*now.voters, *now.learners))
        todo = f"if it was removed already: dledger member add --id {node}"
        _require(node_id not in now, is_there)
        _require(gone in now, f"{replaces} is not a member; the members are {members}; {todo}")
        removed = without(now, gone)
        return [removed, Membership(removed.voters, (*removed.learners, node_id))]
    raise InvalidArgumentError(f"action {action!r}: expected add, promote, remove or replace")


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise InvalidArgumentError(text)


def without(now: Membership, node: str) -> Membership:
    voters, learners = ([each for each in nodes if each != node] for nodes in (now.voters, now.learners))
    return replace(now, voters=tuple(voters), learners=tuple(learners))
