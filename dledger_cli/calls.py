"""Calls of the command line to a group of the cluster's file: to its leader, or to whoever answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dledger_cli.context import real_network
from dledger_client.cluster.metadata import Router
from dledger_wire.clock import SystemClock, system_random
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, UnreachableError

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, GroupConfig

TRY_S = 5.0
GRACE_S = 1.0
CONTACT_S = 5.0  # for a first answer of anybody
LEADER_PATIENCE_S = 1.5  # longer than an election


def group_of(config: ClusterConfig, name: str) -> GroupConfig:
    """The group called ``name``; the first of the file when none is named and it is the only one."""
    names = [group.name for group in config.groups]
    if not name and len(names) == 1:
        return config.groups[0]
    for group in config.groups:
        if group.name == name:
            return group
    raise InvalidArgumentError(f"no group {name!r}; this cluster has {', '.join(names)} (--group)")


async def call_leader(group: GroupConfig, method: str, request: bytes, timeout_s: float, again: bytes | None = None) -> bytes:
    """Call ``method`` at the group's leader, wherever it is; the last refusal is raised when the time is up.

    ``again`` is sent in place of ``request`` after an attempt with an unknown outcome: the form that does no harm when done already.
    """
    addresses = ",".join(node.address for node in group.nodes)
    router = Router(addresses, real_network(), SystemClock(), system_random())
    deadline_ms = router.clock.monotonic_ms() + int(timeout_s * 1000)
    try:
        await _first_contact(router, addresses, timeout_s)
        await router.ensure_group(group.name, deadline_ms)
        return await router.call_leader(group.name, method, request, deadline_ms=deadline_ms, again=again)
    except UnreachableError as error:
        raise UnreachableError(with_hint(error.message)) from error
    finally:
        await router.close()


async def check_reachable(bootstrap: str, timeout_s: float) -> None:
    """Whether a cluster answers at all: UnreachableError when it does not within a few seconds, however long a command may take later."""
    router = Router(bootstrap, real_network(), SystemClock(), system_random())
    try:
        await _first_contact(router, bootstrap, timeout_s)
    except UnreachableError as error:
        raise UnreachableError(with_hint(error.message)) from error
    finally:
        await router.close()


async def _first_contact(router: Router, addresses: str, timeout_s: float) -> None:
    limit_s = min(timeout_s, CONTACT_S)
    try:
        async with asyncio.timeout(limit_s + GRACE_S):  # refused connections end by themselves, and say so
            await router.ensure_groups(router.clock.monotonic_ms() + int(limit_s * 1000))
    except TimeoutError:
        raise UnreachableError(f"no node reachable at {', '.join(addresses.split(','))}: no answer within {limit_s:g} s") from None


def with_hint(text: str) -> str:
    """What a person can do who reads that no node answers."""
    return f"{text} (are the nodes up? dledger status)"


async def call_leader_or_any(group: GroupConfig, method: str, request: bytes, timeout_s: float) -> bytes:
    """The leader's word, since other replicas may lag; while nobody leads, what any node of the group says."""
    try:
        return await call_leader(group, method, request, min(timeout_s, LEADER_PATIENCE_S))
    except (NotLeaderError, UnreachableError):
        return await _call_any(group, method, request, timeout_s)


async def _call_any(group: GroupConfig, method: str, request: bytes, timeout_s: float) -> bytes:
    """Call ``method`` at the first node of the group that answers."""
    network = real_network()
    problems = []
    for node in group.nodes:
        channel = network.connect(node.address)
        try:
            return await channel.call(method, request, timeout_s=min(timeout_s, TRY_S))
        except UnreachableError as error:
            problems.append(error.message)
        finally:
            await channel.close()
    raise UnreachableError(with_hint(f"no node reachable at {', '.join(node.address for node in group.nodes)}: {problems[-1]}"))
