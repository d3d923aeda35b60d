"""Users and rules: changed in the cluster's first replica group, and waited for in all of them.

Passwords do not leave this process: what is sent is made of them and checks them (``dledger_wire/security/scram.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from typing import TypeVar

from google.protobuf.message import Message

from dledger_client.admin.calls import ClusterCalls, Subject
from dledger_client.admin.security import AccessDecision, AccessRule, Action, ClusterUser, ResourceType, SecurityChange
from dledger_client.cluster.channels import ask_in_turn
from dledger_client.cluster.routes import ReplicaGroup
from dledger_client.runtime.argument_ranges import check_encodable, check_kind, check_text
from dledger_wire._pb import security_pb2
from dledger_wire.errors import AuthenticationFailedError, DledgerError, InvalidArgumentError, OutcomeUnknownError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod
from dledger_wire.security.scram import password_verifier

EVERYBODY = "*"
SPREAD_MS = 2_000  # so long a change may take until every replica group that answers has it
FOLLOWERS_MS = 500  # of a replica that answers and is behind
_LOOK_S = 0.05
_ENDED, _PASSWORD = "ended", "password"  # detail of an error: a connection ended since its user has another password now

Request = TypeVar("Request", bound=Message)


class SecurityAdmin(Subject):
    """Users and what they may do; use ``Admin``."""

    async def create_user(self, name: str, password: str | None = None) -> SecurityChange:
        """Create a user, without rights.

        The password does not leave this process.

        Args:
            name: Letters, digits and ``. _ @ -``, at most 127.
            password: Its password.  Default: none; the user comes in with a certificate of its name.

        Raises:
            InvalidArgumentError: There is such a user already.
            OutcomeUnknownError: An answer was lost, and there is such a user now, perhaps of before; ``update_user`` makes sure.
            PermissionDeniedError: The caller does not administer the cluster.

        Examples:
            >>> await admin.create_user("billing", "correct horse battery staple")
        """
        return await _put_user(self._calls, name, password, create=True)

    async def update_user(self, name: str, password: str | None) -> SecurityChange:
        """Give a user another password.  Users may do this for themselves.

        Args:
            name: The user.
            password: The new password; None: only a certificate of its name counts from now on.

        Raises:
            InvalidArgumentError: There is no such user.
            PermissionDeniedError: The caller is another user, and does not administer the cluster.

        Examples:
            >>> await admin.update_user("billing", "a new one")
        """
        return await _put_user(self._calls, name, password, create=False)

    async def delete_user(self, name: str) -> SecurityChange:
        """Delete a user and the rules that name it.  Its connections end.

        Args:
            name: The user.

        Raises:
            InvalidArgumentError: There is no such user.

        Examples:
            >>> await admin.delete_user("billing")
        """
        return await _change(self._calls, methods.DELETE_USER, security_pb2.DeleteUserRequest(name=name), name, _is_done(name))

    async def set_user_secret(self, name: str, *, revoke: bool = False) -> SecurityChange:
        """Give a user a secret that RocketMQ's clients sign their requests with; its name is their access key.

        The cluster draws the secret and shows it in this answer only.  One that the user had before counts no more.

        Args:
            name: The user.
            revoke: Take its secret away and give it no other one.

        Raises:
            InvalidArgumentError: There is no such user.
            PermissionDeniedError: The caller does not administer the cluster.

        Examples:
            >>> secret = (await admin.set_user_secret("billing")).secret
        """
        check_text(user=name)
        request = security_pb2.SetUserSecretRequest(name=name, revoke=revoke)
        return await _change(self._calls, methods.SET_USER_SECRET, request, name)

    async def list_users(self, user: str = "") -> list[ClusterUser]:
        """Users by name, with the administrators that the cluster file names.

        Args:
            user: Only this one.  Default: all.

        Examples:
            >>> print([user.name for user in await admin.list_users()])
        """
        request = security_pb2.SecurityListRequest(user=user)
        answer = max((await self._calls.ask_leaders(methods.LIST_USERS, request)).some().values(), key=lambda each: each.version)
        found = [ClusterUser(each.name, each.has_password, has_secret=each.has_secret) for each in answer.users]
        return sorted([*found, *(ClusterUser(name, True, True) for name in answer.administrators)], key=lambda each: each.name)

    async def change_rules(self, added: Sequence[AccessRule] = (), removed: Sequence[AccessRule] = ()) -> SecurityChange:
        """Take rules away and add others, at once.  Rules that are there already, or are not there, change nothing.

        Args:
            added: At most 1000 together with ``removed``.
            removed: Exactly as they were added.

        Raises:
            InvalidArgumentError: A rule that means nothing, or for a user that does not exist.

        Examples:
            >>> await admin.change_rules([AccessRule("billing", "allow", "topic", "orders*", "read")])
        """
        for name, rules in (("added", added), ("removed", removed)):
            check_kind(Sequence, name, rules)
            check_kind(AccessRule, name, *rules)
            for rule in rules:
                check_encodable(**asdict(rule))
        request = security_pb2.ChangeRulesRequest(added=map(_message, added), removed=map(_message, removed))
        return await _change(self._calls, methods.CHANGE_RULES, request, EVERYBODY)

    async def list_rules(self, user: str = "") -> list[AccessRule]:
        """All rules, in order.

        Args:
            user: Only those that decide on what this user may do, rules for all users included.  Default: all.

        Examples:
            >>> for rule in await admin.list_rules("billing"):
            ...     print(rule)
        """
        request = security_pb2.SecurityListRequest(user=user)
        answer = max((await self._calls.ask_leaders(methods.LIST_RULES, request)).some().values(), key=lambda each: each.version)
        return [_rule(each) for each in answer.rules]

    async def check_access(self, user: str, action: Action, resource: ResourceType, name: str) -> AccessDecision:
        """Whether a user may do something, and which rules decide it.

        Args:
            user: The user.
            action: ``read``, ``write``, ``create``, ``describe`` or ``administer``.
            resource: ``topic``, ``group``, ``producer`` or ``cluster``.
            name: Name of the resource; ``*`` for the cluster.

        Examples:
            >>> print((await admin.check_access("billing", "read", "topic", "orders")).allowed)
        """
        request = security_pb2.CheckAccessRequest(user=user, action=action, resource=resource, name=name)
        answer = max((await self._calls.ask_leaders(methods.CHECK_ACCESS, request)).some().values(), key=lambda each: each.version)
        return AccessDecision(answer.allowed, tuple(_rule(each) for each in answer.rules))


async def _put_user(calls: ClusterCalls, name: str, password: str | None, *, create: bool) -> SecurityChange:
    """Create a user, or give it another password; None: it has none."""
    check_text(user=name)
    user = security_pb2.SecurityUser(name=name)
    if password is not None:
        if not isinstance(password, str):
            raise InvalidArgumentError(f"user {name!r}: expected a password that is text")
        if not password:
            raise InvalidArgumentError(f"user {name!r}: expected a password that is not empty, or none")
        try:
            password.encode()
        except UnicodeEncodeError:  # errors in other texts quote the text
            raise InvalidArgumentError(f"user {name!r}: expected a password that is encodable as UTF-8") from None
        found = await asyncio.to_thread(password_verifier, name, password)
        user.verifier.salt, user.verifier.stored_key, user.verifier.server_key = found.salt, found.stored_key, found.server_key
        user.verifier.iterations = found.iterations
    try:
        request = security_pb2.PutUserRequest(user=user, create=create)
        return await _change(calls, methods.PUT_USER, request, name, _is_done(name) if create else None)
    except AuthenticationFailedError as error:
        if create or error.details.get(_ENDED) != _PASSWORD:
            raise
        return SecurityChange(0)  # its own password: the change has ended the connection that asked for it


async def _change(
    calls: ClusterCalls,
    method: UnaryMethod[Request, security_pb2.SecurityChanged],
    request: Request,
    user: str,
    done: Callable[[DledgerError], security_pb2.SecurityChanged | None] | None = None,
) -> SecurityChange:
    """Make a change; ``user``: its subject, since every user may ask about itself."""
    found = await calls.replica_groups()
    groups = sorted(found)
    asked = home = await _answering(calls, groups, user)
    try:
        changed = await calls.ask_leader(home, method, request, done=done)
    except InvalidArgumentError as error:
        home = error.details.get("group", "")
        if home not in groups or home == asked:
            raise
        changed = await calls.ask_leader(home, method, request, done=done)
    version = changed.version or await _version_found(calls, home, request, user)
    waiting, _ = await asyncio.gather(_spread(calls, version, groups, user), _known_at_nodes(calls, version, found.values(), user))
    return SecurityChange(version, waiting, changed.secret)


async def _answering(calls: ClusterCalls, groups: Sequence[str], user: str) -> str:
    """A replica group that answers now, and so names the one that makes changes: one that is down must not block them."""
    if len(groups) == 1:
        return groups[0]
    request, left = security_pb2.SecurityListRequest(user=user), iter(groups)

    async def ask(name: str) -> object:
        return await calls.router.call_leader(name, methods.LIST_USERS, request, deadline_ms=calls.group_deadline_ms(name))

    found = await ask_in_turn(lambda: next(left, None), ask, [])
    return found[0] if found is not None else groups[0]


def _is_done(user: str) -> Callable[[DledgerError], security_pb2.SecurityChanged | None]:
    """For a call whose outcome was unknown: that the user exists already, or no more, is what it was for.  The version is not known."""

    def done(error: DledgerError) -> security_pb2.SecurityChanged | None:
        is_about_it = isinstance(error, InvalidArgumentError) and error.details.get("user") == user
        return security_pb2.SecurityChanged() if is_about_it else None

    return done


async def _version_found(calls: ClusterCalls, home: str, request: Message, user: str) -> int:
    """The version that has a change of which the answer was lost.

    A user that exists with a password may have been there before, with another one, which is unknown: OutcomeUnknownError.
    """
    listed = await calls.ask_leader(home, methods.LIST_USERS, security_pb2.SecurityListRequest(user=user))
    if isinstance(request, security_pb2.PutUserRequest):
        is_same = not request.user.HasField("verifier") and any(each.name == user and not each.has_password for each in listed.users)
        if not is_same:
            text = f"user {user!r} exists: created by an attempt whose answer was lost, or by another caller before, with another password"
            raise OutcomeUnknownError(f"{text}; update it with its password to be sure", user=user)
    return int(listed.version)


async def _spread(calls: ClusterCalls, version: int, groups: Collection[str], user: str) -> tuple[str, ...]:
    """The replica groups without this version after two seconds."""
    deadline_ms = calls.router.clock.monotonic_ms() + SPREAD_MS
    waiting = set(groups)
    request = security_pb2.SecurityListRequest(user=user)

    async def version_of(group: str) -> int:
        try:
            return int((await calls.ask_leader(group, methods.LIST_USERS, request)).version)
        except AuthenticationFailedError:
            return version  # it knows the user's new password already

    while True:
        answers = await calls.of_all(version_of, waiting)
        waiting -= {group for group, found in answers.of_group.items() if found >= version}
        if not waiting or calls.router.clock.monotonic_ms() >= deadline_ms:
            return tuple(sorted(waiting))
        await asyncio.sleep(_LOOK_S)


async def _known_at_nodes(calls: ClusterCalls, version: int, groups: Iterable[ReplicaGroup], user: str) -> None:
    """Wait until the nodes that answer have this version, for a moment: a new user must be known wherever it connects next."""
    deadline_ms = calls.router.clock.monotonic_ms() + FOLLOWERS_MS
    request = security_pb2.SecurityListRequest(user=user)

    async def ask(address: str) -> None:
        while calls.router.clock.monotonic_ms() < deadline_ms:
            try:
                listed = await methods.LIST_USERS.call(calls.router.channel(address), request, timeout_s=FOLLOWERS_MS / 1000)
            except DledgerError:
                return
            if listed.version >= version:
                return
            await asyncio.sleep(_LOOK_S)

    await asyncio.gather(*(ask(node.address) for group in groups for node in group.nodes))


def _message(rule: AccessRule) -> security_pb2.SecurityRule:
    return security_pb2.SecurityRule(user=rule.user, effect=rule.effect, resource=rule.resource, pattern=rule.pattern, action=rule.action)


def _rule(message: security_pb2.SecurityRule) -> AccessRule:
    # The words are those of the server: one of a newer version is shown as it is.
    return AccessRule(message.user, message.effect, message.resource, message.pattern, message.action)  # type: ignore[arg-type]
