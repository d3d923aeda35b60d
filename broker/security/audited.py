"""Which calls are administrative actions, and what they change: one row a method.

Owns the gate that writes a record of each of them, with what was there before and after.  An answer that only sends a client to another
node leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from broker.security.audit import Audit
from dledger_wire.errors import DledgerError, NotLeaderError, NotReadyError, OutcomeUnknownError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod
from dledger_wire.rpc.transport import CallContext, Server, UnaryHandler, WrappedServer
from dledger_wire.security.principal import Kind
from store.commands.security import Rule
from store.state.security import SecurityState
from store.store import MessageStore

Shown: TypeAlias = Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Inside:
    """What a row may look at: ``members`` gives voters, learners and the leader."""

    store: MessageStore
    users: Callable[[], SecurityState]
    members: Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Audited:
    """``applies``: whether this request is one; ``state``: what of the node it may change."""

    action: str
    resource: str
    name: Callable[[Any], str]
    state: Callable[[Inside, Any], Shown] = lambda _inside, _request: None
    applies: Callable[[Any], bool] = lambda _request: True
    only_changes: bool = False  # clients repeat it
    request_fields: Callable[[Any], Shown] = lambda _request: None  # what was asked for, where no state shows it


def _topic(inside: Inside, request: Any) -> Shown:
    found = inside.store.topics.get(request.name)
    return None if found is None else {"read_queues": found.read_queues, "write_queues": found.write_queues, "perm": found.perm}


def _group(inside: Inside, request: Any) -> Shown:
    return asdict(inside.store.subscription_groups.of(request.name))


def _replica_group(inside: Inside, _request: Any) -> Shown:
    now = inside.store.replica_group.settings
    return {"state": now.state, "voters": now.voters, "learners": now.learners, "replace_after_ms": now.replace_after_ms, **now.limits}


def _quota(inside: Inside, request: Any) -> Shown:
    found = inside.store.quotas.rule(request.kind, request.name)
    return None if found is None else {limit.value: value for limit, value in found.limits.items()}


def _members(inside: Inside, _request: Any) -> Shown:
    return inside.members()


def _user(name: Callable[[Any], str]) -> Callable[[Inside, Any], Shown]:
    def state(inside: Inside, request: Any) -> Shown:
        users = inside.users()
        found = users.user(name(request))
        if found is None:
            return None
        rules = [rule for rule in users.rules_of(found.name) if rule.user == found.name]
        has = {"has_password": found.verifier is not None, "has_secret": bool(users.secret(found.name))}
        return {**has, "rules": _texts(rules), "version": users.version}

    return state


def _rules(inside: Inside, request: Any) -> Shown:
    users = inside.users()
    named = sorted({rule.user for rule in (*request.added, *request.removed)})
    return {"rules": _texts([rule for rule in users.rules() if rule.user in named]), "version": users.version}


def _texts(rules: list[Rule]) -> list[str]:
    return [str(rule) for rule in sorted(rules)]


def _positions(inside: Inside, request: Any) -> Shown:
    offsets = inside.store.consumer_offsets
    keys = [(each.topic, each.queue_id) for each in request.offsets[:50]]
    return {f"{topic}/{queue}": offsets.known_position(request.group, topic, queue) for topic, queue in keys}


def _named(request: Any) -> str:
    return str(request.name)


def _own_group(_request: Any) -> str:
    return ""


def _fields(*names: str) -> Callable[[Any], Shown]:
    return lambda request: {name: shown for name in names if (shown := getattr(request, name))}


ROWS: Mapping[UnaryMethod[Any, Any], Audited] = {
    methods.CREATE_TOPIC: Audited("create topic", "topic", _named, _topic),
    methods.AUTO_CREATE_TOPIC: Audited("create topic", "topic", _named, _topic, only_changes=True),
    methods.UPDATE_TOPIC: Audited("update topic", "topic", _named, _topic),
    methods.DELETE_TOPIC: Audited("delete topic", "topic", _named, _topic),
    methods.PUT_GROUP: Audited("update group", "group", _named, _group),
    methods.DELETE_GROUP: Audited("delete group", "group", _named, _group),
    methods.COMMIT_OFFSETS: Audited(
        "reset offsets", "group", lambda request: str(request.group), _positions, applies=lambda request: bool(request.reset)
    ),
    methods.REDRIVE: Audited("redrive", "group", lambda request: str(request.group), request_fields=_fields("upto_offset", "max_messages")),
    methods.TRANSFER_LEADER: Audited("transfer leader", "cluster", lambda request: str(request.target), _members),
    methods.CHANGE_MEMBER: Audited(
        "change member", "cluster", lambda request: str(request.id), _members, request_fields=_fields("action", "address", "replaces")
    ),
    methods.SET_REPLICA_GROUP: Audited("set replica group", "cluster", _own_group, _replica_group, request_fields=_fields("discard")),
    methods.RAISE_FEATURE_LEVEL: Audited("raise feature level", "cluster", _own_group, request_fields=_fields("level")),
    methods.TAKE_SPARE: Audited("take spare", "cluster", lambda request: str(request.node_id), request_fields=_fields("group")),
    methods.SET_QUOTA: Audited("set quota", "cluster", _named, _quota, request_fields=_fields("kind")),
    methods.DELETE_QUOTA: Audited("delete quota", "cluster", _named, _quota, request_fields=_fields("kind")),
    methods.EXPIRE: Audited("expire", "cluster", _own_group, request_fields=_fields("has_reserved", "reserved_ms")),
    methods.BACKUP_PLAN: Audited("back up", "cluster", _own_group, request_fields=_fields("node_id")),
    methods.INIT_PRODUCER: Audited(
        "fence producer", "producer", lambda request: str(request.stable_id), applies=lambda request: bool(request.stable_id)
    ),
    methods.PUT_USER: Audited(
        "put user",
        "cluster",
        lambda request: str(request.user.name),
        _user(lambda request: str(request.user.name)),
        request_fields=_fields("create"),
    ),
    methods.DELETE_USER: Audited("delete user", "cluster", _named, _user(_named)),
    methods.SET_USER_SECRET: Audited("set secret", "cluster", _named, _user(_named), request_fields=_fields("revoke")),
    methods.CHANGE_RULES: Audited("change rules", "cluster", _own_group, _rules),
}
BY_PATH: Mapping[str, tuple[UnaryMethod[Any, Any], Audited]] = {method.path: (method, row) for method, row in ROWS.items()}


class AuditGate(WrappedServer):
    """A server whose administrative handlers leave records."""

    def __init__(self, server: Server, audit: Audit, inside: Inside) -> None:
        super().__init__(server)
        self._audit, self._inside = audit, inside

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        found = BY_PATH.get(method)
        if found is None:
            self._server.add_unary(method, handler)
            return
        kind, row = found

        async def audited(data: bytes, caller: CallContext) -> bytes:
            request = methods.decode(kind.request, data)
            if not row.applies(request):
                return await handler(data, caller)
            before = row.state(self._inside, request)
            try:
                answer = await handler(data, caller)
            except (NotLeaderError, NotReadyError):
                raise
            except DledgerError as error:
                self._record(row, request, caller, error.code, before)
                raise
            except BaseException:  # the caller went away: what it asked for may be done all the same
                self._record(row, request, caller, OutcomeUnknownError.code, before)
                raise
            self._record(row, request, caller, "OK", before, changed=True)
            return answer

        self._server.add_unary(method, audited)

    def _record(self, row: Audited, request: Any, caller: CallContext, outcome: str, before: Shown, *, changed: bool = False) -> None:
        request_fields = row.request_fields(request) or {}
        now = row.state(self._inside, request) if changed else None
        if now is not None and now == before and (row.only_changes or caller.principal.kind is not Kind.USER):
            return
        after = {**request_fields, **now} if now is not None else request_fields or None
        what = (row.action, row.resource, row.name(request))
        self._audit.change(caller.principal, caller.peer, what, outcome, before=before, after=after)
