"""The status of a name server: what one of them answers, or why it does not."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls
from dledger_client.cluster.responses import object_of
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.status import REMOVED

ASK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class NameServerStatus:
    """What one name server says of itself.

    Attributes:
        address: Where it was asked, ``host:port``.
        id: Its id; empty for a node that runs the name service itself.
        reachable: Whether it answered.
        error: Why it did not; empty when it did.
        complete: Whether every replica group has registered with it.
        directory_version: Version of its directory; the same at all name servers that know the same.
        role: leader, follower or candidate of the name servers' quorum; empty for a node.
        has_quorum: Whether it is connected with a majority of the name servers.
        applied: How many messages of the quorum it has taken.
        replica_groups: How many replica groups it knows.
        topics: How many topics it knows.
        waiting_clients: How many clients wait there for a change of their routes.
        registrations: How many registrations it took since it started.
        refused_registrations: How many of them it refused, because they were older than what it knew.
        routes_requests: How many times clients asked it for routes.
        routes_bytes: How many bytes it answered with.
        rss_bytes: Memory of its process in bytes.
        cpu_s: Processor time of its process in seconds.
        started_at_ms: When it started, in milliseconds since 1970.
        version: Version of dledger; empty for a node.
    """

    address: str
    id: str = ""
    reachable: bool = False
    error: str = ""
    complete: bool = False
    directory_version: int = 0
    role: str = ""
    has_quorum: bool = False
    applied: int = 0
    replica_groups: int = 0
    topics: int = 0
    waiting_clients: int = 0
    registrations: int = 0
    refused_registrations: int = 0
    routes_requests: int = 0
    routes_bytes: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    started_at_ms: int = 0
    version: str = ""


async def status_of(calls: ClusterCalls, address: str, errors: list[DledgerError]) -> NameServerStatus:
    try:
        reply = await methods.DIRECTORY.call(calls.router.channel(address), routes_pb2.DirectoryRequest(), timeout_s=ASK_TIMEOUT_S)
    except DledgerError as error:
        errors.append(error)
        return NameServerStatus(address, error=error.message)
    figures = reply.figures
    own = next((row for row in reply.name_servers if row.id == figures.id), routes_pb2.NameServerRow())
    return object_of(
        NameServerStatus,
        figures,
        address=address,
        reachable=True,
        complete=reply.complete,
        directory_version=reply.version,
        role=own.role,
        has_quorum=own.quorum,
        applied=own.applied,
        replica_groups=sum(group.state != REMOVED for group in reply.groups),
        version=own.version,
    )
