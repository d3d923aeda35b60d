"""What a console is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_wire.security.tls import TlsSettings

IDLE_S = 30 * 60.0


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of one console.

    Attributes:
        bootstrap: Addresses of nodes to start from, ``host:port,host:port``.
        host: Where the console listens, a name or an IP address.
        port: Its port.
        read_only: Offer no action, whatever the user may do.
        users: Whether the cluster has users; None: it is asked.
        as_started: Every visitor acts as the process's own user, without logging in.
        host_names: Names beside IP addresses and this machine's own that a browser may have asked for.
        tls: Certificate and key to serve HTTPS with; None for HTTP.
        idle_s: After this time without a click or a key a user is logged out.
        reports: Folder of this machine with reports of drills.
    """

    bootstrap: str
    host: str = "127.0.0.1"
    port: int = 8080
    read_only: bool = False
    users: bool | None = None
    as_started: bool = False
    host_names: frozenset[str] = field(default_factory=frozenset)
    tls: TlsSettings | None = None
    idle_s: float = IDLE_S
    reports: str = "drills"

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the console."""
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not listened on
        host = f"[{shown}]" if ":" in shown else shown
        return f"{'https' if self.tls is not None else 'http'}://{host}:{self.port}/"
