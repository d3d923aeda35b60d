"""How a client proves who it is: parameters of constructors, or variables of the environment where a constructor says nothing.

DLEDGER_USER, DLEDGER_PASSWORD_FILE       a user and a file with its password
DLEDGER_TLS_CA                            certificates of the authorities that nodes' certificates must be of
DLEDGER_TLS_CERT, DLEDGER_TLS_KEY         the client's own certificate, where it has one
"""

from __future__ import annotations

import os
from typing import TypeAlias

from dledger_wire.errors import ConfigError
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.tls import TlsContexts, TlsSettings

Tls: TypeAlias = TlsSettings | str | os.PathLike[str]  # a path is that of the authorities


def client_security(user: str = "", password: str = "", password_file: str = "", tls: Tls | None = None) -> NetworkSecurity:
    """What the network of a client needs.  ConfigError for files that cannot be used, and for a user without a password."""
    if not (user or password or password_file):
        user, password_file = os.environ.get("DLEDGER_USER", ""), os.environ.get("DLEDGER_PASSWORD_FILE", "")
    settings = _tls_of_environment() if tls is None else tls if isinstance(tls, TlsSettings) else TlsSettings(os.fspath(tls))
    if not user and settings is None:
        if password or password_file:
            raise ConfigError("a password without a user; expected both")
        return OPEN
    contexts = TlsContexts(settings) if settings is not None else None
    if contexts is not None:
        contexts.client()
    if not user or (settings is not None and settings.cert and not (password or password_file)):
        return NetworkSecurity(contexts)
    from dledger_wire.security.credentials import PasswordCredentials

    return NetworkSecurity(contexts, PasswordCredentials(user, password=password, password_file=password_file))


def _tls_of_environment() -> TlsSettings | None:
    ca, cert, key = (os.environ.get(f"DLEDGER_TLS_{name}", "") for name in ("CA", "CERT", "KEY"))
    if not ca:
        if cert or key:
            raise ConfigError("DLEDGER_TLS_CERT and DLEDGER_TLS_KEY without DLEDGER_TLS_CA; expected the authorities of the nodes, too")
        return None
    if bool(cert) != bool(key):
        raise ConfigError("expected both DLEDGER_TLS_CERT and DLEDGER_TLS_KEY, or neither")
    return TlsSettings(ca, cert, key)
