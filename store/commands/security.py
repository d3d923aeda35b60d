"""Commands that change users and rules: in the log of the cluster's first replica group, and as a copy in those of the others."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.security.principal import USER_NAME, is_user_name
from dledger_wire.security.scram import Verifier
from store.commands.command import Command, Row, optional

EVERYBODY = "*"
MAX_USERS = 10_000
MAX_RULES = 50_000
MAX_RULES_OF_COMMAND = 1_000
MAX_COPY_BYTES = 32 << 20  # of as many users and rules
MAX_PATTERN = 255
MAX_SECRET = 64


class Effect(StrEnum):
    """What a rule does."""

    ALLOW = "allow"
    DENY = "deny"


class Resource(StrEnum):
    """What a rule is about."""

    TOPIC = "topic"
    GROUP = "group"  # a consumer group, or the group of transaction producers
    PRODUCER = "producer"  # a producer id
    CLUSTER = "cluster"


class Action(StrEnum):
    """What is done with it."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DESCRIBE = "describe"
    ADMINISTER = "administer"


@dataclass(frozen=True, slots=True)
class User(Row):
    """A user; one without a verifier comes in with a certificate only."""

    name: str
    verifier: Verifier | None = None

    def encode(self) -> list[Any]:
        """As a row of JSON."""
        found = self.verifier
        if found is None:
            return [self.name]
        keys = [base64.b64encode(part).decode() for part in (found.salt, found.stored_key, found.server_key)]
        return [self.name, *keys, found.iterations]

    @classmethod
    def decode(cls, row: tuple[Any, ...]) -> User:
        """The user of a row."""
        name, *rest = row
        if not rest:
            return cls(str(name))
        salt, stored_key, server_key, iterations = rest
        try:
            keys = [base64.b64decode(part, validate=True) for part in (salt, stored_key, server_key)]
        except binascii.Error as error:
            raise InvalidArgumentError(f"verifier of user {name!r}: {error}") from None
        return cls(str(name), Verifier(keys[0], keys[1], keys[2], int(iterations)))

    def check(self) -> None:
        """InvalidArgumentError for a name that no user can have."""
        if not is_user_name(self.name):
            raise InvalidArgumentError(f"user {self.name!r}: expected {USER_NAME}")


@dataclass(frozen=True, slots=True, order=True)
class Rule(Row):
    """``user`` may, or may not, do ``action`` with the resources of this type that fit ``pattern``: a name, or its beginning and *."""

    user: str
    effect: Effect
    resource: Resource
    pattern: str
    action: Action

    def encode(self) -> list[str]:
        """As a row of JSON."""
        return [self.user, self.effect.value, self.resource.value, self.pattern, self.action.value]

    @classmethod
    def decode(cls, row: tuple[Any, ...]) -> Rule:
        """The rule of a row.  ValueError when it is none."""
        user, effect, resource, pattern, action = row
        return cls(str(user), Effect(effect), Resource(resource), str(pattern), Action(action))

    def fits(self, name: str) -> bool:
        """Whether the pattern is that of ``name``."""
        return name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern

    def check(self) -> None:
        """InvalidArgumentError for a rule that means nothing."""
        if self.user != EVERYBODY and not is_user_name(self.user):
            raise InvalidArgumentError(f"user {self.user!r}: expected a name or {EVERYBODY} for all users")
        plain = self.pattern.removesuffix("*")
        if not self.pattern or len(self.pattern) > MAX_PATTERN or "*" in plain or not plain.isprintable():
            raise InvalidArgumentError(f"pattern {self.pattern!r}: expected a name, a beginning followed by *, or * for all")
        if self.resource is Resource.CLUSTER and self.pattern != "*":
            raise InvalidArgumentError(f"pattern {self.pattern!r}: expected * for the cluster, which is one")

    def __str__(self) -> str:
        return f"{self.effect} {self.user} {self.action} {self.resource} {self.pattern}"


@dataclass(frozen=True, slots=True)
class UserSecret(Row):
    """What RocketMQ's clients sign their requests with as this user; kept as it is, since a signature is checked by making it."""

    name: str
    secret: str

    def encode(self) -> list[str]:
        """As a row of JSON."""
        return [self.name, self.secret]

    @classmethod
    def decode(cls, row: tuple[Any, ...]) -> UserSecret:
        """The secret of a row."""
        name, secret = row
        return cls(str(name), str(secret))


@dataclass(frozen=True, slots=True, kw_only=True)
class PutUser(Command[int]):
    """Creates a user or gives one another password; returns the version.  ``create``: the user must not be there; else it must be."""

    KIND: ClassVar[str] = "put_user"
    user: User
    create: bool = True

    def check(self) -> None:
        self.user.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUserSecret(Command[int]):
    """Gives a user another secret in place of the one that it has, or none; returns the version."""

    KIND: ClassVar[str] = "set_user_secret"
    name: str
    secret: str = ""

    def check(self) -> None:
        if len(self.secret) > MAX_SECRET or not self.secret.isascii():
            raise InvalidArgumentError(f"user {self.name!r}: expected a secret of at most {MAX_SECRET} ASCII characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUser(Command[int]):
    """Deletes a user and the rules that name it; returns the version."""

    KIND: ClassVar[str] = "delete_user"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules(Command[int]):
    """Takes rules away, then adds some, at once; returns the version.  Rules that are there already, or not, change nothing."""

    KIND: ClassVar[str] = "change_rules"
    added: tuple[Rule, ...] = ()
    removed: tuple[Rule, ...] = ()

    def check(self) -> None:
        if not 0 < len(self.added) + len(self.removed) <= MAX_RULES_OF_COMMAND:
            raise InvalidArgumentError(f"{len(self.added) + len(self.removed)} rules; expected 1 to {MAX_RULES_OF_COMMAND}")
        for rule in self.added:
            rule.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySecurity(Command[int]):
    """All users and rules of the first replica group, at its ``version``; an older one than is there changes nothing."""

    KIND: ClassVar[str] = "copy_security"
    version: int
    users: tuple[User, ...]
    rules: tuple[Rule, ...]
    secrets: tuple[UserSecret, ...] = optional(())
