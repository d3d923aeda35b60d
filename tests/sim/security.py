"""Security of a simulated cluster: who each process is, and the exchanges of SCRAM that a real connection carries.

Owns the credentials of all processes of a run.  Nodes, name servers and spare nodes prove the secret of the cluster under their own names,
clients a password; admission, gate, users and rules are the product's own.  As on a real connection, a process proves once to a listener
who it is; what it calls afterwards is checked against the users and rules of that moment.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from broker.security.admission import ClusterAdmission
from broker.security.setup import NO_SECURITY, ProcessSecurity
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security.admission import Admission
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import ANONYMOUS, Principal
from dledger_wire.security.scram import ClientExchange, ServerExchange, Verifier, fits, secret_verifier
from store.state.security import SecurityState

CLUSTER = "sim"
SECRET = "the secret of all simulated clusters"
ADMINISTRATOR = "admin"
LIMITED = frozenset({"mallory", "temporary"})  # users whose answers leave out what they may not see
APPLICATION = "app"  # whom the clients of a run are, unless it says otherwise


def hashed(user: str) -> str:
    """What stands for a user's password after scrypt, which takes too long for a simulation."""
    return hashlib.sha256(b"simulated password of " + user.encode()).hexdigest()


class SimCredentials:
    """Proves ``secret`` under ``name``, with a nonce that the seed decides.  A ``Credentials`` that nothing is awaited for."""

    def __init__(self, name: str, secret: str, draw: random.Random) -> None:
        self._name, self._secret, self._draw = name, secret, draw

    async def exchange(self) -> ClientExchange:
        return self.begin()

    def begin(self) -> ClientExchange:
        return ClientExchange(self._name, lambda _salt: self._secret, nonce=f"{self._draw.getrandbits(96):x}")


def prove(credentials: object, admission: Admission | None, peer: str) -> Principal:
    """Run the whole exchange between a caller and a listener; AuthenticationFailedError as the caller gets it."""
    if admission is None:
        if credentials is not None:
            raise AuthenticationFailedError(f"{peer} does not authenticate its callers")
        return ANONYMOUS
    try:
        if credentials is None:
            return admission.admit(None, "")
        assert isinstance(credentials, SimCredentials)
        client, server = credentials.begin(), ServerExchange(admission.verifier_of, nonce="simulated")
        final = client.answer(server.answer(client.first()))
        confirmation = server.answer(final)
        principal = admission.admit(None, server.name)
    except AuthenticationFailedError as error:
        admission.refused(peer, error)
        raise
    client.answer(confirmation)
    return principal


class SimSecurity:
    """Of one run.  ``is_on`` False: everybody may do everything, as in a cluster without the block ``security``."""

    def __init__(self, is_on: bool, seed: int) -> None:
        self.is_on = is_on
        self._draw = random.Random(f"security {seed}")
        self._verifiers: dict[str, Verifier] = {}
        self.refused: list[str] = []  # who was not let in

    def verifier(self, user: str) -> Verifier:
        """What the cluster keeps of a user's password."""
        found = self._verifiers.get(user)
        if found is None:
            found = self._verifiers[user] = secret_verifier(hashed(user))
            assert fits(found, hashed(user))
        return found

    def of_member(self, own: Principal, users: Callable[[], SecurityState | None]) -> ProcessSecurity:
        """Of the process of a node, a name server or a spare node."""
        if not self.is_on:
            return NO_SECURITY
        administrators = {ADMINISTRATOR: self.verifier(ADMINISTRATOR)}
        admission = ClusterAdmission(CLUSTER, administrators=administrators, secret=SECRET, users_required=True, users=users)
        admission.on_refused = lambda peer, error: self.refused.append(f"{peer}: {error.message}")
        network = NetworkSecurity(None, self.credentials(own.uri, SECRET), admission)
        return ProcessSecurity(network, admission, frozenset(administrators), has_users=True)

    def of_user(self, user: str) -> NetworkSecurity:
        """Of a client; one without a name has no credentials."""
        if not self.is_on or not user:
            return OPEN
        return NetworkSecurity(None, self.credentials(user, hashed(user)))

    def of_principal(self, who: Principal, secret: str = SECRET) -> NetworkSecurity:
        """Of somebody who says to be a member of a cluster."""
        return NetworkSecurity(None, self.credentials(who.uri, secret)) if self.is_on else OPEN

    def credentials(self, name: str, secret: str) -> SimCredentials:
        return SimCredentials(name, secret, random.Random(self._draw.getrandbits(64)))
