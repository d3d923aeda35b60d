"""Who sends a request of a RocketMQ client: a user of the cluster, by the signature of the request.

Owns the check, and that connections end whose users lost the secret that they signed with.  What a handler then calls is called as that
user, and checked where it is served, as for every client; ``rights.py`` has what handlers answer by themselves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

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
        self._signed: dict[RemotingConnection, dict[str, str]] = {}  # secrets by user
        access.on_change(self._changed)

    async def admit(self, request: Command, client: RemotingConnection) -> None:
        """Go on as the one who sent it.  AuthenticationFailedError, PermissionDeniedError, NotReadyError."""
        CALLER_ADDRESS.set(client.peer)
        try:
            principal = await self._principal(request, client)
        except AuthenticationFailedError as error:
            self._admission.refused(client.peer, error)
            raise
        check(self._access, principal, request)
        CALLER.set(LocalCaller(client.peer, principal))

    async def _principal(self, request: Command, client: RemotingConnection) -> Principal:
        name, state = request.fields.get(ACCESS_KEY, ""), self._users()
        if not name:
            return self._admission.admit(None, "")
        secret = state.secret(name) if state is not None else ""
        if not secret and (state is None or not self._admission.is_current()):
            raise NotReadyError("the users of the cluster are not all known here yet")
        arguments = (secret or self._decoy, request.fields, request.body)
        is_signed = fits(*arguments) if len(request.body) <= AT_ONCE_BYTES else await asyncio.to_thread(fits, *arguments)
        if not secret or not is_signed:
            text = f"access key {name[:MAX_SHOWN]!r}: no user with a secret for RocketMQ's clients, or signed with another one"
            raise AuthenticationFailedError(text, reason="wrong_signature", user=name[:MAX_SHOWN])
        if client.is_open:
            self._remember(client, name, secret)
        return user(name)

    def _remember(self, client: RemotingConnection, name: str, secret: str) -> None:
        if client not in self._signed:
            self._signed[client] = {}
            client.on_close.append(lambda: self._signed.pop(client, None))
        self._signed[client][name] = secret

    def _changed(self) -> None:
        """A client whose secret was taken away gets nothing more, also of what it asked for before."""
        state = self._users()
        if state is not None:
            for client, signed in list(self._signed.items()):
                if any(state.secret(name) != secret for name, secret in signed.items()):
                    client.abort()
