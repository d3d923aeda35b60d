"""What requests of RocketMQ's clients need beyond what the services of the cluster check that they are answered by.

Owns one row a code.  ``_by_service``: the handler calls services as the user, and they decide.  A code without a row is for administrators
of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.replies import reply_fields
from broker.security.access import CLUSTER_NAME, AccessControl
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import AUTO_CREATE_TOPIC
from dledger_wire.security.principal import Principal
from store.commands.security import Action, Resource

MAX_NAMES = 10_000

Right: TypeAlias = Callable[[AccessControl, Principal, Command], None]


def check(access: AccessControl, caller: Principal, request: Command) -> None:
    """PermissionDeniedError for a request that its caller may not make."""
    _RIGHTS.get(request.code, _administers)(access, caller, request)


def _by_service(_access: AccessControl, _caller: Principal, _request: Command) -> None:
    """The services decide, or there is nothing to know."""


def _cluster(action: Action) -> Right:
    return lambda access, caller, _request: access.require(caller, action, Resource.CLUSTER, CLUSTER_NAME)


_administers, _describes = _cluster(Action.ADMINISTER), _cluster(Action.DESCRIBE)


def _group(action: Action, field: str = "consumerGroup") -> Right:
    return lambda access, caller, request: access.require(caller, action, Resource.GROUP, request.text(field))


def _topic(action: Action) -> Right:
    def right(access: AccessControl, caller: Principal, request: Command) -> None:
        if request.text("topic") != AUTO_CREATE_TOPIC:
            access.require_topic(caller, action, request.text("topic"))

    return right


def _all_of(*rights: Right) -> Right:
    def right(access: AccessControl, caller: Principal, request: Command) -> None:
        for each in rights:
            each(access, caller, request)

    return right


def _consumes(access: AccessControl, caller: Principal, request: Command) -> None:
    """Of a heartbeat: as a session needs it.  Whoever names a group of producers gets what the group's checks show by its rights only."""
    for group, topic in _names(request):
        if topic:
            access.require_topic(caller, Action.READ, topic)
        else:
            access.require(caller, Action.READ, Resource.GROUP, group)


def _names(request: Command) -> set[tuple[str, str]]:
    """(Group, empty) for each group of consumers, and (empty, topic) for each topic of a subscription."""
    found: set[tuple[str, str]] = set()
    for row in _rows(request.content().get("consumerDataSet")):
        found.add((str(row.get("groupName", "")), ""))
        found |= {("", str(each.get("topic", ""))) for each in _rows(row.get("subscriptionDataSet"))}
    if len(found) > MAX_NAMES:
        raise InvalidArgumentError(f"{len(found)} names in one request; expected at most {MAX_NAMES}")
    return found


def _rows(found: object) -> list[dict[str, object]]:
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _locks(access: AccessControl, caller: Principal, request: Command) -> None:
    access.require(caller, Action.READ, Resource.GROUP, str(request.content().get("consumerGroup", "")))


def _replies(access: AccessControl, caller: Principal, request: Command) -> None:
    """A reply goes to a client and is not stored: its topic stands for all replies of the cluster."""
    access.require_topic(caller, Action.WRITE, reply_fields(request)["topic"])


_READS = _all_of(_group(Action.READ), _topic(Action.READ))
_RIGHTS: Mapping[int, Right] = {
    **dict.fromkeys(
        (
            Request.SEND_MESSAGE,
            Request.SEND_MESSAGE_V2,
            Request.SEND_BATCH_MESSAGE,
            Request.RECALL_MESSAGE,
            Request.QUERY_MESSAGE,
            Request.VIEW_MESSAGE_BY_ID,
            Request.QUERY_CONSUMER_OFFSET,
            Request.UPDATE_AND_CREATE_TOPIC,
            Request.UPDATE_AND_CREATE_TOPIC_LIST,
            Request.DELETE_TOPIC_IN_BROKER,
            Request.GET_ALL_TOPIC_CONFIG,
            Request.SEARCH_OFFSET_BY_TIMESTAMP,
            Request.GET_MAX_OFFSET,
            Request.GET_MIN_OFFSET,
            Request.GET_EARLIEST_MSG_STORETIME,
            Request.UNREGISTER_CLIENT,
            Request.CHECK_CLIENT_CONFIG,
            Request.CONSUMER_SEND_MSG_BACK,
            Request.END_TRANSACTION,
            Request.GET_CONSUMER_LIST_BY_GROUP,
            Request.GET_BROKER_CLUSTER_INFO,
            Request.GET_KV_CONFIG,
            Request.GET_KVLIST_BY_NAMESPACE,
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Request.GET_SUBSCRIPTIONGROUP_CONFIG,
            Request.DELETE_SUBSCRIPTIONGROUP,
            Request.GET_CONSUME_STATS,
        ),
        _by_service,
    ),
    **dict.fromkeys(
        (
            Request.GET_ALL_TOPIC_LIST,
            Request.GET_TOPICS_BY_CLUSTER,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Request.GET_BROKER_RUNTIME_INFO,
            Request.GET_BROKER_CONFIG,
            Request.GET_PRODUCER_CONNECTION_LIST,
            Request.GET_ALL_PRODUCER_INFO,
            Request.VIEW_BROKER_STATS_DATA,
            Request.GET_NAMESRV_CONFIG,
        ),
        _describes,
    ),
    Request.PULL_MESSAGE: _READS,
    Request.LITE_PULL_MESSAGE: _READS,
    Request.UPDATE_CONSUMER_OFFSET: _READS,
    Request.HEART_BEAT: _consumes,
    Request.SEND_REPLY_MESSAGE: _replies,
    Request.SEND_REPLY_MESSAGE_V2: _replies,
    Request.PUSH_REPLY_MESSAGE_TO_CLIENT: _replies,
    Request.LOCK_BATCH_MQ: _locks,
    Request.UNLOCK_BATCH_MQ: _locks,
    Request.GET_ROUTEINFO_BY_TOPIC: _topic(Action.DESCRIBE),
    Request.GET_TOPIC_STATS_INFO: _topic(Action.DESCRIBE),
    Request.QUERY_TOPIC_CONSUME_BY_WHO: _topic(Action.DESCRIBE),
    Request.GET_TOPIC_CONFIG: _topic(Action.DESCRIBE),
    Request.QUERY_CONSUME_QUEUE: _topic(Action.DESCRIBE),
    Request.DELETE_TOPIC_IN_NAMESRV: _topic(Action.ADMINISTER),
    Request.GET_CONSUMER_CONNECTION_LIST: _group(Action.DESCRIBE),
    Request.GET_CONSUMER_RUNNING_INFO: _group(Action.ADMINISTER),
    Request.CONSUME_MESSAGE_DIRECTLY: _group(Action.ADMINISTER),
    Request.INVOKE_BROKER_TO_RESET_OFFSET: _all_of(_group(Action.READ, "group"), _topic(Action.READ)),
}
