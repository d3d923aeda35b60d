"""Calls of the command line to the leader of a group: find it, follow redirects, retry until the deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.cli.context import real_network
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotLeaderError, UnreachableError

if TYPE_CHECKING:
    from broker.config import ClusterConfig, GroupConfig

PAUSE_S = 0.1
TRY_S = 5.0


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
    network = real_network()
    addresses = [node.address for node in group.nodes]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    last: DledgerError = UnreachableError(
        f"no node of group {group.name} answers at {', '.join(addresses)} (are the nodes up? dledger status)"
    )
    attempt, hint = 0, ""
    while (left := deadline - loop.time()) > 0:
        address = hint or addresses[attempt % len(addresses)]
        channel = network.connect(address)
        try:
            return await channel.call(method, request, timeout_s=min(left, TRY_S))
        except DledgerError as error:
            if not (error.retriable or isinstance(error, UnreachableError)):
                raise
            if not isinstance(error, UnreachableError):
                last = error
            if error.outcome_unknown and again is not None:
                request = again
            followed, hint = bool(hint), error.leader_address if isinstance(error, NotLeaderError) else ""
            if followed or not hint:
                attempt, hint = attempt + 1, "" if followed else hint
                await asyncio.sleep(PAUSE_S)
        finally:
            await channel.close()
    raise last


async def call_any(group: GroupConfig, method: str, request: bytes, timeout_s: float) -> bytes:
    """Call ``method`` at the first node of the group that answers."""
    network = real_network()
    problems = []
    for node in group.nodes:
        channel = network.connect(node.address)
        try:
            return await channel.call(method, request, timeout_s=min(timeout_s, TRY_S))
        except UnreachableError as error:
            problems.append(f"{node.id} at {node.address}: {error.details.get('reason') or error.message}")
        finally:
            await channel.close()
    raise UnreachableError(f"cannot reach any node of group {group.name}: {'; '.join(problems)} (are the nodes up? dledger status)")
