"""TLS of one process: its certificate, its trusted authorities, and contexts that follow the files.

Owns ``TlsSettings`` (the block ``security.tls`` of cluster files and the ``tls`` parameter of clients) and ``TlsContexts``.  Files that
were replaced are read again for the next connection; connections that are there stay.  A set of files that does not fit together (a key
that was replaced before its certificate) changes nothing until it does.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from dledger_wire.errors import ConfigError
from dledger_wire.security.credentials import check_private

MinVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]
ClientAuth: TypeAlias = Literal["none", "optional", "required"]

LOOK_S = 1.0  # how often the files are looked at

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")  # by which the other side refuses one

refusals: ContextVar[list[ssl.SSLError] | None] = ContextVar("refusals", default=None)  # takes why a certificate was refused

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files and rules of one side.

    Attributes:
        ca: File with the certificates of the authorities that are trusted, PEM.
        cert: File with the own certificate and what leads to its authority, PEM.  A client may go without.
        key: File with the key of ``cert``, PEM, without a password; only its owner may be able to read it.
        min_version: The oldest version of the protocol that is spoken.
        client_auth: Of a server, whether it asks for certificates of clients: ``none``, ``optional`` or ``required``.
    """

    ca: str
    cert: str = ""
    key: str = ""
    min_version: MinVersion = "TLSv1.3"
    client_auth: ClientAuth = "optional"


@dataclass(slots=True)
class _Loaded:
    """A context, of files that looked like this."""

    context: ssl.SSLContext
    stamps: tuple[tuple[int, int, int], ...]
    looked_s: float
    expires_at_ms: int = 0


@dataclass(slots=True)
class TlsContexts:
    """The contexts of a process for dialling and accepting.  ConfigError at once when a file is missing or wrong.

    ``alpn``: what is spoken on connections that are accepted.  ``check`` raises ConfigError for files that fit together and must not be
    used: those in use stay then, as with files that do not fit."""

    settings: TlsSettings
    clock: Callable[[], float] = time.monotonic
    alpn: tuple[str, ...] = ("h2",)  # gRPC clients insist on it; ours do not ask
    check: Callable[[], object] = field(default=lambda: None, kw_only=True)
    _client: _Loaded | None = field(default=None, init=False)
    _server: _Loaded | None = field(default=None, init=False)
    _trouble: str = field(default="", init=False)

    def client(self) -> ssl.SSLContext:
        """For the next connection that is dialled."""
        self._client = self._fresh(self._client, self._new_client)
        return self._client.context

    def server(self) -> ssl.SSLContext:
        """For a listener: each connection that it accepts gets the context of the files as they are then."""
        loaded = self._fresh(self._server, self._new_server)
        if loaded is not self._server:
            loaded.expires_at_ms = int(expiry(self.settings.cert).timestamp() * 1000)
            self._server = loaded
        return loaded.context

    def without_client_certificates(self, alpn: tuple[str, ...]) -> TlsContexts:
        """Contexts with the same files, for a port whose clients have no certificates of the cluster and speak ``alpn``."""
        return TlsContexts(replace(self.settings, client_auth="none"), alpn=alpn, check=self.check)

    @property
    def trouble(self) -> str:
        """Why the files as they are now are not in use; empty when they are."""
        return self._trouble

    @property
    def expires_at_ms(self) -> int:
        """When the certificate in use expires, milliseconds since the epoch; 0 before ``server`` was called."""
        return self._server.expires_at_ms if self._server is not None else 0

    # -- contexts

    def _fresh(self, loaded: _Loaded | None, make: Callable[[], ssl.SSLContext]) -> _Loaded:
        now_s = self.clock()
        if loaded is not None and now_s - loaded.looked_s < LOOK_S:
            return loaded
        stamps = self._stamps()
        if loaded is not None and loaded.stamps == stamps:
            loaded.looked_s = now_s
            return loaded
        try:
            made = _Loaded(make(), stamps, now_s)
            self.check()
        except ConfigError as error:
            if loaded is None:
                raise
            loaded.looked_s = now_s
            if self._trouble != error.message:
                self._trouble = error.message
                _logger.warning(
                    "certificates were replaced and cannot be used; the old ones remain in use: %s",
                    error.message,
                    extra={"event": "certificate_unusable"},
                )
            return loaded
        if loaded is not None:
            _logger.info("certificates were reloaded")
        self._trouble = ""
        return made

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self.settings.ca, self.settings.cert, self.settings.key):
            try:
                stat = os.stat(path) if path else None
            except OSError:
                stat = None
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size) if stat is not None else (0, 0, 0))
        return tuple(found)

    def _new_client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        return context

    def _new_server(self) -> ssl.SSLContext:
        if not self.settings.cert:
            raise ConfigError("security.tls: a server needs cert and key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        context.verify_mode = _CLIENT_AUTH[self.settings.client_auth]
        context.set_alpn_protocols(list(self.alpn))
        context.sni_callback = self._replace_context
        context.sslobject_class = _Accepted
        return context

    def _replace_context(self, connection: ssl.SSLObject, _name: str | None, accepted: ssl.SSLContext) -> None:
        """A listener has one context for its life: what it accepts moves to the newest."""
        newest = self.server()
        if newest is not accepted:
            connection.context = newest

    def _load(self, context: ssl.SSLContext) -> None:
        settings = self.settings
        context.minimum_version = _VERSIONS[settings.min_version]
        try:
            context.load_verify_locations(settings.ca)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(settings.ca, "certificates of authorities", error) from None
        if not settings.cert:
            return
        check_private(settings.key, "a private key")
        try:
            context.load_cert_chain(settings.cert, settings.key, password=_no_password)
        except (OSError, ssl.SSLError, _EncryptedKeyError) as error:
            raise _unusable(f"{settings.cert}, {settings.key}", "a certificate and its key", error) from None


class _Accepted(ssl.SSLObject):
    """A connection that is accepted.  Event loops close one whose handshake fails at once, with the alert still in memory: when a
    certificate is refused, it goes out first, as if the handshake waited for more, and the failure follows the next bytes."""

    _refusal: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLCertVerificationError) and error.reason != "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                raise
            self._refusal = error
            if (reported := refusals.get()) is not None:
                reported.append(error)
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert is to be sent") from None


