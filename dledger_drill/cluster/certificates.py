"""The certificates of a private cluster: an authority of its own, and a certificate for each node and name server.

Owns their files, which nodes read again when they were replaced.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dledger_wire.security.certificates import KeyPair, issue, new_authority
from dledger_wire.security.principal import Principal

DAYS = 3650  # clocks jump in a drill
CONNECT_S = 5.0


class Certificates:
    """``members``: name -> who it is, and the hosts that it is reached at."""

    def __init__(self, folder: Path, cluster: str, members: Mapping[str, tuple[Principal, Sequence[str]]]) -> None:
        folder.mkdir(parents=True)
        self._folder, self._members = folder, dict(members)
        self._authority = new_authority(cluster, days=DAYS)
        self._authority.write(str(folder / "ca"))
        self._issued: dict[str, KeyPair] = {}
        self.rotate()

    @property
    def ca(self) -> str:
        return str(self._folder / "ca.crt")

    @property
    def settings(self) -> dict[str, Any]:
        """Block ``security`` of the cluster file."""
        tls = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
        return {"folder": str(self._folder), "tls": tls}

    def rotate(self) -> None:
        """A new key and certificate for each member, by the same authority."""
        for name, (principal, hosts) in self._members.items():
            made = issue(self._authority, principal, hosts, days=DAYS)
            part = self._folder / f"{name}.new"
            made.write(str(part))
            for suffix in (".key", ".crt"):
                part.with_name(f"{part.name}{suffix}").replace(self._folder / f"{name}{suffix}")
            self._issued[name] = made

    def is_served(self, name: str, address: str) -> bool:
        """Whether new connections to a member are given its newest certificate."""
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection((host, int(port)), CONNECT_S) as plain,
                context.wrap_socket(plain, server_hostname=host) as secured,
            ):
                return secured.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(self._issued[name].certificate.decode())
        except OSError:
            return False
