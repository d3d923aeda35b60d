"""Admission of callers to a node or a name server.

Owns the check of certificates, passwords and the cluster's secret against the users of the cluster.  A node, a name server or a spare node
comes in with the certificate of its principal, or with the secret under its name; a user with a password or a certificate.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping

from dledger_wire.addresses import host_of
from dledger_wire.errors import AuthenticationFailedError, BusyError, NotReadyError
from dledger_wire.event_loop import loop_s
from dledger_wire.security import scram
from dledger_wire.security.attempts import WrongPasswords
from dledger_wire.security.principal import ANONYMOUS, Kind, Principal, of_uri, user
from dledger_wire.security.scram import Decoys, Verifier, hashed_password
from store.commands.security import User
from store.state.security import SecurityState

MAX_KNOWN_PASSWORDS = 1_000
ENDED_BY_PASSWORD = "password"  # noqa: S105 - detail of an error: what a user had open ended since it has another one
End = Callable[[AuthenticationFailedError], object]
CHECKS_AT_ONCE = 1  # each takes 0.1 s of a core and 32 MiB
CHECKS_WAITING = 100  # some 10 s: no caller waits longer for an answer


class ClusterAdmission:
    """Implements ``dledger_wire.security.admission.Admission``.

    ``users`` gives the users and rules, None while this process does not know them; ``administrators`` are those of the cluster file;
    ``secret`` authenticates members of the cluster, None: they have certificates.  ``users_required`` False: a caller that has no
    credentials is let in, and known by nothing.
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
        self._decoys = Decoys(self._shared_key(secret or ""))
        self.is_current: Callable[[], bool] = lambda: True  # whether what ``users`` gives may lack nothing that was changed long ago
        self._known_key = secrets.token_bytes(32)
        self._known: dict[bytes, Verifier] = {}
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        self._wrong = WrongPasswords(loop_s)
        self._watched: dict[str, dict[object, tuple[User | None, End]]] = {}  # connections and streams, by user
        self.most_connections: Callable[[str], int | None] = lambda _user: None  # by its quota, where there is one
        self.on_refused: Callable[[str, AuthenticationFailedError], object] = lambda *_: None

    def _shared_key(self, secret: str) -> bytes:
        """The same on all processes with this cluster file: by different salts two of them would reveal that a name is unknown."""
        parts = [self._cluster, secret, *(f"{name} {kept.stored_key.hex()}" for name, kept in sorted(self._administrators.items()))]
        return hashlib.sha256("\0".join(parts).encode()).digest()

    def verifier_of(self, name: str) -> Verifier:
        """That nothing fits for a name that is not known here: callers do not learn which names are."""
        return self._verifier(name) or self._decoys.verifier(name)

    def _verifier(self, name: str) -> Verifier | None:
        principal = of_uri(name)
        if principal is not None:
            return self._secret if principal.is_cluster and principal.cluster == self._cluster else None
        if name in self._administrators:
            return self._administrators[name]
        known = self._look_up(name)
        return known.verifier if known is not None else None

    def _look_up(self, name: str) -> User | None:
        """NotReadyError in place of None where users may be missing, so that no caller gets the answer that there is no such user."""
        state = self._users()
        found = state.user(name) if state is not None else None
        if found is None and (state is None or not self.is_current()):
            raise NotReadyError("the users of the cluster are not all known here yet")
        return found

    def attempt(self, peer: str, name: str) -> None:
        """Only passwords can be guessed: the secret of a cluster is drawn at random."""
        if of_uri(name) is None:
            self._wrong.check(host_of(peer), name)

    def wrong(self, peer: str, name: str) -> float:
        return self._wrong.wrong(host_of(peer), name) if of_uri(name) is None else 0.0

    async def password_fits(self, peer: str, name: str, password: str) -> bool:
        """For stock gRPC clients.  A password that fitted is known again until the user gets another one.  BusyError when many wait."""
        mark = hmac.digest(self._known_key, f"{len(name)} {name} {password}".encode(), "sha256")
        if self._is_known(name, mark):
            return True
        if self._waiting >= CHECKS_WAITING:
            raise BusyError(f"{CHECKS_WAITING} passwords wait to be checked")
        self._waiting += 1
        try:
            async with self._checking:  # the calls of a client that begin together wait for one check
                if self._is_known(name, mark) or await self._check(peer, name, password, mark):
                    return True
        finally:
            self._waiting -= 1
        await asyncio.sleep(self.wrong(peer, name))
        return False

    def _is_known(self, name: str, mark: bytes) -> bool:
        known = self._known.get(mark)
        return known is not None and known == self._verifier(name)

    async def _check(self, peer: str, name: str, password: str, mark: bytes) -> bool:
        self.attempt(peer, name)
        verifier = self._verifier(name) if of_uri(name) is None else None
        compared = verifier or self._decoys.verifier(name)  # so that a name that is not known takes the same time
        hashed = await asyncio.to_thread(hashed_password, name, password, compared.salt)
        fits = scram.fits(compared, hashed)
        if verifier is None or not fits or self._verifier(name) != verifier:  # changed while it was hashed
            return False
        if len(self._known) >= MAX_KNOWN_PASSWORDS:
            self._known.clear()
        self._known[mark] = verifier
        return True

    def admit(self, certificate: Principal | None, name: str) -> Principal:
        """A certificate of another cluster does not count, nor does one of a deleted user."""
        proved = (of_uri(name) or user(name)) if name else certificate
        if proved is None:
            return self._anonymous("expected a user with a password, or a certificate of this cluster")
        if proved.cluster not in ("", self._cluster):
            raise AuthenticationFailedError(f"{proved}: expected cluster {self._cluster}", reason="other_cluster", user=proved.uri)
        if proved.kind is Kind.USER:
            return self._user(proved.name)
        if name and certificate is not None and certificate.is_cluster and certificate != proved:
            text = f"{proved}: its certificate is that of {certificate}"
            raise AuthenticationFailedError(text, reason="anothers_name", user=certificate.uri)
        return proved

    def _user(self, name: str) -> Principal:
        if name in self._administrators or self._look_up(name) is not None:
            return user(name)
        raise AuthenticationFailedError(f"there is no user {name}", reason="no_such_user", user=name)

    def _anonymous(self, expected: str) -> Principal:
        if self._users_required:
            raise AuthenticationFailedError(expected, reason="no_credentials")
        return ANONYMOUS

    # Admitted callers

    def watch(self, principal: Principal, end: End) -> Callable[[], object]:
        """Only users go: members of the cluster are known by certificates and secrets that this process cannot take back.

        Administrators of the cluster file come in whatever quotas say: one that is too small could not be changed otherwise.
        """
        if principal.kind is not Kind.USER:
            return _nothing
        mark, name = object(), principal.name
        most = self.most_connections(name) if name not in self._administrators else None
        if most is not None and len(self._watched.get(name, ())) >= most:
            raise BusyError(f"user {name} has {most} connections to this node, which is its quota", user=name)
        self._watched.setdefault(name, {})[mark] = self._known_user(name), end
        return lambda: self._forget(name, mark)

    def _forget(self, name: str, mark: object) -> None:
        watched = self._watched.get(name, {})
        watched.pop(mark, None)
        if not watched:
            self._watched.pop(name, None)

    def users_changed(self) -> None:
        """End what users have open that were deleted or got another password since they came in."""
        if self._users() is None:
            return  # the users are not known yet
        for name, watched in list(self._watched.items()):
            now = self._known_user(name)
            gone = [(mark, end) for mark, (then, end) in watched.items() if then != now]
            text, why = (
                (f"user {name} was deleted", "user") if now is None else (f"user {name} has another password now", ENDED_BY_PASSWORD)
            )
            for mark, end in gone:
                self._forget(name, mark)
                end(AuthenticationFailedError(text, ended=why))

    def _known_user(self, name: str) -> User | None:
        """None for administrators of the cluster file, too: what they prove stays the same while the process runs."""
        state = self._users()
        return state.user(name) if state is not None and name not in self._administrators else None

    def refused(self, peer: str, error: AuthenticationFailedError) -> None:
        self.on_refused(peer, error)


def _nothing() -> None: ...
