"""What a network needs to know of security: one value for all its channels and servers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dledger_wire.security.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from dledger_wire.security.admission import Admission
    from dledger_wire.security.credentials import Credentials
    from dledger_wire.security.principal import Principal
    from dledger_wire.security.tls import TlsContexts


@dataclass(frozen=True, slots=True)
class NetworkSecurity:
    """Of one process.

    Attributes:
        tls: Speak TLS only, in both directions, unless the next two say otherwise.
        credentials: Prove this on every connection that is dialled.
        certified: The member of the cluster that the own certificate names, if it does.  Other members are dialled with it alone where they
            refuse the credentials: they do not know the secret yet.
        admission: The callers that servers admit; without it all.
        limits: What servers give to connections.
        plaintext: Servers take connections without TLS as well: the cluster is on its way to TLS.
        dials_tls: False: not all others speak TLS yet.
        counts: How many connections were refused or dropped since the start, by reason, and how many came without TLS while both are taken.
    """

    tls: TlsContexts | None = None
    credentials: Credentials | None = None
    admission: Admission | None = None
    limits: Limits = DEFAULT_LIMITS
    plaintext: bool = False
    dials_tls: bool = True
    counts: Counter[str] = field(default_factory=Counter, compare=False)
    certified: Principal | None = None


OPEN = NetworkSecurity()
