"""Authentication by SCRAM-SHA-256 (RFC 5802, RFC 7677), without I/O: what each side says next.

Owns the exchange, and what is stored of a password.  Both sides prove that they know the secret, nothing of it is sent, and an exchange
that was recorded is worth nothing, since both contribute a nonce.  Users authenticate with their password, nodes with the cluster's
secret under the name of their principal (``principal.py``), which the proof covers.

A password is first hashed with scrypt under the user's name and the salt of its verifier, then SCRAM's own hash is made of that: each guess
costs a scrypt, also for a thief of the verifiers, and none can be made before the salt is known.  The secret of a cluster is drawn at
random and needs no such protection.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dledger_wire.errors import AuthenticationFailedError, NotReadyError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4096  # the least that RFC 7677 allows: scrypt is what makes guessing expensive
MAX_ITERATIONS = 100_000  # a server may not keep a client busy
MAX_MESSAGE = 1024
SALT_BYTES = 16
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 15, 8, 1  # 32 MiB, some 0.1 s
_SCRYPT_MEMORY = 64 << 20

_ITERATION_COUNT = re.compile(r"(?:^|,)i=(\d{1,9})(?:,|$)")
_SALT = re.compile(r"(?:^|,)s=([A-Za-z0-9+/]+=*)(?:,|$)")


@functools.cache
def _mechanism() -> Any:
    from scramp import ScramMechanism  # only processes that authenticate pay for the import

    return ScramMechanism(MECHANISM)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server keeps of a secret: enough to check it, not to know it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int = ITERATIONS

    def __repr__(self) -> str:
        return "Verifier(...)"


def hashed_password(user: str, password: str, salt: bytes) -> str:
    """What takes the place of the password in an exchange; takes some 0.1 s and 32 MiB, once a process for each."""
    return _hashed(user, hashlib.sha256(password.encode()).digest(), salt)


@functools.lru_cache(maxsize=64)
def _hashed(user: str, digest: bytes, salt: bytes) -> str:
    key = hashlib.scrypt(
        digest, salt=b"dledger user %b %b" % (user.encode(), salt), n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, maxmem=_SCRYPT_MEMORY, dklen=32
    )
    return base64.b64encode(key).decode()


def password_verifier(user: str, password: str) -> Verifier:
    """The verifier of a user's password, with a fresh salt."""
    salt = secrets.token_bytes(SALT_BYTES)
    return _verifier(hashed_password(user, password, salt), salt)


def secret_verifier(secret: str) -> Verifier:
    """The verifier of a cluster's secret: the same on all nodes."""
    return _verifier(secret, hashlib.sha256(b"dledger cluster secret").digest()[:SALT_BYTES])


def _verifier(secret: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    salt, stored_key, server_key, iterations = _mechanism().make_auth_info(secret, iterations, salt)
    return Verifier(salt, stored_key, server_key, iterations)


def fits(verifier: Verifier, secret: str) -> bool:
    """Whether ``secret`` (a password hashed with the verifier's salt) is the one that the verifier was made of."""
    return hmac.compare_digest(_verifier(secret, verifier.salt, verifier.iterations).stored_key, verifier.stored_key)


class Decoys:
    """Verifiers for users that there are not: the same for each name, so that an answer does not reveal which users exist."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def verifier(self, name: str) -> Verifier:
        """A verifier that no password fits."""
        drawn = [hmac.digest(self._key, part + name.encode(), "sha256") for part in (b"salt ", b"stored ", b"server ")]
        return Verifier(drawn[0][:SALT_BYTES], drawn[1], drawn[2])


class ClientExchange:
    """The dialler's side.  ``secret_for`` returns what is known for a salt: a hashed password (``is_slow``) or the cluster's secret."""

    def __init__(self, name: str, secret_for: Callable[[bytes], str], *, is_slow: bool = False, nonce: str | None = None) -> None:
        self._name, self._secret_for, self._is_slow = name, secret_for, is_slow
        self._nonce = nonce or secrets.token_hex()
        self._client = self._begun("unused")
        self._steps: list[Callable[[str], str]] = [self._challenged, self._confirmed]

    def _begun(self, secret: str) -> Any:
        """The library's client, which wants the secret before the salt is known; and the first message, always the same."""
        from scramp import ScramClient

        client = ScramClient([MECHANISM], self._name, secret, c_nonce=self._nonce)
        self._first: str = client.get_client_first()
        return client

    def first(self) -> str:
        """What to say first."""
        return self._first

    def answer(self, message: str) -> str:
        """What to say next, nothing when the server has proved itself.  AuthenticationFailedError when it has not."""
        from scramp import ScramException

        try:
            return self._steps.pop(0)(_checked(message))
        except (ScramException, IndexError) as error:
            raise AuthenticationFailedError(f"the server did not prove that it knows {self._name!r}: {error}") from None

    @property
    def answers_slowly(self) -> bool:
        """Whether the next answer takes as long as the hash of a password."""
        return self._is_slow and len(self._steps) == 2

    @property
    def is_over(self) -> bool:
        return not self._steps

    def _challenged(self, message: str) -> str:
        asked, salted = _ITERATION_COUNT.search(message), _SALT.search(message)
        if asked is None or salted is None or int(asked[1]) > MAX_ITERATIONS:
            raise AuthenticationFailedError(f"the server did not ask for a salt and at most {MAX_ITERATIONS} iterations")
        self._client = self._begun(self._secret_for(_decoded(salted[1])))
        self._client.set_server_first(message)
        said: str = self._client.get_client_final()
        return said

    def _confirmed(self, message: str) -> str:
        self._client.set_server_final(message)
        return ""


class ServerExchange:
    """The acceptor's side: ``name`` is what the caller claims to be, proved once ``answer`` has returned the second time."""

    def __init__(self, verifier_of: Callable[[str], Verifier], *, nonce: str | None = None) -> None:
        self.name = ""
        self._verifier_of = verifier_of
        self._not_ready: NotReadyError | None = None
        self._server = _mechanism().make_server(self._look_up, s_nonce=nonce)
        self._steps: list[Callable[[str], str]] = [self._begin, self._check]

    def answer(self, message: str) -> str:
        """What to say next.  AuthenticationFailedError when the caller does not know the secret, or does not speak SCRAM; NotReadyError
        when ``verifier_of`` raised it."""
        from scramp import ScramException

        try:
            return self._steps.pop(0)(_checked(message))
        except (ScramException, IndexError):
            self._steps.clear()
            if self._not_ready is not None:  # the library hides what a look-up raises
                raise self._not_ready from None
            raise AuthenticationFailedError(f"{self.name or 'the caller'}: wrong name or password", user=self.name) from None

    @property
    def is_over(self) -> bool:
        return not self._steps

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.name = name
        try:
            found = self._verifier_of(name)
        except NotReadyError as error:
            self._not_ready = error
            raise
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _begin(self, message: str) -> str:
        self._server.set_client_first(message)
        said: str = self._server.get_server_first()
        return said

    def _check(self, message: str) -> str:
        self._server.set_client_final(message)
        said: str = self._server.get_server_final()
        return said


def _decoded(salt: str) -> bytes:
    try:
        return base64.b64decode(salt)
    except ValueError:
        raise AuthenticationFailedError("the server's salt is no base64") from None


def _checked(message: str) -> str:
    if len(message) > MAX_MESSAGE:
        raise AuthenticationFailedError(f"a message of {len(message)} characters; expected at most {MAX_MESSAGE}")
    return message
