"""A node is asked before it becomes a member: one that leads, or that has the log of another group, is refused.

Owns that question.  Such a node would never follow: its log has other entries where the group has committed its own, and the links refuse
it by its lineage.  A log of the group's own lineage does no harm: a member that was removed comes back with it.
"""

from __future__ import annotations

from collections.abc import Collection

from dledger.membership.lineage import named
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Network

ASK_TIMEOUT_S = 2.0


async def refuse_other_log(network: Network, node: str, address: str, *, lineage: str, members: Collection[str]) -> None:
    """InvalidArgumentError when ``node`` answers at ``address`` and cannot follow a group of that ``lineage`` with these ``members``.

    A node that does not answer is not started yet.
    """
    channel = network.connect(address)
    try:
        found = await methods.NODE_STATUS.call(channel, admin_pb2.Empty(), timeout_s=ASK_TIMEOUT_S)
    except DledgerError:
        return
    finally:
        await channel.close()
    if found.id == node and (text := _other_log(found, lineage, members)):
        remedy = f"stop it, move its data folder away, start it with an empty one and spare: true, then dledger member add --id {node}"
        raise InvalidArgumentError(f"{node} {text}: {remedy}")


def _other_log(found: admin_pb2.NodeStatusReply, lineage: str, members: Collection[str]) -> str:
    if found.role == "leader":
        return f"leads a replica group {found.group} of its own, in term {found.term}"
    if found.leader and found.leader != found.id and found.leader not in members:
        return f"follows {found.leader}, which is no member of this replica group {found.group}"
    if found.last_index and found.lineage != lineage:
        return f"has the log of {named(found.lineage)}, this replica group that of {named(lineage)}"
    return ""
