"""Authentication on a connection of ours, between the opening and the first frame of a call or stream.

Owns the frames of it; what they say is SCRAM's (``dledger_wire/security/scram.py``).

    dialler    opening with "auth": {"mechanism": "SCRAM-SHA-256", "message": client-first-message}
    acceptor   9 authentication   server-first-message
    dialler    9 authentication   client-final-message
    acceptor   9 authentication   server-final-message     the dialler is let in, and knows that the acceptor knows the secret, too
    acceptor   3 error            ErrorDetail, then the connection is closed

A dialler without "auth" sends its first frame at once: its certificate names it, or nothing does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast

from dledger_wire.errors import AuthenticationFailedError, NotReadyError
from dledger_wire.security.admission import Admission
from dledger_wire.security.principal import Principal, only_owner
from dledger_wire.security.scram import MECHANISM, ClientExchange, ServerExchange, Verifier
from dledger_wire.tcp.connection import AUTHENTICATION, ERROR, NO_RECEIVER, Connection, Receiver
from dledger_wire.tcp.stream import error_of

MAX_FRAME = 64 << 10  # before the caller is known


class DialledAuthentication(Receiver):
    """The dialler's side: receives the frames until it is over, then ``carried`` does, before the next frame is looked at."""

    def __init__(self, connection: Connection, exchange: ClientExchange, carried: Receiver) -> None:
        self._connection = connection
        self._exchange = exchange
        self._carried = carried
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hashing: asyncio.Future[str] | None = None
        connection.receiver = self

    def opening(self) -> dict[str, str]:
        """What the opening carries."""
        return {"mechanism": MECHANISM, "message": self._exchange.first()}

    async def done(self) -> None:
        """Wait until both sides have proved what they know.  AuthenticationFailedError, or UnreachableError when the connection is lost."""
        await self._over

    # -- the connection's receiver

    def frame(self, kind: int, payload: bytes) -> None:
        if self._over.done():
            return
        if kind == ERROR:
            self._over.set_exception(error_of(payload, self._connection.peer))
        elif kind != AUTHENTICATION:
            self._over.set_exception(AuthenticationFailedError(f"{self._connection.peer} does not authenticate its callers"))
        else:
            self._next(payload)

    def _next(self, payload: bytes) -> None:
        message = bytes(payload).decode(errors="replace")
        if self._hashing is not None:
            self._over.set_exception(AuthenticationFailedError(f"{self._connection.peer}: answered before it was asked"))
        elif self._exchange.answers_slowly:
            self._hashing = asyncio.ensure_future(asyncio.to_thread(self._exchange.answer, message))
            self._hashing.add_done_callback(self._hashed)
        else:
            self._say(lambda: self._exchange.answer(message))

    def _hashed(self, hashing: asyncio.Future[str]) -> None:
        self._hashing = None
        if not self._over.done() and not hashing.cancelled():
            self._say(hashing.result)

    def _say(self, answered: Callable[[], str]) -> None:
        try:
            answer = answered()
        except AuthenticationFailedError as error:
            self._over.set_exception(AuthenticationFailedError(f"{self._connection.peer}: {error.message}"))
            return
        if answer:
            self._connection.put(AUTHENTICATION, answer.encode())
        if self._exchange.is_over:
            self._connection.receiver = self._carried
            self._over.set_result(None)

    def lost(self) -> None:
        if not self._over.done():
            self._over.set_exception(self._connection.gone())


class AcceptedAuthentication(Receiver):
    """The acceptor's side: calls ``admitted`` with the principal, or refuses the connection."""

    def __init__(
        self, connection: Connection, admission: Admission, certificate: Principal | None, admitted: Callable[[Principal], None]
    ) -> None:
        self._connection = connection
        self._admission = admission
        self._certificate = certificate
        self._admitted = admitted
        self._exchange: ServerExchange | None = None
        self._verifier: Verifier | None = None  # what the proof was checked with

    def begin(self, given: object) -> None:
        """The opening's ``auth``, None when it had none."""
        if given is None:
            self._admit("")
            return
        known = isinstance(given, Mapping) and given.get("mechanism") == MECHANISM and isinstance(given.get("message"), str)
        if not known:
            self._refuse(AuthenticationFailedError(f"unknown authentication; expected {MECHANISM}"))
            return
        self._exchange = ServerExchange(self._verifier_of)
        self._connection.receiver = self
        self._answer(given["message"])  # type: ignore[index]

    def _verifier_of(self, name: str) -> Verifier:
        self._verifier = self._admission.verifier_of(name)
        return self._verifier

    # -- the connection's receiver

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == AUTHENTICATION:
            self._answer(bytes(payload).decode(errors="replace"))
        else:
            self._connection.violate(f"a frame of kind {kind} before it had authenticated")

    def _answer(self, message: str) -> None:
        exchange = cast(ServerExchange, self._exchange)
        name, peer = exchange.name, self._connection.peer
        try:
            if name:
                self._admission.attempt(peer, name)
        except AuthenticationFailedError as error:
            self._refuse(error)
            return
        try:
            answer = exchange.answer(message)
        except (AuthenticationFailedError, NotReadyError) as error:
            hold_s = self._admission.wrong(peer, name) if name and isinstance(error, AuthenticationFailedError) else 0.0
            if hold_s:
                asyncio.get_running_loop().call_later(hold_s, self._refuse, error)
            else:
                self._refuse(error)
            return
        if exchange.is_over:
            self._admit(exchange.name, answer)
        else:
            self._connection.put(AUTHENTICATION, answer.encode())

    def _admit(self, name: str, confirmation: str = "") -> None:
        try:
            if name and self._verifier != self._admission.verifier_of(name):
                raise AuthenticationFailedError(f"{name}: the password was changed meanwhile")
            principal = self._admission.admit(self._certificate, name)
        except (AuthenticationFailedError, NotReadyError) as error:
            self._refuse(error)
            return
        self._connection.receiver = NO_RECEIVER
        if confirmation:
            self._connection.put(AUTHENTICATION, confirmation.encode())
        self._admitted(principal)

    def _refuse(self, error: AuthenticationFailedError | NotReadyError) -> None:
        if isinstance(error, AuthenticationFailedError):
            self._admission.refused(self._connection.peer, error)
        self._connection.refuse(error)


def certified(transport: asyncio.BaseTransport | None) -> Principal | None:
    """The name in the verified certificate of the other side; None without one, or when it has no name of ours."""
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    if not isinstance(tls, ssl.SSLObject):
        return None
    names: Any = (tls.getpeercert() or {}).get("subjectAltName", ())
    return only_owner(value for kind, value in names if kind == "URI")
