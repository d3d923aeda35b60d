"""What a network needs to know of security: one value for all its channels and servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger_wire.security.admission import Admission
    from dledger_wire.security.credentials import Credentials
    from dledger_wire.security.tls import TlsContexts


@dataclass(frozen=True, slots=True)
class NetworkSecurity:
    """``tls``: speak TLS only, in both directions; ``credentials``: prove this on every connection that is dialled; ``admission``: who may
    connect to servers (without it everybody)."""

    tls: TlsContexts | None = None
    credentials: Credentials | None = None
    admission: Admission | None = None


OPEN = NetworkSecurity()
