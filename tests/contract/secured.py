"""Security of networks in tests: certificates of an authority made once, users with passwords, a cluster's secret."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security import principal, scram
from dledger_wire.security.certificates import KeyPair, issue, new_authority
from dledger_wire.security.credentials import ClusterCredentials, PasswordCredentials
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.scram import Verifier
from dledger_wire.security.tls import ClientAuth, TlsContexts, TlsSettings

CLUSTER = "shop"
SECRET = "a secret of the cluster, drawn at random"
ALICE = principal.user("alice", CLUSTER)
NODE = principal.node(CLUSTER, "g0", "n0")


@functools.cache
def authority() -> KeyPair:
    return new_authority(CLUSTER)


@functools.cache
def folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="dledger-certs-")
    _kept.append(made)
    Path(made.name, "ca.crt").write_bytes(authority().certificate)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def certificate(owner: Principal, name: str, *, signer: KeyPair | None = None, days: int = 10) -> str:
    """Files NAME.crt and NAME.key of ``owner``; their path without the ending."""
    path = folder() / name
    if not path.with_suffix(".crt").exists():
        issue(signer or authority(), owner, ["127.0.0.1", "localhost", "::1"], days=days).write(str(path))
    return str(path)


def tls(name: str = "", client_auth: ClientAuth = "optional", *, ca: str = "ca") -> TlsContexts:
    path = folder() / name
    own = (str(path) + ".crt", str(path) + ".key") if name else ("", "")
    return TlsContexts(TlsSettings(str(folder() / f"{ca}.crt"), *own, client_auth=client_auth))


@dataclass
class Users:
    """An ``Admission`` by passwords, certificates and the secret; everybody else is refused."""

    passwords: dict[str, str] = field(default_factory=lambda: {"alice": "wonderland"})
    anonymous: bool = False
    refusals: list[str] = field(default_factory=list)
    verifiers: dict[str, Verifier] = field(default_factory=dict)
    watched: list[tuple[Principal, Callable[[AuthenticationFailedError], object]]] = field(default_factory=list)

    def verifier_of(self, name: str) -> Verifier:
        if principal.of_uri(name) is not None:
            return scram.secret_verifier(SECRET)
        if name not in self.passwords:
            return scram.Decoys(b"key").verifier(name)
        if name not in self.verifiers:
            self.verifiers[name] = scram.password_verifier(name, self.passwords[name])
        return self.verifiers[name]

    def attempt(self, _peer: str, _name: str) -> None: ...

    def wrong(self, _peer: str, _name: str) -> float:
        return 0.0

    async def password_fits(self, _peer: str, name: str, password: str) -> bool:
        return self.passwords.get(name) == password

    def watch(self, principal: Principal, end: Callable[[AuthenticationFailedError], object]) -> Callable[[], object]:
        watched = (principal, end)
        self.watched.append(watched)
        return lambda: self.watched.remove(watched)

    def revoke(self, name: str) -> None:
        """As a node does when the user is deleted."""
        for watched, end in list(self.watched):
            if watched.name == name:
                end(AuthenticationFailedError(f"user {name} was deleted"))

    def admit(self, certificate: Principal | None, name: str) -> Principal:
        if name:
            return principal.of_uri(name) or principal.user(name)
        if certificate is None and not self.anonymous:
            raise AuthenticationFailedError("expected a user or a certificate")
        return certificate or principal.ANONYMOUS

    def refused(self, peer: str, error: AuthenticationFailedError) -> None:
        self.refusals.append(f"{peer}: {error.message}")


def everything() -> NetworkSecurity:
    """TLS with a certificate, an admission of users, and the secret of the cluster as what this side proves."""
    certificate(NODE, "n0")
    return NetworkSecurity(tls("n0"), ClusterCredentials(NODE, SECRET), Users())


def alice(password: str = "wonderland") -> PasswordCredentials:
    return PasswordCredentials("alice", password=password)
