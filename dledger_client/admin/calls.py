"""Typed calls that all subjects of ``Admin`` share: to the leader of a replica group, or to the leaders of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.follower_reads import CommittedState
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import ReplicaGroup
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc.methods import UnaryMethod

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class ClusterCalls:
    """Calls of one ``Admin``; ``timeout_ms`` bounds each of them, with all its attempts."""

    router: Router
    committed_state: CommittedState
    timeout_ms: int

    def deadline_ms(self) -> int:
        return self.router.clock.monotonic_ms() + self.timeout_ms

    async def replica_groups(self) -> dict[str, ReplicaGroup]:
        return await self.router.all_groups(self.deadline_ms())

    async def replica_group(self, name: str = "") -> ReplicaGroup:
        """The replica group ``name``; without a name the only one of the cluster.  InvalidArgumentError when there is no such group."""
        groups = await self.replica_groups()
        if name:
            return await self.router.ensure_group(name, self.deadline_ms())
        if len(groups) > 1:
            raise InvalidArgumentError(
                f"the cluster has several replica groups; expected replica_group, one of {', '.join(sorted(groups))}"
            )
        return next(iter(groups.values()))

    async def ask_leader(
        self, replica_group: str, method: UnaryMethod[Request, Response], request: Request, *, again: Request | None = None
    ) -> Response:
        """The leader's answer.  ``again`` replaces ``request`` after an attempt with an unknown outcome; it must be safe to repeat."""
        return await self.router.call_leader(replica_group, method, request, deadline_ms=self.deadline_ms(), again=again)

    async def ask_leaders(self, method: UnaryMethod[Request, Response], request: Request) -> list[tuple[str, Response]]:
        """(replica group, its leader's answer) of every replica group, by name."""
        return [(name, await self.ask_leader(name, method, request)) for name in sorted(await self.replica_groups())]
