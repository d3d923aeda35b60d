"""What each method of a node needs: one row a method, so that none can be forgotten.

Owns the checks that a request alone decides.  ``asks_itself``: the service asks ``AccessControl`` for each message of a stream, or leaves
out of its answer what the caller may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias

from broker.security.access import CLUSTER_NAME, AccessControl
from dledger_wire.errors import InvalidArgumentError, PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.grpc_callers import PUBLIC
from dledger_wire.rpc.methods import StreamMethod, UnaryMethod
from dledger_wire.security.principal import SPARE_GROUP, Kind, Principal
from store.commands.security import Action, Resource

Check: TypeAlias = Callable[[AccessControl, Principal, Any], None]
# How many checks one request may ask for.
MAX_CHECKS = 10_000


def nothing(_access: AccessControl, _caller: Principal, _request: Any) -> None:
    """All callers may."""


def asks_itself(_access: AccessControl, _caller: Principal, _request: Any) -> None:
    """The service decides."""


def members_only(access: AccessControl, caller: Principal, _request: Any) -> None:
    """Nodes and name servers of the cluster."""
    if not caller.is_cluster:
        _refuse(access, caller, f"{caller} is no member of the cluster", "join", "")


def _refuse(access: AccessControl, caller: Principal, text: str, action: str, name: str) -> NoReturn:
    """What no rule decides on."""
    access.denied(caller, Action.ADMINISTER, Resource.CLUSTER, name or CLUSTER_NAME)
    raise PermissionDeniedError(text, user=caller.name, action=action, resource="cluster", name=name)


def _cluster(action: Action) -> Check:
    return lambda access, caller, _request: access.require(caller, action, Resource.CLUSTER, CLUSTER_NAME)


def _named(action: Action, resource: Resource, names: Callable[[Any], Iterable[str]]) -> Check:
    def check(access: AccessControl, caller: Principal, request: Any) -> None:
        for name in _few(names(request)):
            access.require(caller, action, resource, name)

    return check


def _group(action: Action) -> Check:
    return _named(action, Resource.GROUP, lambda request: [request.group])


def _all_of(*checks: Check) -> Check:
    def check(access: AccessControl, caller: Principal, request: Any) -> None:
        for each in checks:
            each(access, caller, request)

    return check


def _transactions(action: Action) -> Check:
    return _named(action, Resource.GROUP, lambda request: [request.producer_group])


def _topics(action: Action, names: Callable[[Any], Iterable[str]]) -> Check:
    """Of topics of whatever kind: those of retries and dead letters are their groups'."""

    def check(access: AccessControl, caller: Principal, request: Any) -> None:
        for name in _few(names(request)):
            access.require_topic(caller, action, name)

    return check


def _topic(action: Action) -> Check:
    return _topics(action, lambda request: [request.name])


def _few(names: Iterable[str]) -> dict[str, None]:
    found = dict.fromkeys(names)
    if len(found) > MAX_CHECKS:
        raise InvalidArgumentError(f"{len(found)} names in one request; expected at most {MAX_CHECKS}")
    return found


_READ_TOPIC = _topics(Action.READ, lambda request: [request.topic])
# Groups that are named must be seen; when none is, the service leaves out those that are not.
_SEEN_GROUPS = _named(Action.DESCRIBE, Resource.GROUP, lambda request: request.groups)
_OWN_SETTINGS = _named(Action.ADMINISTER, Resource.GROUP, lambda request: [request.name])
_ADMINISTER = _cluster(Action.ADMINISTER)
_DESCRIBE = _cluster(Action.DESCRIBE)


def _producer(access: AccessControl, caller: Principal, request: Any) -> None:
    """A caller without a right to write needs no producer id: many of them would push out what is remembered of others."""
    if request.stable_id:
        access.require(caller, Action.WRITE, Resource.PRODUCER, request.stable_id)
    else:
        access.require_somewhere(caller, Action.WRITE, Resource.TOPIC)


def _own_registration(access: AccessControl, caller: Principal, request: Any) -> None:
    """A node reports only itself; a spare node that was taken in has a certificate without a group."""
    if caller.kind is not Kind.NODE or caller.name != request.node_id or caller.group not in (request.group, SPARE_GROUP):
        text = f"{caller} may not register node {request.node_id} of replica group {request.group}"
        _refuse(access, caller, text, "register", request.node_id)


def _for_its_group(access: AccessControl, caller: Principal, request: Any) -> None:
    """A node takes a spare node into its own replica group."""
    if caller.kind is not Kind.NODE or caller.group not in (request.group, SPARE_GROUP):
        text = f"{caller} may not take a spare node into replica group {request.group}"
        _refuse(access, caller, text, "take", request.group)


def _users_only(access: AccessControl, caller: Principal, request: Any) -> None:
    """Nodes may not change users and rules: a thief of a node's certificate cannot become an administrator."""
    if caller.kind is not Kind.USER:
        _refuse(access, caller, f"{caller} may not administer users", "administer", "")
    _ADMINISTER(access, caller, request)


def _own_password(access: AccessControl, caller: Principal, request: Any) -> None:
    """A user may give itself another password; everything else is for administrators."""
    if caller.kind is not Kind.USER or request.create or request.user.name != caller.name:
        _users_only(access, caller, request)


def _directory(access: AccessControl, caller: Principal, request: Any) -> None:
    """Names of replica groups are in every node's answer to Metadata as well."""
    if not request.names_only:
        _DESCRIBE(access, caller, request)


