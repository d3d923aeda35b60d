"""What a server has to know to let a caller in.

Owns the interface only: a node implements it from its users, and what a network does with it is in ``dledger_wire/tcp/authentication.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security.principal import Principal
from dledger_wire.security.scram import Verifier


class Admission(Protocol):
    """Decides who a caller is; without one every caller is admitted without authentication."""

    def verifier_of(self, name: str) -> Verifier:
        """Of a user, or of a principal of the cluster by its URI; of an unknown name one that nothing fits.

        NotReadyError when it cannot be said yet whose name it is.
        """
        ...

    def attempt(self, peer: str, name: str) -> None:
        """A caller at the address ``peer`` is about to prove that it is ``name``.  AuthenticationFailedError when it is wrong too often."""
        ...

    def wrong(self, peer: str, name: str) -> float:
        """It could not; returns for how many seconds to hold the refusal back."""
        ...

    async def password_fits(self, peer: str, name: str, password: str) -> bool:
        """Whether it is this user's, for clients that cannot do more than send it.  AuthenticationFailedError as ``attempt``."""
        ...

    def admit(self, certificate: Principal | None, name: str) -> Principal:
        """The principal of a caller with this certificate that authenticated as ``name`` (empty: it did not authenticate).

        AuthenticationFailedError when it may not come in, NotReadyError when that cannot be said yet.
        """
        ...

    def watch(self, principal: Principal, end: Callable[[AuthenticationFailedError], object]) -> Callable[[], object]:
        """Call ``end`` as soon as what ``principal`` came in with counts no more: its user was deleted, or has another password.

        What is returned is to be called when the connection or stream is over.  BusyError for one more than the user may have.
        """
        ...

    def refused(self, peer: str, error: AuthenticationFailedError) -> None:
        """A caller at the address ``peer`` was not let in."""
        ...