class _EncryptedKeyError(Exception):
    """The key needs a password."""


def _no_password() -> str:
    raise _EncryptedKeyError("the key is encrypted; expected one without a password")


def _unusable(files: str, expected: str, error: Exception) -> ConfigError:
    if isinstance(error, ssl.SSLError):
        reason = _words(error, "not PEM")
    else:
        reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
    return ConfigError(f"{files}: expected {expected}: {reason}")


def _words(error: ssl.SSLError, otherwise: str) -> str:
    return (error.reason or otherwise).replace("_", " ").lower()


def handshake_failure(error: ssl.SSLError, min_version: str = "") -> str:
    """Why there is no connection; ``min_version``: what this side asks for, where it is the one to say so."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if alert := certificate_alert(error):
        return f"does not accept the certificate of this side: {alert}"
    reason = _words(error, "not TLS")
    expected = f"; expected {min_version} or newer" if min_version and reason == "unsupported protocol" else ""
    return f"no TLS connection: {reason}{expected}"


def certificate_alert(error: Exception | None) -> str:
    """What the other side said of this side's certificate, when it refused that; empty for any other error.

    In TLS 1.3 it says so after the handshake of the side that dialled is over."""
    _, found, alert = ((error.reason or "") if isinstance(error, ssl.SSLError) else "").partition("ALERT_")
    return alert.replace("_", " ").lower() if found and any(each in alert for each in _CERTIFICATE_ALERTS) else ""


def expiry(path: str) -> datetime:
    """When the first certificate in a PEM file expires.  ConfigError when there is none."""
    from cryptography import x509

    try:
        with open(path, "rb") as file:
            found = x509.load_pem_x509_certificate(file.read())
    except (OSError, ValueError, x509.InvalidVersion) as error:
        raise ConfigError(f"{path}: expected a certificate: {error}") from None
    expires: datetime = found.not_valid_after_utc
    return expires.astimezone(UTC)