def _own_rights(access: AccessControl, caller: Principal, request: Any) -> None:
    """A user may ask about itself."""
    if caller.kind is not Kind.USER or request.user != caller.name:
        _DESCRIBE(access, caller, request)


_ROWS: Mapping[UnaryMethod[Any, Any] | StreamMethod[Any, Any], Check] = {
    methods.PRODUCE: asks_itself,
    methods.FETCH: asks_itself,
    methods.METADATA: asks_itself,
    methods.QUEUE_OFFSETS: _topics(Action.DESCRIBE, lambda request: [*request.topics, *(queue.topic for queue in request.queues)]),
    methods.COMMIT_OFFSETS: _all_of(_group(Action.READ), _topics(Action.READ, lambda request: [each.topic for each in request.offsets])),
    methods.GROUP_OFFSETS: _SEEN_GROUPS,
    methods.INIT_PRODUCER: _producer,
    methods.RECALL_MESSAGE: _topics(Action.WRITE, lambda request: [request.topic]),
    methods.CREATE_TOPIC: _topic(Action.CREATE),
    methods.UPDATE_TOPIC: _topic(Action.ADMINISTER),
    methods.DELETE_TOPIC: _topic(Action.ADMINISTER),
    methods.LIST_TOPICS: asks_itself,
    methods.NODE_STATUS: _DESCRIBE,
    methods.TRANSFER_LEADER: _ADMINISTER,
    methods.CHANGE_MEMBER: _ADMINISTER,
    methods.SEGMENT_CHECKSUMS: _ADMINISTER,
    methods.DESCRIBE_REPLICA_GROUP: _DESCRIBE,
    methods.SET_REPLICA_GROUP: _ADMINISTER,
    methods.TAKE_SPARE: _for_its_group,
    methods.RAISE_FEATURE_LEVEL: _ADMINISTER,
    methods.SET_QUOTA: _ADMINISTER,
    methods.DELETE_QUOTA: _ADMINISTER,
    methods.LIST_QUOTAS: _DESCRIBE,
    methods.EXPIRE: _ADMINISTER,
    methods.TOPIC_TRAFFIC: _DESCRIBE,
    methods.LEADER_HISTORY: _DESCRIBE,
    methods.NODE_DETAILS: _DESCRIBE,
    methods.LOG_TAIL: _ADMINISTER,
    methods.CONNECTIONS: _ADMINISTER,
    methods.WAITING_DELAYS: _DESCRIBE,
    methods.AUTO_CREATE_TOPIC: _topic(Action.CREATE),
    methods.JOIN_GROUP: asks_itself,
    methods.DESCRIBE_MEMBERS: _SEEN_GROUPS,
    methods.SEND_BACK: _all_of(_group(Action.READ), _READ_TOPIC),
    methods.DEAD_LETTERS: _SEEN_GROUPS,
    methods.REDRIVE: _group(Action.ADMINISTER),
    methods.PUT_GROUP: _OWN_SETTINGS,
    methods.DELETE_GROUP: _OWN_SETTINGS,
    methods.LIST_GROUPS: asks_itself,
    methods.RECEIVE: _all_of(_group(Action.READ), _READ_TOPIC),
    methods.ACKNOWLEDGE: _all_of(_group(Action.READ), _READ_TOPIC),
    methods.CHANGE_INVISIBLE: _all_of(_group(Action.READ), _READ_TOPIC),
    methods.MOVE_TO_DEAD_LETTERS: _all_of(_group(Action.READ), _READ_TOPIC),
    methods.JOIN_PRODUCER_GROUP: asks_itself,
    methods.END_TRANSACTIONS: _transactions(Action.WRITE),
    methods.DESCRIBE_TRANSACTIONS: _named(
        Action.DESCRIBE, Resource.GROUP, lambda request: [request.producer_group] if request.producer_group else []
    ),
    methods.QUERY_MESSAGES: asks_itself,
    methods.CONSUMED: _READ_TOPIC,
    methods.REGISTER: _own_registration,
    methods.ROUTES: asks_itself,
    methods.DIRECTORY: _directory,
    methods.PUT_USER: _own_password,
    methods.DELETE_USER: _users_only,
    methods.SET_USER_SECRET: _users_only,
    methods.LIST_USERS: _own_rights,
    methods.CHANGE_RULES: _users_only,
    methods.LIST_RULES: _own_rights,
    methods.CHECK_ACCESS: _own_rights,
    methods.WATCH_SECURITY: members_only,
    methods.AUDIT_TAIL: _ADMINISTER,
    methods.RAFT_LINK: members_only,
    methods.FETCH_ENTRY: members_only,
    methods.COPY_PLAN: members_only,
    methods.COPY_LOG: members_only,
    methods.COPY_STATE: members_only,
    # A backup reads everything, also the users and what their passwords are checked by.
    methods.BACKUP_PLAN: _ADMINISTER,
    methods.BACKUP_LOG: _ADMINISTER,
    methods.BACKUP_STATE: _ADMINISTER,
    methods.BACKUP_END: _ADMINISTER,
}

CHECKS: Mapping[str, Check] = {method.path: check for method, check in _ROWS.items()}


def check_of(path: str) -> Check:
    """What ``path`` needs; only members of the cluster may call a method without a row."""
    return nothing if path.startswith(PUBLIC) else CHECKS.get(path, members_only)
