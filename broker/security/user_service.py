"""The service Security: users and rules are changed at the master of the first replica group, and every caller may ask what it is allowed.

Owns the answers; their callers' rights stand in ``permissions.py``.  Changes reach the other replica groups by ``watching.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from broker.context import ServiceContext
from broker.security.user_messages import copy_of, rule_of, shown_rule, shown_user, user_of
from dledger_wire._pb import security_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.event_loop import loop_s
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security.attempts import MAX_COUNTED, Attempts, TooManyAttemptsError
from store.commands.command import Command
from store.commands.security import Action, ChangeRules, DeleteUser, PutUser, Resource, Rule, SetUserSecret

COMMAND_TIMEOUT_S = 5.0
PASSWORDS_OF_USER = 5  # changes of a user's own password within a minute: each is replicated and audited
SECRET_BYTES = 32
MAX_WAIT_MS = 1_000  # a replica that was cut off must not keep a watcher waiting for what it will not hear of


class SecurityService:
    """Of one node.  ``home`` names the replica group where changes are made; ``newest_version`` is the newest one that this node knows."""

    def __init__(
        self, context: ServiceContext, administrators: frozenset[str], home: Callable[[], str], newest_version: Callable[[], int]
    ) -> None:
        self._context = context
        self._administrators = administrators
        self._home, self._newest_version = home, newest_version
        self._state = context.store.security
        self._own_passwords = Attempts(loop_s, of_source=MAX_COUNTED, of_user=PASSWORDS_OF_USER, what="changes of the password")
        self._changed = asyncio.Event()
        self._state.on_change(self._wake)

    def register(self, server: Server) -> None:
        methods.PUT_USER.serve(server, self.put_user)
        methods.DELETE_USER.serve(server, self.delete_user)
        methods.SET_USER_SECRET.serve(server, self.set_secret)
        methods.LIST_USERS.serve(server, self.list_users)
        methods.CHANGE_RULES.serve(server, self.change_rules)
        methods.LIST_RULES.serve(server, self.list_rules)
        methods.CHECK_ACCESS.serve(server, self.check_access)
        methods.WATCH_SECURITY.serve(server, self.watch)

    # Changes

    async def put_user(self, request: security_pb2.PutUserRequest, caller: CallContext) -> security_pb2.SecurityChanged:
        if request.user.name == caller.principal.name:
            self._count_own_password(caller.principal.name)
        if request.user.name in self._administrators:
            raise InvalidArgumentError(f"user {request.user.name} is an administrator of the cluster file; it is changed there")
        return await self._change(PutUser(user=user_of(request.user), create=request.create))

    def _count_own_password(self, name: str) -> None:
        try:
            self._own_passwords.reserve("", name)
        except TooManyAttemptsError as error:
            raise InvalidArgumentError(error.message) from None

    async def delete_user(self, request: security_pb2.DeleteUserRequest, _caller: CallContext) -> security_pb2.SecurityChanged:
        return await self._change(DeleteUser(name=request.name))

    async def set_secret(self, request: security_pb2.SetUserSecretRequest, _caller: CallContext) -> security_pb2.SecurityChanged:
        """Drawn here, so that none can be guessed."""
        secret = "" if request.revoke else secrets.token_urlsafe(SECRET_BYTES)
        changed = await self._change(SetUserSecret(name=request.name, secret=secret))
        return security_pb2.SecurityChanged(version=changed.version, secret=secret)

    async def change_rules(self, request: security_pb2.ChangeRulesRequest, _caller: CallContext) -> security_pb2.SecurityChanged:
        added, removed = (tuple(map(rule_of, rules)) for rules in (request.added, request.removed))
        return await self._change(ChangeRules(added=added, removed=removed))

    async def _change(self, command: Command[int]) -> security_pb2.SecurityChanged:
        own, home = self._context.settings.group.name, self._home()
        if home != own:
            raise InvalidArgumentError(f"users and rules are changed in replica group {home}", group=home)
        if self._state.version < self._newest_version():
            raise NotReadyError(f"replica group {own} does not have the users and rules of the group before it yet")
        return security_pb2.SecurityChanged(version=await self._context.command(command, COMMAND_TIMEOUT_S))

    # Questions

    async def list_users(self, request: security_pb2.SecurityListRequest, _caller: CallContext) -> security_pb2.SecurityUsers:
        listed = [user for user in self._state.users() if request.user in ("", user.name)]
        found = [shown_user(user, has_secret=bool(self._state.secret(user.name))) for user in listed]
        administrators = sorted(name for name in self._administrators if request.user in ("", name))
        return security_pb2.SecurityUsers(version=self._state.version, users=found, administrators=administrators)

    async def list_rules(self, request: security_pb2.SecurityListRequest, _caller: CallContext) -> security_pb2.SecurityRules:
        found = self._state.rules() if not request.user else sorted(self._state.rules_of(request.user))
        return security_pb2.SecurityRules(version=self._state.version, rules=map(shown_rule, found))

    async def check_access(self, request: security_pb2.CheckAccessRequest, _caller: CallContext) -> security_pb2.CheckAccessReply:
        try:
            action, resource = Action(request.action), Resource(request.resource)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None
        known = self._state.user(request.user) is not None
        allowed = request.user in self._administrators or (known and self._state.allowed(request.user, action, resource, request.name))
        return security_pb2.CheckAccessReply(
            allowed=allowed, version=self._state.version, rules=map(shown_rule, self._deciding(request.user, resource, request.name))
        )

    def _deciding(self, user: str, resource: Resource, name: str) -> list[Rule]:
        return sorted(rule for rule in self._state.rules_of(user) if rule.resource is resource and rule.fits(name))

    # Members of the cluster

    async def watch(self, request: security_pb2.WatchSecurityRequest, _caller: CallContext) -> security_pb2.SecurityCopy:
        """Everything, as soon as it is newer than what the caller knows; NotReadyError where nothing new would arrive."""
        if self._context.raft.leader is None:
            raise NotReadyError(f"{self._context.settings.node.id} knows no leader")
        if self._state.version <= request.known_version:
            changed = self._changed
            try:
                async with asyncio.timeout(min(request.wait_ms, MAX_WAIT_MS) / 1000):
                    await changed.wait()
            except TimeoutError:
                pass
        if self._state.version <= request.known_version:
            return security_pb2.SecurityCopy(version=self._state.version, unchanged=True)
        return copy_of(self._state)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
