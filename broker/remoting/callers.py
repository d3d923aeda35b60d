"""Who sends a request of a RocketMQ client: a user of the cluster, by the signature of the request.

Owns the check, and that connections end whose users lost the secret that they signed with.  What a handler then calls is called as that
user, and checked where it is served, as for every client; ``rights.py`` has what handlers answer by themselves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.leader import CALLER
from broker.remoting.rights import check
from broker.remoting.signature import ACCESS_KEY, fits
from broker.security.access import CALLER_ADDRESS, AccessControl
from broker.security.admission import ClusterAdmission
from dledger_wire.errors import AuthenticationFailedError, NotReadyError
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.security.principal import Principal, user
from store.state.security import SecurityState

AT_ONCE_BYTES = 128 << 10  # of a body: what is larger is hashed beside the event loop
MAX_SHOWN = 127


class Callers:
    """``users`` gives users and rules, None while they are not known here.  It lasts as long as its node."""

    def __init__(self, admission: ClusterAdmission, access: AccessControl, users: Callable[[], SecurityState | None]) -> None:
        self._admission, self._access, self._users = admission, access, users
        self._decoy = secrets.token_urlsafe()  # so that a name that is not known takes the same time
        self._signed: dict[object, tuple[dict[str, str], Callable[[], object]]] = {}  # secrets by user, and what ends it
        access.on_change(self._changed)

    async def admit(self, request: Command, client: RemotingConnection) -> None:
        """Go on as the one who sent it.  AuthenticationFailedError, PermissionDeniedError, NotReadyError."""
        if request.code == Request.GRPC_CALL:
            return  # signed in another way: its handler looks at that

        async def is_signed(secret: str) -> bool:
            arguments = (secret, request.fields, request.body)
            return fits(*arguments) if len(request.body) <= AT_ONCE_BYTES else await asyncio.to_thread(fits, *arguments)

        principal, secret = await self.principal(client.peer, request.fields.get(ACCESS_KEY, ""), is_signed)
        if secret and client.is_open:
            if client not in self._signed:
                client.on_close.append(lambda: self.unwatch(client))
            self.watch(client, principal.name, secret, client.abort)
        check(self._access, principal, request)

    async def principal(self, peer: str, name: str, is_signed: Callable[[str], Awaitable[bool]]) -> tuple[Principal, str]:
        """Who sent a request with this access key, and the secret it is signed with; from here on services are called as that one."""
        CALLER_ADDRESS.set(peer)
        try:
            secret = await self._secret(name, is_signed) if name else ""
            principal = user(name) if name else self._admission.admit(None, "")
        except AuthenticationFailedError as error:
            self._admission.refused(peer, error)
            raise
        CALLER.set(LocalCaller(peer, principal))
        return principal, secret

    async def _secret(self, name: str, is_signed: Callable[[str], Awaitable[bool]]) -> str:
        state = self._users()
        secret = state.secret(name) if state is not None else ""
        if not secret and (state is None or not self._admission.is_current()):
            raise NotReadyError("the users of the cluster are not all known here yet")
        if not await is_signed(secret or self._decoy) or not secret:
            text = f"access key {name[:MAX_SHOWN]!r}: no user with a secret for RocketMQ's clients, or signed with another one"
            raise AuthenticationFailedError(text, reason="wrong_signature", user=name[:MAX_SHOWN])
        return secret

    def watch(self, connection: object, name: str, secret: str, end: Callable[[], object]) -> None:
        """Call ``end`` when a secret that it signed with counts no more, until ``unwatch``."""
        signed, _ = self._signed.setdefault(connection, ({}, end))
        signed[name] = secret

    def unwatch(self, connection: object) -> None:
        """It is gone."""
        self._signed.pop(connection, None)

    def _changed(self) -> None:
        """A client whose secret was taken away gets nothing more, also of what it asked for before."""
        state = self._users()
        if state is not None:
            for signed, end in list(self._signed.values()):
                if any(state.secret(name) != secret for name, secret in signed.items()):
                    end()
