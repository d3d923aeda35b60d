"""Security of one process, from the block ``security`` of the cluster file: what its network needs, and what its services ask.

Owns the reading of certificates, secrets and administrators at the start of a node, a name server or a spare node.  ConfigError says which
file is wrong, before anything listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.config.cluster_file import ClusterConfig
from broker.config.security import SecurityConfig, cluster_secret, tls_settings
from broker.security.access import AccessControl
from broker.security.admission import ClusterAdmission
from broker.security.gate import AccessGate
from dledger_wire.rpc.transport import Server
from dledger_wire.security.credentials import ClusterCredentials
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.tls import TlsContexts
from store.state.security import SecurityState


@dataclass(frozen=True, slots=True)
class ProcessSecurity:
    """``admission`` None: every caller is let in, and may do everything."""

    network: NetworkSecurity
    admission: ClusterAdmission | None
    administrators: frozenset[str] = frozenset()
    has_users: bool = False

    def access(self, state: Callable[[], SecurityState]) -> AccessControl:
        """What callers may do, by the users and rules that ``state`` gives."""
        return AccessControl(state if self.has_users else None, self.administrators)

    def users_changed(self) -> None:
        """End the connections and streams of users that were deleted or have another password."""
        if self.admission is not None:
            self.admission.users_changed()

    def guarded(self, server: Server, state: Callable[[], SecurityState]) -> Server:
        """The server of a process without a replica behind the gate, where there is one."""
        return server if self.admission is None else AccessGate(server, self.access(state))


NO_SECURITY = ProcessSecurity(OPEN, None)


def process_security(cluster: ClusterConfig, own: Principal, users: Callable[[], SecurityState | None] = lambda: None) -> ProcessSecurity:
    """Of the process that is ``own``; ``users`` gives users and rules once there are any.  ConfigError for files that cannot be used."""
    config = cluster.security
    if config is None:
        return NO_SECURITY
    tls = TlsContexts(tls_settings(config.tls, cluster.folder, own.name)) if config.tls is not None else None
    if tls is not None:
        tls.client()
        tls.server()
    secret = cluster_secret(config, cluster.folder, own.name)
    admission = _admission(config, cluster.cluster, secret, users)
    credentials = ClusterCredentials(own, secret) if secret is not None else None
    administrators = frozenset(config.users.administrators) if config.users is not None else frozenset[str]()
    return ProcessSecurity(NetworkSecurity(tls, credentials, admission), admission, administrators, config.users is not None)


def _admission(config: SecurityConfig, cluster: str, secret: str | None, users: Callable[[], SecurityState | None]) -> ClusterAdmission:
    return ClusterAdmission(
        cluster,
        administrators=config.users.administrators if config.users is not None else {},
        secret=secret,
        users_required=config.users is not None and config.users.required,
        users=users,
    )
