"""Who has no business in a secured cluster, whatever strikes it meanwhile, and what they may be answered.

Owns the rules:

    without credentials, with a wrong secret or password, or under a name of another cluster nobody is let in, whatever is called
    a member of another replica group is no member of this one: it neither replicates nor copies
    a user without rights changes nothing, and no answer names a topic or a consumer group to it
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from broker.security.permissions import CHECKS, asks_itself
from dledger_wire.errors import (
    AuthenticationFailedError,
    DeadlineExceededError,
    DledgerError,
    NotReadyError,
    PermissionDeniedError,
    UnreachableError,
)
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import METHODS, StreamMethod
from dledger_wire.rpc.transport import Network
from dledger_wire.security import principal
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from tests.sim.cluster import SimCluster
from tests.sim.loop import Process
from tests.sim.security import APPLICATION, CLUSTER, hashed

INTRUDER_IP = "10.0.66.1"
MALLORY = "mallory"
HIDDEN = (b"plain", b"ordered", b"workers", b"orderlies")
ATTEMPTS = 25
CALL_S = 1.0
NO_ANSWER = (UnreachableError, DeadlineExceededError)
OF_REPLICAS = (methods.RAFT_LINK, methods.FETCH_ENTRY, methods.COPY_PLAN, methods.COPY_LOG, methods.COPY_STATE)
# What everybody may call who is let in: the answer leaves out what is not to be seen, or there is nothing to see in it.
ANSWERED = {path for path, check in CHECKS.items() if check is asks_itself} | {
    each.path
    for each in (
        methods.QUEUE_OFFSETS,
        methods.GROUP_OFFSETS,
        methods.INIT_PRODUCER,
        methods.DESCRIBE_MEMBERS,
        methods.DEAD_LETTERS,
        methods.DESCRIBE_TRANSACTIONS,
    )
}


class Strangers:
    """Of one run.  ``met``: how often each answer was."""

    def __init__(self, cluster: SimCluster, draw: random.Random) -> None:
        self.cluster, self._draw = cluster, draw
        self._security = cluster.security
        self.met: Counter[str] = Counter()
        self._process: Process | None = cluster.new_client(INTRUDER_IP)[0] if self._security.is_on else None

    async def knock(self) -> None:
        """For a while."""
        for _ in range(ATTEMPTS):
            await asyncio.sleep(self._draw.random() * 0.5)
            address = self._draw.choice(self._addresses())
            attempt = self._draw.choice((self._stranger, self._stranger, self._neighbour, self._powerless))
            await attempt(address)

    def _addresses(self) -> list[str]:
        return [machine.address for machine in self.cluster.machines()]

    def _network(self, security: NetworkSecurity) -> Network:
        assert self._process is not None
        return self.cluster.net.of(self._process, security)

    async def _stranger(self, address: str) -> None:
        security, draw = self._security, self._draw
        host = draw.choice(list(self.cluster.hosts.values()))
        own, other = (principal.node(cluster, host.group, host.node_id) for cluster in (CLUSTER, "other"))
        name, told = draw.choice(
            [
                ("nobody", OPEN),
                ("a node with a wrong secret", security.of_principal(own, "a wrong secret")),
                ("a name server with a wrong secret", security.of_principal(principal.name_server(CLUSTER, "ns0"), "a wrong secret")),
                ("a node of another cluster", security.of_principal(other)),
                ("a user with a wrong password", NetworkSecurity(None, security.credentials(APPLICATION, hashed("x")))),
                ("a user that there is not", security.of_user("eve")),
            ]
        )
        path = draw.choice(sorted(METHODS))
        # A process that has not heard of the users yet does not say that there is no such user.
        expected = (AuthenticationFailedError, NotReadyError) if "user" in name else (AuthenticationFailedError,)
        await self._refused(name, told, address, path, expected, host.node_id)

    async def _neighbour(self, _address: str) -> None:
        """A node of one group at a node of another, with the true secret."""
        hosts = list(self.cluster.hosts.values())
        host = self._draw.choice(hosts)
        others = [each for each in hosts if each.group != host.group]
        method = self._draw.choice(OF_REPLICAS)
        told = self._security.of_principal(principal.node(CLUSTER, host.group, host.node_id))
        if others:
            address = self._draw.choice(others).address
            await self._refused("a node of another group", told, address, method.path, (PermissionDeniedError,), host.node_id)

    async def _powerless(self, address: str) -> None:
        path = self._draw.choice(sorted(METHODS))
        told = self._security.of_user(MALLORY)
        if path not in ANSWERED:
            # One that has not heard of the users yet knows nobody.
            await self._refused(MALLORY, told, address, path, (PermissionDeniedError, AuthenticationFailedError, NotReadyError), MALLORY)
            return
        try:
            answer = await self._call(told, address, path, MALLORY)
        except DledgerError as error:
            self.met[f"{MALLORY}: {error.code}"] += 1
            return
        self.met[f"{MALLORY}: answered"] += 1
        seen = [name for name in HIDDEN if name in answer]
        assert not seen, f"{path} at {address} told a user without rights of {seen}"

    async def _refused(
        self, who: str, told: NetworkSecurity, address: str, path: str, known: tuple[type[DledgerError], ...], node_id: str
    ) -> None:
        answer: DledgerError | None = None
        try:
            await self._call(told, address, path, node_id)
        except DledgerError as error:
            answer = error
        assert answer is not None, f"{who} was answered by {address} to {path}"
        self.met[f"{who}: {answer.code}"] += 1
        # A user or a member of another group is let in: a name server has fewer services, and a node may be starting.
        not_served = PermissionDeniedError in known and ("UNIMPLEMENTED" in answer.message or answer.code == "NOT_READY")
        assert not_served or isinstance(answer, (*known, *NO_ANSWER)), f"{who} was told at {address} {path}: {answer!r}"

    async def _call(self, told: NetworkSecurity, address: str, path: str, node_id: str) -> bytes:
        channel = self._network(told).connect(address)
        try:
            if not isinstance(METHODS[path], StreamMethod):
                return await channel.call(path, b"", timeout_s=CALL_S)
            stream = channel.open(path, metadata={"dledger-node": node_id})
            async with asyncio.timeout(CALL_S):
                await stream.write(b"")
                answer = await stream.read()
            return answer or b""
        except TimeoutError:
            raise DeadlineExceededError(f"{address} {path}: no answer") from None
        finally:
            await channel.close()
