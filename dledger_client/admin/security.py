"""What ``Admin`` takes and returns of users and rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Effect: TypeAlias = Literal["allow", "deny"]
ResourceType: TypeAlias = Literal["topic", "group", "producer", "cluster"]
Action: TypeAlias = Literal["read", "write", "create", "describe", "administer"]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What a user may, or may not, do.

    Attributes:
        user: Name of the user, or ``*`` for all users.
        effect: ``allow`` or ``deny``; a rule that denies wins.
        resource: ``topic``, ``group`` (consumer groups and groups of transaction producers), ``producer`` or ``cluster``.
        pattern: Name of the resource, or the beginning of it followed by ``*``.
        action: ``read``, ``write``, ``create``, ``describe`` or ``administer``.
    """

    user: str
    effect: Effect
    resource: ResourceType
    pattern: str
    action: Action

    def __str__(self) -> str:
        return f"{self.effect} {self.user} {self.action} {self.resource} {self.pattern}"


@dataclass(frozen=True, slots=True)
class ClusterUser:
    """A user of the cluster.

    Attributes:
        name: Its name.
        has_password: Whether it may come in with a password; with a certificate of its name it always may.
        in_cluster_file: Whether it is an administrator that the cluster file names, which is changed there.
        has_secret: Whether RocketMQ's clients can sign as it.
    """

    name: str
    has_password: bool
    in_cluster_file: bool = False
    has_secret: bool = False


@dataclass(frozen=True, slots=True)
class SecurityChange:
    """A change that was made.

    Attributes:
        version: Of users and rules from then on; 0 after a change of the own password, which ends the connection.
        waiting: Replica groups that had not confirmed it within two seconds, by name.
        secret: What the cluster drew for ``set_user_secret``; it is shown here only.
    """

    version: int
    waiting: tuple[str, ...] = ()
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether something is allowed, and why.

    Attributes:
        allowed: The decision.
        rules: The rules for this user and resource; none of them: what no rule allows is denied.
    """

    allowed: bool
    rules: tuple[AccessRule, ...]
