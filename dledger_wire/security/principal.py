"""Who speaks on a connection.

Owns the names of users, nodes and name servers, in the form that certificates and authentication carry:

    dledger://CLUSTER/node/REPLICA-GROUP/ID    a node, bound to its replica group; a spare node has the group ``-``
    dledger://CLUSTER/nameserver/ID            a name server
    dledger://CLUSTER/user/NAME                a user's certificate; one with a password is known by the name alone
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

SCHEME = "dledger://"
SPARE_GROUP = "-"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,126}")


class Kind(StrEnum):
    """What a principal is."""

    ANONYMOUS = "anonymous"
    USER = "user"
    NODE = "node"
    NAME_SERVER = "nameserver"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, a node or a name server; ``group`` is the replica group of a node, and ``cluster`` empty for users with a password."""

    kind: Kind
    name: str = ""
    group: str = ""
    cluster: str = ""

    @property
    def is_cluster(self) -> bool:
        """Whether it is a part of the cluster itself."""
        return self.kind in (Kind.NODE, Kind.NAME_SERVER)

    @property
    def uri(self) -> str:
        """The name that a certificate or an authentication carries."""
        parts = [self.cluster, self.kind.value, *([self.group] if self.kind is Kind.NODE else []), self.name]
        return SCHEME + "/".join(parts)

    def stands_for(self, other: Principal) -> bool:
        """Whether it is this node; a spare node that became a member has no replica group in its certificate."""
        return self in (other, node(other.cluster, SPARE_GROUP, other.name)) if other.kind is Kind.NODE else self == other

    def __str__(self) -> str:
        if self.kind is Kind.NODE:
            place = f"spare node {self.name}" if self.group == SPARE_GROUP else f"node {self.name} of replica group {self.group}"
            return f"{place} of cluster {self.cluster}"
        if self.kind is Kind.NAME_SERVER:
            return f"name server {self.name} of cluster {self.cluster}"
        return f"user {self.name}" if self.kind is Kind.USER else "a client without credentials"


ANONYMOUS = Principal(Kind.ANONYMOUS)


USER_NAME = "letters, digits and . _ @ - (1 to 127)"  # what is expected of one, in words


def is_user_name(text: str) -> bool:
    """Whether ``text`` may be the name of a user."""
    return _NAME.fullmatch(text) is not None


def node(cluster: str, group: str, node_id: str) -> Principal:
    """A node of a replica group; a spare node has no group yet and gives ``SPARE_GROUP``."""
    return Principal(Kind.NODE, node_id, group, cluster)


def name_server(cluster: str, server_id: str) -> Principal:
    """A name server."""
    return Principal(Kind.NAME_SERVER, server_id, "", cluster)


def user(name: str, cluster: str = "") -> Principal:
    """A user; ``cluster`` is given in certificates only."""
    return Principal(Kind.USER, name, "", cluster)


def of_uri(uri: str) -> Principal | None:
    """The principal of this name; None when it is no name of ours."""
    if not uri.startswith(SCHEME):
        return None
    cluster, kind, *rest = parts if len(parts := uri.removeprefix(SCHEME).split("/")) > 2 else ("", "", "")
    if not all(part == SPARE_GROUP or is_user_name(part) for part in (cluster, *rest)):
        return None
    if kind == Kind.NODE and len(rest) == 2:
        return node(cluster, rest[0], rest[1])
    if kind == Kind.NAME_SERVER and len(rest) == 1:
        return name_server(cluster, rest[0])
    return user(rest[0], cluster) if kind == Kind.USER and len(rest) == 1 else None


def only_owner(uris: Iterable[str]) -> Principal | None:
    """The principal that a certificate with these URIs names; None when there is not exactly one."""
    known = [principal for principal in map(of_uri, uris) if principal is not None]
    return known[0] if len(known) == 1 else None
