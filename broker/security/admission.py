"""Who may connect to a node or a name server.

Owns the check of certificates, passwords and the cluster's secret against the users of the cluster.  A node, a name server or a spare node
comes in with the certificate of its principal, or with the secret under its name; a user with a password or a certificate.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping

from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security import scram
from dledger_wire.security.principal import ANONYMOUS, Kind, Principal, of_uri, user
from dledger_wire.security.scram import Decoys, Verifier, hashed_password
from store.state.security import SecurityState

MAX_KNOWN_PASSWORDS = 1_000
CHECKS_AT_ONCE = 1  # each takes 0.1 s of a core and 32 MiB


class ClusterAdmission:
    """Implements ``dledger_wire.security.admission.Admission``.

    ``users`` gives the users and rules, once the node has them; ``administrators`` are those of the cluster file; ``secret`` is what
    members of the cluster prove to know, None: they have certificates.  ``users_required`` False: whoever has no credentials is let in,
    and known by nothing.
    """

    def __init__(
        self,
        cluster: str,
        *,
        administrators: Mapping[str, Verifier],
        secret: str | None,
        users_required: bool,
        users: Callable[[], SecurityState | None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._administrators = dict(administrators)
        self._secret = scram.secret_verifier(secret) if secret is not None else None
        self._users_required = users_required
        self._users = users
        self._decoys = Decoys(secrets.token_bytes(32))
        self._known_key = secrets.token_bytes(32)
        self._known: dict[bytes, Verifier] = {}
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self.on_refused: Callable[[str, AuthenticationFailedError], object] = lambda *_: None

    def verifier_of(self, name: str) -> Verifier:
        """That nothing fits for a name that is not known here: who asks does not learn which names are."""
        return self._verifier(name) or self._decoys.verifier(name)

    def _verifier(self, name: str) -> Verifier | None:
        principal = of_uri(name)
        if principal is not None:
            return self._secret if principal.is_cluster and principal.cluster == self._cluster else None
        if name in self._administrators:
            return self._administrators[name]
        state = self._users()
        known = state.user(name) if state is not None else None
        return known.verifier if known is not None else None

    async def password_fits(self, name: str, password: str) -> bool:
        """For stock gRPC clients.  A password that fitted is known again until the user gets another one."""
        verifier = self._verifier(name) if of_uri(name) is None else None
        mark = hmac.digest(self._known_key, f"{len(name)} {name} {password}".encode(), "sha256")
        if verifier is not None and self._known.get(mark) == verifier:
            return True
        async with self._checking:
            hashed = await asyncio.to_thread(hashed_password, name, password)
        if verifier is None or not scram.fits(verifier, hashed):
            return False
        if len(self._known) >= MAX_KNOWN_PASSWORDS:
            self._known.clear()
        self._known[mark] = verifier
        return True

    def admit(self, certificate: Principal | None, name: str) -> Principal:
        """A certificate of another cluster is none; of a user who was deleted neither."""
        proved = (of_uri(name) or user(name)) if name else certificate
        if proved is None:
            return self._anonymous("expected a user with a password, or a certificate of this cluster")
        if proved.cluster not in ("", self._cluster):
            raise AuthenticationFailedError(f"{proved}: expected cluster {self._cluster}")
        if proved.kind is Kind.USER:
            return self._user(proved.name)
        if name and certificate is not None and certificate.is_cluster and certificate != proved:
            raise AuthenticationFailedError(f"{proved}: its certificate is that of {certificate}")
        return proved

    def _user(self, name: str) -> Principal:
        state = self._users()
        if name in self._administrators or state is None or state.user(name) is not None:
            return user(name)
        raise AuthenticationFailedError(f"there is no user {name}")

    def _anonymous(self, expected: str) -> Principal:
        if self._users_required:
            raise AuthenticationFailedError(expected)
        return ANONYMOUS

    def refused(self, peer: str, error: AuthenticationFailedError) -> None:
        self.on_refused(peer, error)
