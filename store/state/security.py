"""Users and rules as replicated state: who exists, and who may do what.

Owns the decision on one action (``SecurityState.allowed``).  Deny wins over allow, what no rule allows is denied, and what a user may do
follows from rules for its name and for all users.  ``administer`` on the cluster allows everything; any right on a resource shows that it
is there (``describe``).

Every replica group has the same users and rules: changes are made in the first one, whose ``version`` counts them, and copied to the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.formats import SECTION
from store.commands.command import JsonObject
from store.commands.security import (
    EVERYBODY,
    MAX_RULES,
    MAX_USERS,
    Action,
    ChangeRules,
    CopySecurity,
    DeleteUser,
    Effect,
    PutUser,
    Resource,
    Rule,
    SetUserSecret,
    User,
    UserSecret,
)
from store.state.state_machine import CommandContext, CommandHandlers

FORMAT = SECTION.current


class SecurityState:
    """Implements ``StateMachineSection``."""

    file_name = "security.json"

    def __init__(self) -> None:
        self.version = 0
        self._listeners: list[Callable[[], object]] = []
        self._users: dict[str, User] = {}
        self._rules: dict[str, dict[Rule, None]] = {}  # by user
        self._secrets: dict[str, str] = {}  # by user

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` after every change, and when a snapshot was loaded."""
        self._listeners.append(listener)

    # What there is

    def user(self, name: str) -> User | None:
        """The user of that name."""
        return self._users.get(name)

    def secret(self, user: str) -> str:
        """What a user signs with towards RocketMQ's port; empty when it has no secret."""
        return self._secrets.get(user, "")

    def users(self) -> list[User]:
        """All users by name."""
        return [self._users[name] for name in sorted(self._users)]

    def rules(self) -> list[Rule]:
        """All rules in order."""
        return sorted(rule for rules in self._rules.values() for rule in rules)

    def rules_of(self, user: str) -> list[Rule]:
        """The rules that decide on what ``user`` may do, those for all users included."""
        return [*self._rules.get(user, ()), *self._rules.get(EVERYBODY, ())]

    def allowed(self, user: str, action: Action, resource: Resource, name: str) -> bool:
        """Whether ``user`` may do ``action`` with the resource of this name."""
        rules = self.rules_of(user)
        fitting = [rule for rule in rules if rule.resource is resource and rule.fits(name)]
        if any(rule.effect is Effect.DENY and _denies(rule.action, action) for rule in fitting):
            return False
        if any(rule.effect is Effect.ALLOW and _allows(rule.action, action) for rule in fitting):
            return True
        return _administers(rules)

    def allowed_somewhere(self, user: str, action: Action, resource: Resource) -> bool:
        """Whether there may be resources of that type with which ``user`` may do ``action``."""
        rules = self.rules_of(user)
        fitting = (rule for rule in rules if rule.resource is resource and rule.effect is Effect.ALLOW)
        return any(_allows(rule.action, action) for rule in fitting) or _administers(rules)

    # Changes

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(PutUser, self._put)
        handlers.on(DeleteUser, self._delete)
        handlers.on(SetUserSecret, self._set_secret)
        handlers.on(ChangeRules, self._change_rules)
        handlers.on(CopySecurity, self._copy)

    def _put(self, command: PutUser, _context: CommandContext) -> int:
        name = command.user.name
        if command.create and name in self._users:
            raise InvalidArgumentError(f"user {name!r} exists already", user=name)
        if not command.create and name not in self._users:
            raise InvalidArgumentError(f"there is no user {name!r}", user=name)
        if len(self._users) >= MAX_USERS and name not in self._users:
            raise InvalidArgumentError(f"{MAX_USERS} users; expected no more")
        self._users[name] = command.user
        return self._touch()

    def _delete(self, command: DeleteUser, _context: CommandContext) -> int:
        if self._users.pop(command.name, None) is None:
            raise InvalidArgumentError(f"there is no user {command.name!r}", user=command.name)
        self._rules.pop(command.name, None)  # one created later under its name begins without rights
        self._secrets.pop(command.name, None)
        return self._touch()

    def _set_secret(self, command: SetUserSecret, _context: CommandContext) -> int:
        if command.name not in self._users:
            raise InvalidArgumentError(f"there is no user {command.name!r}", user=command.name)
        if command.secret:
            self._secrets[command.name] = command.secret
        else:
            self._secrets.pop(command.name, None)
        return self._touch()

    def _change_rules(self, command: ChangeRules, _context: CommandContext) -> int:
        unknown = sorted({rule.user for rule in command.added} - {EVERYBODY} - self._users.keys())
        if unknown:
            raise InvalidArgumentError(f"there is no user {unknown[0]!r}", user=unknown[0])
        if sum(len(rules) for rules in self._rules.values()) + len(command.added) > MAX_RULES:
            raise InvalidArgumentError(f"more than {MAX_RULES} rules")
        for rule in command.removed:
            self._rules.get(rule.user, {}).pop(rule, None)
        self._add(command.added)
        return self._touch()

    def _copy(self, command: CopySecurity, _context: CommandContext) -> int:
        if command.version > self.version:
            self.take(command)
            self._notify()
        return self.version

    def take(self, copy: CopySecurity) -> None:
        """Have what this copy has."""
        self._users = {user.name: user for user in copy.users}
        self._rules = {}
        self._add(copy.rules)
        self._secrets = {each.name: each.secret for each in copy.secrets}
        self.version = copy.version

    def as_copy(self) -> CopySecurity:
        """All of it, for another replica group."""
        return CopySecurity(version=self.version, users=tuple(self.users()), rules=tuple(self.rules()), secrets=tuple(self.secrets()))

    def secrets(self) -> list[UserSecret]:
        """All secrets by user."""
        return [UserSecret(name, self._secrets[name]) for name in sorted(self._secrets)]

    def _add(self, rules: Iterable[Rule]) -> None:
        for rule in rules:
            self._rules.setdefault(rule.user, {})[rule] = None

    def _touch(self) -> int:
        self.version += 1
        self._notify()
        return self.version

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    # Snapshot

    def dump(self) -> JsonObject:
        users, rules = [user.encode() for user in self.users()], [rule.encode() for rule in self.rules()]
        data: JsonObject = {"format": FORMAT, "version": self.version, "users": users, "rules": rules}
        if self._secrets:
            data["secrets"] = [each.encode() for each in self.secrets()]
        return data

    def load(self, data: JsonObject) -> None:
        self.version = int(data["version"])
        self._users = {user.name: user for user in (User.decode(tuple(row)) for row in data["users"])}
        self._rules = {}
        self._add(Rule.decode(tuple(row)) for row in data["rules"])
        self._secrets = {each.name: each.secret for each in (UserSecret.decode(tuple(row)) for row in data.get("secrets", ()))}
        self._notify()


def _allows(given: Action, asked: Action) -> bool:
    return given is asked or given is Action.ADMINISTER or asked is Action.DESCRIBE


def _denies(given: Action, asked: Action) -> bool:
    """A user that may not even know of a resource may do nothing with it."""
    return given is asked or given is Action.DESCRIBE


def _administers(rules: Iterable[Rule]) -> bool:
    found = [rule.effect for rule in rules if rule.resource is Resource.CLUSTER and rule.action is Action.ADMINISTER]
    return Effect.ALLOW in found and Effect.DENY not in found
