"""Whether the certificate of a process is its own, checked before it listens, and whether others would take it.

Owns the checks: a certificate of another node, or one that the authorities of the cluster did not sign, would be refused by every other
process, each in words of its own.
"""

from __future__ import annotations

import ssl

from broker.config.security import TlsConfig
from dledger_wire.errors import ConfigError
from dledger_wire.security.certificates import is_signed_by, owner_of, read_pem
from dledger_wire.security.principal import Principal
from dledger_wire.security.tls import TlsContexts, TlsSettings, handshake_failure

FLIGHTS = 3  # more than a handshake has


def check_own_certificate(config: TlsConfig, settings: TlsSettings, own: Principal, *, has_secret: bool) -> bool:
    """Whether the certificate names ``own``.  ConfigError when it is another's, or not of the cluster's authorities.  ``has_secret``: the
    process authenticates by the cluster's secret, and its certificate need not name it."""
    certificate, authorities = read_pem(settings.cert), read_pem(settings.ca)
    found = owner_of(certificate, settings.cert)
    if found is None and not has_secret:
        raise ConfigError(f"{settings.cert}: expected a certificate that names {own} ({own.uri}), found one without a name of a cluster")
    if found is not None and not found.stands_for(own):
        hint = "; write {id} for the id in security.tls.cert and key" if "{id}" not in config.cert else ""
        raise ConfigError(f"{settings.cert}: expected the certificate of {own}, found that of {found}{hint}")
    if not is_signed_by(certificate, authorities):
        raise ConfigError(f"{settings.cert}: no authority in {settings.ca} signed it")
    return found is not None


def check_handshake(tls: TlsContexts, host: str) -> None:
    """ConfigError unless a process with the same files trusts the certificate when it dials ``host``, and is trusted: tried in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = tls.client().wrap_bio(to_client, to_server, server_hostname=host)
    accepting = tls.server().wrap_bio(to_server, to_client, server_side=True)
    for side in (dialling, accepting) * FLIGHTS:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            found = handshake_failure(error)
            raise ConfigError(f"{tls.settings.cert}: others that reach the process at {host} would say: {found}") from None
