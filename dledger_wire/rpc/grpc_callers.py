"""Callers of a gRPC server that stands behind a node's own port (``dledger_wire/tcp/joined_grpc.py``).

Owns the callers of its connections, and authentication of stock gRPC clients: by their certificate, or by a user and password in the
metadata ``authorization: Basic BASE64(USER:PASSWORD)`` of each call (RFC 7617).  Health checks and reflection need neither.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dledger_wire.errors import AuthenticationFailedError, BusyError
from dledger_wire.event_loop import loop_s
from dledger_wire.security.admission import Admission
from dledger_wire.security.principal import ANONYMOUS, Principal

AUTHORIZATION = "authorization"
# What any caller may ask: whether this process is well, and what it serves.
PUBLIC = ("/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/")
_ABSTRACT = "unix-abstract:"
_BASIC = "basic "

Known: TypeAlias = Callable[[Principal, bool], bool]


class Reading:
    """Counts what handlers of streams have read, of one connection; this one counts nothing."""

    def read(self, size: int) -> None:
        """So many bytes more."""

    def returned(self, size: int) -> None:
        """The handler returned, and had read so many in all."""


UNCOUNTED = Reading()


@dataclass(frozen=True, slots=True)
class GrpcCaller:
    """One caller of one call, which waits until ``end_s`` by the clock of the event loop.  Implements ``CallContext``."""

    peer: str
    metadata: Mapping[str, str]
    principal: Principal
    reading: Reading = UNCOUNTED
    end_s: float = math.inf


class GrpcCallers:
    """The connections that were joined to a gRPC server: each has a socket name of its own, by which the server distinguishes them."""

    def __init__(self, admission: Admission | None = None) -> None:
        self._admission = admission
        self._joined: dict[str, tuple[str, Principal | None, Known, Reading]] = {}

    @property
    def authenticates(self) -> bool:
        """Whether callers have to authenticate."""
        return self._admission is not None

    def joined(
        self, name: str, address: str, certificate: Principal | None, known: Known = lambda *_: True, reading: Reading = UNCOUNTED
    ) -> None:
        """A connection from ``address`` was joined under the abstract socket name ``name``.

        ``known`` gets the caller of each call, and whether that was checked (anyone may ask for health); it says whether the
        connection is none too many.
        """
        self._joined[name] = address, certificate, known, reading

    def parted(self, name: str) -> None:
        """Its connection is gone."""
        self._joined.pop(name, None)

    async def caller(self, method: str, context: Any) -> GrpcCaller:
        """The caller of this call.  AuthenticationFailedError when it is not admitted."""
        peer: str = context.peer()
        address, certificate, known, reading = self._joined.get(peer.removeprefix(_ABSTRACT), (peer, None, lambda *_: True, UNCOUNTED))
        metadata = _metadata(context.invocation_metadata())
        if self._admission is None or method.startswith(PUBLIC):
            return _report(
                known, GrpcCaller(address, metadata, certificate or ANONYMOUS, reading, _end_s(context)), self._admission is None
            )
        try:
            principal = self._admission.admit(certificate, await self._authenticated(self._admission, address, metadata))
        except AuthenticationFailedError as error:
            self._admission.refused(address, error)
            raise
        shown = {key: value for key, value in metadata.items() if key != AUTHORIZATION}
        return _report(known, GrpcCaller(address, shown, principal, reading, _end_s(context)), True)

    def watch(self, caller: GrpcCaller, end: Callable[[AuthenticationFailedError], object]) -> Callable[[], object]:
        """Call ``end`` as soon as what the caller came in with counts no more; call what is returned when the stream is over."""
        return self._admission.watch(caller.principal, end) if self._admission is not None else lambda: None

    async def _authenticated(self, admission: Admission, peer: str, metadata: Mapping[str, str]) -> str:
        given = metadata.get(AUTHORIZATION, "")
        if not given:
            return ""
        name, password = _basic(given)
        if not await admission.password_fits(peer, name, password):
            raise AuthenticationFailedError(f"{name}: wrong name or password", user=name)
        return name


def _metadata(pairs: Sequence[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Metadata as gRPC gives it, with what had to go as bytes under its own name again."""
    return {key.removesuffix("-bin"): value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in pairs or ()}


def _end_s(context: Any) -> float:
    left_s = context.time_remaining()
    return math.inf if left_s is None else loop_s() + left_s


def _report(known: Known, caller: GrpcCaller, admitted: bool) -> GrpcCaller:
    if not known(caller.principal, admitted):
        raise BusyError("too many connections: no more are served")
    return caller


def _basic(given: str) -> tuple[str, str]:
    if not given.lower().startswith(_BASIC):
        raise AuthenticationFailedError("authorization: expected Basic BASE64(USER:PASSWORD)")
    try:
        name, colon, password = base64.b64decode(given[len(_BASIC) :], validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8
        name = colon = password = ""
    if not colon:
        raise AuthenticationFailedError("authorization: expected Basic BASE64(USER:PASSWORD)")
    return name, password
