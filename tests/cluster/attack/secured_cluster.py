"""A cluster with TLS and users, and the credentials that its attackers have.

Owns the certificates: those of the cluster, and those that look nearly like them.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from broker.config.security import verifier_text
from dledger_client import Admin
from dledger_client.admin.security import AccessRule
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.security import principal
from dledger_wire.security.certificates import KeyPair, issue, new_authority
from dledger_wire.security.principal import Principal
from dledger_wire.security.scram import password_verifier
from tests.cluster.attack import by_hand
from tests.cluster.attack.by_hand import Identity
from tests.cluster.harness import Cluster
from tests.waiting import wait_until

CLUSTER = "private"
HOSTS = ["127.0.0.1", "localhost"]
ADMIN_PASSWORD = "a-long-secret-of-the-administrator"
PASSWORDS = {"alice": "wonderland-is-down-the-hole", "mallory": "mallory-has-a-password-too", "trent": "trent-may-do-other-things"}
CLUSTER_SECRET = "what-members-of-the-cluster-know"
SECRETS = [ADMIN_PASSWORD, CLUSTER_SECRET, *PASSWORDS.values()]
# What attackers want, and may not even see.
TOPIC, GROUP, PRODUCER = "victims-orders", "victims-billing", "victims-writer"


@dataclass
class Secured:
    """The cluster, its authority, and who attacks it."""

    cluster: Cluster
    folder: Path
    authority: KeyPair

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def address(self) -> str:
        """The leader's."""
        return str(self.cluster.config.node(self.cluster.leader()).node.address)

    def certificate(self, owner: Principal, name: str, signer: KeyPair | None = None) -> Identity:
        """A certificate for whoever asks, from the cluster's authority or another one."""
        path = self.folder / name
        if not Path(f"{path}.crt").exists():
            issue(signer or self.authority, owner, HOSTS).write(str(path))
        return Identity(path)

    def certificate_of_time(self, owner: Principal, name: str, begin: datetime.timedelta, end: datetime.timedelta) -> Identity:
        """A certificate of the cluster's authority that is valid from ``begin`` to ``end`` from now."""
        plain = issue(self.authority, owner, HOSTS)
        found = x509.load_pem_x509_certificate(plain.certificate)
        key = serialization.load_pem_private_key(self.authority.key, None)
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            found.issuer, found.subject, found.public_key(), x509.random_serial_number(), now + begin, now + end
        )
        for extension in found.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        KeyPair(signed.public_bytes(serialization.Encoding.PEM), plain.key).write(str(self.folder / name))
        return Identity(self.folder / name)

    def call(self, identity: Identity, method: Any, request: Any = None) -> by_hand.Said:
        """A unary call to the leader."""
        message = request if request is not None else method.request()
        return by_hand.call(self.address, self.ca, identity, method.path, message.SerializeToString())

    def asked(self, method: Any, request: Any = None) -> Any:
        """What the administrator is answered by whoever leads."""

        def answer() -> by_hand.Said | None:
            said = self.call(ADMIN, method, request)
            return said if said.code != "NOT_LEADER" else None

        said = wait_until(answer, f"{method.path} is answered by a leader")
        assert said is not None
        assert not said.code, f"{method.path}: {said.code} {said.text}"
        return method.response.FromString(said.payload[8:])

    def log_text(self) -> str:
        return "".join(self.cluster.log_text(node) for node in self.cluster.local.all_ids())


ADMIN = Identity(user="admin", password=ADMIN_PASSWORD)
MALLORY = Identity(user="mallory", password=PASSWORDS["mallory"])
TRENT = Identity(user="trent", password=PASSWORDS["trent"])
ALICE = Identity(user="alice", password=PASSWORDS["alice"])


def make(folder: Path, more: Mapping[str, Any] | None = None, *, nodes: int = 3, name_servers: int = 0) -> Secured:
    """A cluster that is not started yet; ``more`` goes into its cluster file."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = new_authority(CLUSTER)
    folder.joinpath("ca.crt").write_bytes(authority.certificate)
    members = [principal.node(CLUSTER, "g0", f"n{number}") for number in range(nodes)]
    members += [principal.name_server(CLUSTER, f"ns{number}") for number in range(name_servers)]
    for member in members:
        issue(authority, member, HOSTS).write(str(folder / member.name))
    for name, secret in (("admin.password", ADMIN_PASSWORD), ("cluster.secret", CLUSTER_SECRET)):
        file = folder / name
        file.write_text(secret + "\n")
        file.chmod(0o600)
    security = {
        **({"cluster_secret_file": "cluster.secret"} if name_servers else {}),
        "folder": str(folder),
        "tls": {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"},
        "users": {"administrators": {"admin": verifier_text(password_verifier("admin", ADMIN_PASSWORD))}},
    }
    settings = {"security": security, **(more or {})}
    return Secured(Cluster(folder / "data", nodes=nodes, name_servers=name_servers, settings=settings), folder, authority)


def environment(folder: Path) -> Mapping[str, str]:
    """That of the administrator, as the command line takes it."""
    return {"DLEDGER_USER": "admin", "DLEDGER_PASSWORD_FILE": str(folder / "admin.password"), "DLEDGER_TLS_CA": str(folder / "ca.crt")}


@contextlib.contextmanager
def running(made: Secured) -> Iterator[Secured]:
    """The cluster with users, rules and what attackers want; the administrator's credentials are in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(made.folder).items():
            patch.setenv(name, value)
        try:
            made.cluster.start()
            settle(made)
            yield made
        finally:
            made.cluster.end()


def settle(secured: Secured) -> None:
    """Users, rules, and what attackers want."""
    with Admin(secured.cluster.bootstrap) as admin:
        for name, password in PASSWORDS.items():
            with contextlib.suppress(InvalidArgumentError):  # an attempt whose answer was lost is repeated, and finds the user there
                admin.create_user(name, password)
        allowed = [("alice", "topic", TOPIC), ("alice", "group", GROUP), ("alice", "producer", PRODUCER)]
        allowed += [("trent", "topic", "trents-*"), ("trent", "group", "trents-*"), ("trent", "producer", "trents-*")]
        admin.change_rules([AccessRule(user, "allow", kind, name, "administer") for user, kind, name in allowed])  # type: ignore[arg-type]
        admin.create_topic(TOPIC, queues=2)
        admin.create_topic("trents-topic", queues=1)
    secured.asked(methods.PUT_GROUP, methods.PUT_GROUP.request(name=GROUP))
