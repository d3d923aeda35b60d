"""The users of a secured run: the application, whom nearly all clients are, and others without rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from dledger_client.aio import AccessRule, Admin
from dledger_wire._pb import security_pb2
from dledger_wire.rpc import methods
from tests.sim.cluster import SimCluster
from tests.sim.security import APPLICATION, SimSecurity

EVERYWHERE_S = 2.0  # until followers and name servers know a change, too


class WithAdmin(Protocol):
    """Clients of a cluster."""

    @property
    def cluster(self) -> SimCluster: ...

    def admin(self) -> Admin: ...


async def create_users(clients: WithAdmin, others: Iterable[str] = ()) -> None:
    """Nothing in a cluster that is not secured.  The application may do everything, the others nothing yet."""
    security = clients.cluster.security
    if not security.is_on:
        return
    everything = [
        AccessRule(APPLICATION, "allow", resource, "*", action)
        for resource in ("topic", "group", "producer", "cluster")
        for action in ("read", "write", "create", "describe", "administer")
    ]
    async with clients.admin() as admin:
        for user in (APPLICATION, *others):
            await _create(admin, user, security)
        await admin.change_rules(added=everything)
    await asyncio.sleep(EVERYWHERE_S)


async def _create(admin: Admin, user: str, security: SimSecurity) -> None:
    """As ``Admin.create_user``, which computes scrypt."""
    made, kept = security_pb2.SecurityUser(name=user), security.verifier(user)
    made.verifier.salt, made.verifier.stored_key, made.verifier.server_key = kept.salt, kept.stored_key, kept.server_key
    made.verifier.iterations = kept.iterations
    await admin._calls.ask_leader("g0", methods.PUT_USER, security_pb2.PutUserRequest(user=made, create=True))
