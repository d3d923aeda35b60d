"""Security of one process, from the block ``security`` of the cluster file: what its network needs, and what its services ask.

Owns the reading of certificates, secrets and administrators at the start of a node, a name server or a spare node.  ConfigError says which
file is wrong, before anything listens.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass

from broker.config.cluster_file import ClusterConfig
from broker.config.security import AuditConfig, SecurityConfig, Step, TlsConfig, cluster_secret, tls_settings
from broker.security.access import CALLER_ADDRESS, CLUSTER_NAME, AccessControl
from broker.security.admission import ClusterAdmission
from broker.security.audit import Audit, AuditSink, NoSink, Place
from broker.security.certificate_watch import CertificateWatch
from broker.security.gate import AccessGate
from dledger_wire.clock import Clock, SystemClock
from dledger_wire.rpc.transport import Server
from dledger_wire.security.credentials import ClusterCredentials
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.tls import TlsContexts
from store.commands.security import Action, Resource
from store.state.security import SecurityState

SUM_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class ProcessSecurity:
    """``admission`` None: every caller is let in, and may do everything; so it is while a cluster moves to TLS, since no caller that
    comes without it can prove anything.  ``anonymous``: callers without credentials may do what they may without users."""

    network: NetworkSecurity
    admission: ClusterAdmission | None
    administrators: frozenset[str] = frozenset()
    has_users: bool = False
    anonymous: bool = False
    step: Step = Step.ONLY
    audit: Audit | None = None

    def certificate_watch(self, clock: Clock) -> CertificateWatch:
        """What is to be known of its certificate and ports."""
        return CertificateWatch(self.network, self.step, clock)

    def access(self, state: Callable[[], SecurityState]) -> AccessControl:
        """What callers may do, by the users and rules that ``state`` gives."""
        access = AccessControl(state if self.has_users else None, self.administrators, anonymous=self.anonymous)
        audit = self.audit
        if audit is not None:
            access.refusals = audit.refused
            audit.administers = lambda principal: (
                principal.is_cluster or access.may(principal, Action.ADMINISTER, Resource.CLUSTER, CLUSTER_NAME)
            )
            access.denied = lambda principal, action, resource, name: audit.denied(principal, CALLER_ADDRESS.get(), action, resource, name)
        return access

    async def sum_up(self) -> None:
        """Write refusals that were only counted, again and again."""
        while self.audit is not None:
            await asyncio.sleep(SUM_UP_S)
            self.audit.sum_up()

    async def close(self) -> None:
        """Everything of the audit log is written when this returns."""
        if self.audit is not None:
            await self.audit.close()

    def users_changed(self) -> None:
        """End the connections and streams of users that were deleted or have another password."""
        if self.admission is not None:
            self.admission.users_changed()

    def guarded(self, server: Server, access: AccessControl) -> Server:
        """The server of a process without a replica behind the gate, where there is one."""
        return server if self.admission is None else AccessGate(server, access)


NO_SECURITY = ProcessSecurity(OPEN, None)


def process_security(
    cluster: ClusterConfig,
    own: Principal,
    users: Callable[[], SecurityState | None] = lambda: None,
    audit_sink: Callable[[AuditConfig], AuditSink] = lambda _config: NoSink(),
    clock: Clock | None = None,
) -> ProcessSecurity:
    """Of the process that is ``own``; ``users`` gives users and rules once there are any, ``audit_sink`` takes the audit log.

    ConfigError for files that cannot be used.
    """
    config = cluster.security
    if config is None:
        return NO_SECURITY
    secret = cluster_secret(config, cluster.folder, own.name)
    tls, names_own = (None, False) if config.tls is None else _tls(config.tls, cluster.folder, own, has_secret=secret is not None)
    admission = _admission(config, cluster.cluster, secret, users)
    step = config.tls.step if config.tls is not None else Step.ONLY
    # Until every node serves TLS no credentials of a node are expected.
    credentials = ClusterCredentials(own, secret) if secret is not None and step is not Step.OFFER else None
    network = NetworkSecurity(
        tls,
        credentials,
        admission,
        Limits(config.limits.connections, config.limits.connectionsPerSource),
        plaintext=step is not Step.ONLY,
        dials_tls=step is not Step.OFFER,
        certified=own if names_own and config.tls is not None and config.tls.client_auth != "none" else None,
    )
    audit = Audit(audit_sink(config.audit), clock or SystemClock(), Place(cluster.cluster, own.group, own.name))
    admission.on_refused = audit.not_admitted
    users_of_file = config.users
    return ProcessSecurity(
        network,
        admission if step is Step.ONLY else None,
        frozenset(users_of_file.administrators) if users_of_file is not None else frozenset(),
        users_of_file is not None,
        anonymous=users_of_file is not None and not users_of_file.required,
        step=step,
        audit=audit,
    )


def _tls(config: TlsConfig, folder: str, own: Principal, *, has_secret: bool) -> tuple[TlsContexts, bool]:
    """Contexts that follow the files, but for another's certificate; whether the one of now names ``own``."""
    from broker.security.own_certificate import check_own_certificate  # with cryptography, at the start of a process with TLS

    settings = tls_settings(config, folder, own.name)
    check = functools.partial(check_own_certificate, config, settings, own, has_secret=has_secret)
    tls = TlsContexts(settings, check=check)
    tls.client()
    tls.server()
    return tls, check()


def _admission(config: SecurityConfig, cluster: str, secret: str | None, users: Callable[[], SecurityState | None]) -> ClusterAdmission:
    return ClusterAdmission(
        cluster,
        administrators=config.users.administrators if config.users is not None else {},
        secret=secret,
        users_required=config.users is not None and config.users.required,
        users=users,
    )
