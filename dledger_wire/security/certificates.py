"""Certificates for a start: an authority, and what it issues to nodes, name servers and users.

Owns their contents: keys on the curve P-256, names of ours as URIs (``principal.py``), hosts as DNS names and addresses.  Large places have
an authority of their own; what it must put into certificates is what these have.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dledger_wire.errors import ConfigError
from dledger_wire.security.credentials import write_new, write_new_pair
from dledger_wire.security.principal import Kind, Principal, only_owner

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 397  # the most that browsers and most policies accept
_BACKDATED = timedelta(minutes=5)  # clocks differ


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"

    def write(self, path: str) -> None:
        """Write ``path``.crt and ``path``.key, the key for its owner alone.  FileExistsError when one is there."""
        write_new_pair((path + ".key", self.key, 0o600), (path + ".crt", self.certificate, 0o644))

    def write_certificate(self, path: str) -> None:
        """Write ``path``.crt beside a key that is there.  FileExistsError when a certificate is there."""
        write_new(path + ".crt", self.certificate, 0o644)


def new_authority(cluster: str, *, days: int = AUTHORITY_DAYS, key: PrivateKey | None = None) -> KeyPair:
    """An authority that signs certificates of a cluster; without ``key`` it gets a new one."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = _name(f"dledger authority of {cluster}")
    builder = _builder(name, name, key.public_key(), days).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = _usage(certificates=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: KeyPair,
    principal: Principal,
    hosts: Iterable[str] = (),
    *,
    days: int = CERTIFICATE_DAYS,
    key: PrivateKey | None = None,
) -> KeyPair:
    """A certificate for ``principal``; nodes and name servers are reached under ``hosts``.  Without ``key`` it gets a new one.  ConfigError
    when the authority is none."""
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate)
    except ValueError as error:
        raise ConfigError(f"the authority: expected a certificate: {error}") from None
    issuer_key = private_key(authority.key, "the authority")
    if issuer.public_key() != issuer_key.public_key():
        raise ConfigError("the authority: its key is not that of its certificate")
    key = key or ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(principal.uri), *(_host(host) for host in hosts)]
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if principal.kind is not Kind.USER:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _builder(_name(principal.name), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def private_key(pem: bytes, where: str) -> PrivateKey:
    """A key of the kind that certificates here have.  ConfigError begins with ``where``."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: expected a private key without a password: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{where}: expected a key on an elliptic curve, as dledger certs create makes it")
    return key


def owner_of(certificate: bytes, file: str) -> Principal | None:
    """The principal that a PEM certificate names; None when it has no name of ours, or several.  ConfigError when it is no certificate."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ConfigError(f"{file}: expected a certificate: {error}") from None
    return only_owner(names.get_values_for_type(x509.UniformResourceIdentifier))


def read_pem(path: str) -> bytes:
    """The bytes of a file with certificates.  ConfigError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read certificates: {os.strerror(error.errno or 0).lower()}") from None


def is_signed_by(certificate: bytes, authorities: bytes) -> bool:
    """Whether one of these authorities (PEM) signed the certificate, or one of those that stand behind it in its file."""
    try:
        chain, trusted = x509.load_pem_x509_certificates(certificate), x509.load_pem_x509_certificates(authorities)
    except (ValueError, x509.InvalidVersion):
        return False
    for link in chain:
        for authority in trusted:
            try:
                link.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return True
    return False


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), encoded)
