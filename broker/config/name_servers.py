"""Settings of the name service: name servers that are processes of their own, and how long what nodes register counts.

A plain address among ``name_servers`` has no id: it is one more address of a node of the first group, which then runs the name service.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from broker.config.model import ConfigModel
from broker.config.placement import is_loopback
from broker.config.replicas import ServerConfig
from broker.config.security import cluster_secret
from broker.config.values import Address, ListenAddress, duration, node_name, reachable_address, split_address, text
from dledger_wire.errors import ConfigError
from dledger_wire.security.credentials import read_secret

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

PASSWORD_VARIABLE = "DLEDGER_NAME_SERVICE_PASSWORD"  # noqa: S105 - the name of a variable
QUORUM_PORT_DISTANCE = 10_000
MAX_PORT = 65_535
_PLAIN: Any = object()  # the id of what the file gives as an address only


def _id(value: object) -> str:
    return "" if value is _PLAIN else node_name(value)


class NameServerConfig(ServerConfig):
    """A name server.  ``id`` is empty for a plain address."""

    id: Annotated[str, _id]
    # Where the other name servers reach it; by default the port of address and 10000 more, or less where that is above 65535.
    quorum_address: Address | None = None
    # Where it listens for the other name servers when that is elsewhere.
    quorum_listen: ListenAddress | None = None
    rocketmq: ListenAddress | None = None

    @classmethod
    def prepared(cls, given: object) -> object:
        return {"id": _PLAIN, "address": reachable_address(given)} if isinstance(given, str) else given

    @property
    def quorum(self) -> str:
        """The address that the other name servers reach it at."""
        if self.quorum_address is not None:
            return self.quorum_address
        host, _, port = self.address.rpartition(":")
        far = int(port) + QUORUM_PORT_DISTANCE
        return f"{host}:{far if far <= MAX_PORT else int(port) - QUORUM_PORT_DISTANCE}"

    @property
    def listened(self) -> str:
        """Where it listens for clients and nodes."""
        return self.listen or self.address

    @property
    def quorum_listened(self) -> str:
        """Where it listens for the other name servers: without a setting of its own beside ``listen``, with the port of ``quorum``."""
        if self.quorum_listen is not None or self.listen is None:
            return self.quorum_listen or self.quorum
        return f"{self.listen.rpartition(':')[0]}:{split_address(self.quorum)[1]}"


class NameServiceConfig(ConfigModel):
    """How nodes register, and how name servers talk to each other."""

    registerInterval: Annotated[int, duration(100, 600_000)] = 5_000
    # A row that is not repeated for so long expires.
    expireAfter: Annotated[int, duration(500, 3_600_000)] = 20_000
    # A file with the password of the name servers' quorum.
    passwordFile: Annotated[str, text(0, 4096)] | None = None


@dataclass(frozen=True)
class NameServerSettings:
    """One name server's view of the cluster file."""

    cluster: ClusterConfig
    server: NameServerConfig

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens: for clients and nodes, and for the other name servers."""
        return (self.server.listened, self.server.quorum_listened)

    @property
    def others(self) -> list[NameServerConfig]:
        return [other for other in self.cluster.name_server_processes if other.id != self.server.id]

    def password(self) -> str | None:
        """What the name servers encrypt with: from the environment, the file, or made of the cluster's secret; None without these.

        ConfigError when a file cannot be used.
        """
        given = os.environ.get(PASSWORD_VARIABLE)
        if given:
            return given
        path = self.cluster.name_service.passwordFile
        if path is not None:
            return read_secret(path, "the password of the name servers")
        security = self.cluster.security
        secret = cluster_secret(security, self.cluster.folder, self.server.id) if security is not None else None
        return hmac.digest(secret.encode(), b"dledger quorum of name servers", "sha256").hex() if secret is not None else None

    def check_password(self) -> None:
        """ConfigError when the name servers need a password and no setting gives one; files are not read."""
        security, service = self.cluster.security, self.cluster.name_service
        given = os.environ.get(PASSWORD_VARIABLE) or service.passwordFile or (security is not None and security.cluster_secret_file)
        if given or not self.others:
            return
        if security is not None:
            text = "security: name servers need a secret among each other"
            raise ConfigError(f"{text}: set security.cluster_secret_file, name_service.passwordFile or {PASSWORD_VARIABLE}")
        if not self.is_local:
            text = "name servers that reach each other outside loopback need a password"
            raise ConfigError(f"{text}: set name_service.passwordFile or {PASSWORD_VARIABLE}")

    @property
    def is_local(self) -> bool:
        """Whether all name servers reach each other at loopback addresses."""
        hosts = {split_address(server.quorum)[0] for server in self.cluster.name_server_processes}
        return all(is_loopback(host) for host in hosts)
