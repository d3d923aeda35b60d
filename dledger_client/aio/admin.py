"""Administration of a cluster for asyncio: everything the command line does against running nodes.

Owns the client itself: its settings, connections and end.  What it does is in the classes of its subjects, which stand side by side over
one ``ClusterCalls`` (docs/adr/0046).
"""

from __future__ import annotations

from typing import Unpack

from dledger_client.admin.calls import ClusterCalls
from dledger_client.admin.message_query import Replicas
from dledger_client.aio.audit_admin import AuditAdmin
from dledger_client.aio.base import AsyncClient
from dledger_client.aio.cluster_admin import ClusterAdmin
from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.consumer_group_admin import ConsumerGroupAdmin
from dledger_client.aio.diagnostics_admin import DiagnosticsAdmin
from dledger_client.aio.membership_admin import MembershipAdmin
from dledger_client.aio.message_admin import MessageAdmin
from dledger_client.aio.quota_admin import QuotaAdmin
from dledger_client.aio.redelivery_admin import RedeliveryAdmin
from dledger_client.aio.replica_group_admin import ReplicaGroupAdmin
from dledger_client.aio.security_admin import SecurityAdmin
from dledger_client.aio.topic_admin import TopicAdmin
from dledger_client.aio.transaction_admin import TransactionAdmin
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.cluster.followers_first import CommittedState, FollowersFirst
from dledger_client.runtime.argument_ranges import MAX_OFFSET, within
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_wire.errors import InvalidArgumentError


class Admin(
    TopicAdmin,
    ConsumerGroupAdmin,
    MessageAdmin,
    RedeliveryAdmin,
    TransactionAdmin,
    ClusterAdmin,
    ReplicaGroupAdmin,
    MembershipAdmin,
    SecurityAdmin,
    QuotaAdmin,
    AuditAdmin,
    DiagnosticsAdmin,
    AsyncClient,
):
    """Administration of a cluster: topics, consumer groups, messages, transactions, nodes and replica groups.

    Args:
        bootstrap: Addresses of any nodes, ``host:port,host:port`` or a list of them.
        read_from: Where lists, offsets and messages are read: ``leader``, or ``follower`` to spare the leader, which then is asked only
            for what followers do not have.  ``read_at`` of listed rows names the answering replica, and how old the answer may be.
        timeout_ms: How long each operation is tried, in milliseconds.
        security: See ``SecuritySettings``.

    Raises:
        InvalidArgumentError: ``bootstrap`` is not a list of addresses, ``read_from`` is neither, or ``timeout_ms`` is no time.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Every method raises UnreachableError when no node answers in time, NotLeaderError when a replica group has no leader in time, and
    InvalidArgumentError for an argument that is refused, such as a replica group or a node that does not exist.

    Examples:
        >>> async with Admin("127.0.0.1:10911") as admin:
        ...     await admin.create_topic("orders", queues=4, if_not_exists=True)
    """

    def __init__(
        self, bootstrap: Bootstrap, *, read_from: str = "leader", timeout_ms: int = 10_000, **security: Unpack[SecuritySettings]
    ) -> None:
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        if read_from not in ("leader", "follower"):
            raise InvalidArgumentError(f"read_from {read_from!r}: expected leader or follower")
        within(1, MAX_OFFSET, timeout_ms=timeout_ms)
        self._read_from = read_from
        self._environment = environment_for(bootstrap, **security)
        self._router = self._environment.open_router(bootstrap)
        self._reader: PullConsumer | None = None
        spares_leader, state = read_from == "follower", CommittedState(self._router)
        followers_first = FollowersFirst(self._router, state)
        self._replicas = Replicas(self._router, followers_first if spares_leader else None)
        super().__init__(ClusterCalls(self._router, state, followers_first, timeout_ms, spares_leader))

    async def close(self) -> None:
        """Close the connections. Safe to repeat.

        Examples:
            >>> await admin.close()
        """
        if self._reader is not None:
            await self._reader.close()
        await self._router.close()
