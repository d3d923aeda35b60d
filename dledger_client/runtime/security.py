"""How a client authenticates, and the authorities it trusts: parameters of constructors, or the environment if a constructor says nothing.

DLEDGER_USER, DLEDGER_PASSWORD_FILE       a user and a file with its password
DLEDGER_TLS_CA                            certificates of the authorities that nodes' certificates must be of
DLEDGER_TLS_CERT, DLEDGER_TLS_KEY         the client's own certificate, where it has one
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict, TypeVar

from dledger_client.runtime.argument_ranges import check_text
from dledger_wire.errors import ConfigError, InvalidArgumentError
from dledger_wire.security import variables
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.tls import TlsContexts, TlsSettings

Tls: TypeAlias = TlsSettings | str | os.PathLike[str]  # a path is that of the authorities

ENVIRONMENT = {
    "user": variables.USER,
    "password_file": variables.PASSWORD_FILE,
    "ca": variables.CA,
    "cert": variables.CERT,
    "key": variables.KEY,
}

T = TypeVar("T")

_typed: ContextVar[tuple[str, str] | None] = ContextVar("dledger_client_password", default=None)
_used: ContextVar[NetworkSecurity | None] = ContextVar("dledger_client_security", default=None)
_variables: ContextVar[Mapping[str, str]] = ContextVar("dledger_client_variables", default=MappingProxyType({}))


class SecuritySettings(TypedDict, total=False):
    """A client's credentials and trusted authorities.  Every constructor takes these settings.

    What a constructor does not say is taken from the environment: ``DLEDGER_USER``, ``DLEDGER_PASSWORD_FILE``, ``DLEDGER_TLS_CA``,
    ``DLEDGER_TLS_CERT`` and ``DLEDGER_TLS_KEY``. Files are read again for each new connection, so a password or a certificate is
    replaced without a restart.

    Attributes:
        user: Name of the user. Default: none, or the name in the certificate.
        password: Its password. Better kept in a file.
        password_file: File with its password in the first line; only its owner may be able to read it (mode 0600).
        tls: ``TlsSettings``, or the path of a file with the authorities (PEM) that certificates of nodes must be of. Default: no TLS.
    """

    user: str
    password: str
    password_file: str | os.PathLike[str]
    tls: Tls | None


def security_part(settings: Mapping[str, Any]) -> SecuritySettings:
    """Of all settings of a client those that are here."""
    return {name: value for name, value in settings.items() if name in SecuritySettings.__annotations__}  # type: ignore[return-value]


@contextlib.contextmanager
def inside(variable: ContextVar[T], value: T) -> Iterator[None]:
    """The variable has the value inside of this context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def use_security(security: NetworkSecurity) -> AbstractContextManager[None]:
    """Clients made inside of this context, whose constructors say nothing, prove this: for tools beside a node, which may use its key."""
    return inside(_used, security)


def use_password(user: str, password: str) -> AbstractContextManager[None]:
    """Clients made inside of this context, whose constructors say nothing, are this user; TLS is the environment's."""
    return inside(_typed, (user, password))


def use_variables(given: Mapping[str, str]) -> AbstractContextManager[None]:
    """Clients made inside of this context read these in place of variables of the environment; an empty one counts as not set."""
    return inside(_variables, given)


def _variable(setting: str) -> str:
    name, given = ENVIRONMENT[setting], _variables.get()
    return given[name] if name in given else os.environ.get(name, "")


def check_known(settings: SecuritySettings) -> None:
    """TypeError for a setting that is none of these."""
    unknown = settings.keys() - SecuritySettings.__annotations__.keys()
    if unknown:
        expected = ", ".join(SecuritySettings.__annotations__)
        raise TypeError(f"a client has no setting {sorted(unknown)[0]!r}; besides its own it takes {expected}")


def _check_types(settings: SecuritySettings) -> None:
    """InvalidArgumentError for a value of a wrong type: ``tls={}`` would be no TLS.  None: not given."""
    check_text(user=settings.get("user") or "")
    password = settings.get("password") or ""
    if not isinstance(password, str):  # it is not shown
        raise InvalidArgumentError(f"password: expected text, not {type(password).__name__}")
    if not isinstance(settings.get("password_file") or "", str | os.PathLike):
        raise InvalidArgumentError(f"password_file {settings.get('password_file')!r}: expected the path of a file")
    tls = settings.get("tls")
    if tls is not None and not isinstance(tls, TlsSettings | str | os.PathLike):
        raise InvalidArgumentError(f"tls {tls!r}: expected TlsSettings, or the path of a file with the authorities")


def network_security(settings: SecuritySettings) -> NetworkSecurity:
    """What the network of a client with these settings needs.  Raises what ``client_security`` does."""
    _check_types(settings)
    used = _used.get()
    given = {name: value for name, value in settings.items() if value}
    if used is not None and not given:
        return used
    typed = _typed.get()
    if typed is not None and not given:
        return client_security(*typed)
    return client_security(**given)  # type: ignore[arg-type]


def client_security(
    user: str = "", password: str = "", password_file: str | os.PathLike[str] = "", tls: Tls | None = None
) -> NetworkSecurity:
    """What the network of a client needs.  ConfigError for files that cannot be used, and for a user without a password."""
    has_password = bool(password or password_file)
    settings = _tls_of_environment() if tls is None else tls if isinstance(tls, TlsSettings) else TlsSettings(os.fspath(tls))
    if not (user or has_password or (tls is not None and settings is not None and settings.cert)):
        user, password_file = (_variable(name) for name in ("user", "password_file"))
    elif user and has_password and tls is None and settings is not None:
        settings = replace(settings, cert="", key="")  # of whomever the environment means
    if not user and (password or password_file):
        raise ConfigError("a password requires a user")
    if not user and settings is None:
        return OPEN
    contexts = TlsContexts(settings) if settings is not None else None
    if contexts is not None:
        contexts.client()
    if not user or (settings is not None and settings.cert and not (password or password_file)):
        return NetworkSecurity(contexts)
    from dledger_wire.security.credentials import PasswordCredentials

    return NetworkSecurity(contexts, PasswordCredentials(user, password=password, password_file=os.fspath(password_file)))


def _tls_of_environment() -> TlsSettings | None:
    ca, cert, key = (_variable(name) for name in ("ca", "cert", "key"))
    if not ca:
        if cert or key:
            raise ConfigError("DLEDGER_TLS_CERT and DLEDGER_TLS_KEY require DLEDGER_TLS_CA, the authorities of the nodes")
        return None
    if bool(cert) != bool(key):
        raise ConfigError("DLEDGER_TLS_CERT and DLEDGER_TLS_KEY are required together")
    return TlsSettings(ca, cert, key)
