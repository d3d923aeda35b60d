"""The block ``security`` of a cluster file: TLS, what members of the cluster know each other by, users, and limits before anybody is known.

Paths are relative to ``folder``, by default that of the cluster file, and ``{id}`` in them stands for the id of the node or name server
that reads it, so that one file serves all of them.
"""

from __future__ import annotations

import base64
import os
from dataclasses import field
from enum import StrEnum
from typing import Annotated

from broker.config.model import ConfigModel, got, one_of
from broker.config.values import number, size, text
from dledger_wire.errors import ConfigError
from dledger_wire.security.credentials import MIN_SECRET_BYTES, read_secret
from dledger_wire.security.principal import is_user_name
from dledger_wire.security.scram import ITERATIONS, Verifier
from dledger_wire.security.tls import ClientAuth, MinVersion, TlsSettings

VERIFIER_SCHEME = "scram-sha-256"
_ID = "{id}"


class Step(StrEnum):
    """How far a running cluster is on its way to TLS."""

    OFFER = "offer"  # ports take TLS and plaintext, nodes dial plaintext: not all others take TLS yet
    USE = "use"  # nodes dial TLS; ports still take plaintext, from nodes that are not changed yet
    ONLY = "only"  # there is no plaintext


def verifier_text(verifier: Verifier) -> str:
    """A verifier as it stands in a cluster file."""
    parts = (base64.b64encode(part).decode() for part in (verifier.salt, verifier.stored_key, verifier.server_key))
    return "$".join((VERIFIER_SCHEME, *parts))


def _administrators(value: object) -> dict[str, Verifier]:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"expected names and verifiers as dledger security init prints them, got {value!r}")
    return {_user(name): _verifier(name, text) for name, text in value.items()}


def _user(value: object) -> str:
    if not isinstance(value, str) or not is_user_name(value):
        raise ValueError(f"expected a user name of letters, digits and . _ @ -, at most 127 long, got {value!r}")
    return value


def _verifier(name: str, value: object) -> Verifier:
    scheme, *parts = value.split("$") if isinstance(value, str) else ("",)
    try:
        keys = [base64.b64decode(part, validate=True) for part in parts]
    except ValueError:
        keys = []
    if scheme != VERIFIER_SCHEME or [len(key) for key in keys] != [16, 32, 32]:
        # What was given is not repeated: it may be a password.
        raise ValueError(
            f"administrator {name}: expected a verifier as dledger security init prints it ({VERIFIER_SCHEME}$...), no password"
        )
    return Verifier(keys[0], keys[1], keys[2], ITERATIONS)


def _step(value: object) -> Step:
    if not isinstance(value, str) or value not in list(Step):
        raise ValueError(f"expected {one_of([str(step) for step in Step])}, got {got(value)}")
    return Step(value)


Path = Annotated[str, text(1, 4096)]


class TlsConfig(ConfigModel):
    """TLS on every port."""

    ca: Path
    cert: Path
    key: Path
    min_version: MinVersion = "TLSv1.3"
    client_auth: ClientAuth = "optional"
    step: Annotated[Step, _step] = Step.ONLY


class UsersConfig(ConfigModel):
    """Users with passwords or certificates.  Administrators of the cluster file may do everything, also before any user was created."""

    required: bool = True
    administrators: Annotated[dict[str, Verifier], _administrators] = field(default_factory=dict)


class LimitsConfig(ConfigModel):
    """Of one node or name server, over all its addresses."""

    connections: Annotated[int, number(10, 1_000_000)] = 50_000
    connectionsPerSource: Annotated[int, number(1, 1_000_000)] = 10_000


class AuditConfig(ConfigModel):
    """The audit log of each node and name server: how large a file may get, and how many are kept."""

    maxBytes: Annotated[int, size(64 << 10, 1 << 40)] = 16 << 20
    files: Annotated[int, number(2, 1_000)] = 10


class SecurityConfig(ConfigModel):
    """What callers must prove.  Without the block every caller that reaches a port is trusted."""

    # Where relative paths of this block begin; default: the folder of the cluster file.
    folder: Path | None = None
    tls: TlsConfig | None = None
    cluster_secret_file: Path | None = None
    users: UsersConfig | None = None
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)


def own_path(path: str, folder: str, own_id: str) -> str:
    """A path of the block, as ``own_id`` uses it."""
    return os.path.join(folder, path.replace(_ID, own_id))


def tls_settings(config: TlsConfig, folder: str, own_id: str) -> TlsSettings:
    """The files of one node or name server."""
    ca, cert, key = (own_path(path, folder, own_id) for path in (config.ca, config.cert, config.key))
    return TlsSettings(ca, cert, key, config.min_version, config.client_auth)


def cluster_secret(config: SecurityConfig, folder: str, own_id: str) -> str | None:
    """The secret that members of the cluster know; None when the block has none.  ConfigError when its file cannot be used."""
    if config.cluster_secret_file is None:
        return None
    path = own_path(config.cluster_secret_file, folder, own_id)
    secret = read_secret(path, "the cluster's secret")
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise ConfigError(f"{path}: expected a secret of at least {MIN_SECRET_BYTES} bytes: openssl rand -base64 32")
    return secret
