"""Which calls leave a record: each method either has a row or is known to change nothing that is administered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.security.audit import Audit, NoSink, Place, Record
from broker.security.audited import BY_PATH, AuditGate, Inside
from dledger_wire._pb import admin_pb2
from dledger_wire.clock import SystemClock
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, OutcomeUnknownError
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import METHODS, UnaryMethod
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security import principal
from store.state.security import SecurityState
from store.store import MessageStore

READING: set[UnaryMethod[Any, Any]] = {
    methods.METADATA,
    methods.QUEUE_OFFSETS,
    methods.GROUP_OFFSETS,
    methods.LIST_TOPICS,
    methods.LIST_QUOTAS,
    methods.NODE_STATUS,
    methods.SEGMENT_CHECKSUMS,
    methods.DESCRIBE_REPLICA_GROUP,
    methods.DESCRIBE_MEMBERS,
    methods.DEAD_LETTERS,
    methods.LIST_GROUPS,
    methods.DESCRIBE_TRANSACTIONS,
    methods.QUERY_MESSAGES,
    methods.CONSUMED,
    methods.ROUTES,
    methods.DIRECTORY,
    methods.LIST_USERS,
    methods.LIST_RULES,
    methods.CHECK_ACCESS,
    methods.AUDIT_TAIL,
    methods.TOPIC_TRAFFIC,
    methods.LEADER_HISTORY,
    methods.NODE_DETAILS,
    methods.LOG_TAIL,
    methods.CONNECTIONS,
    methods.WAITING_DELAYS,
    methods.BACKUP_STATE,
    methods.BACKUP_END,
}
OF_MESSAGES: set[UnaryMethod[Any, Any]] = {
    methods.SEND_BACK,
    methods.END_TRANSACTIONS,
    methods.RECALL_MESSAGE,
    methods.RECEIVE,
    methods.ACKNOWLEDGE,
    methods.CHANGE_INVISIBLE,
    methods.MOVE_TO_DEAD_LETTERS,
}  # what consumers and producers do all the time
OF_THE_CLUSTER: set[UnaryMethod[Any, Any]] = {
    methods.REGISTER,
    methods.WATCH_SECURITY,
    methods.FETCH_ENTRY,
    methods.COPY_PLAN,
    methods.COPY_STATE,
}


def test_no_method_is_forgotten() -> None:
    unary = {path for path, method in METHODS.items() if isinstance(method, UnaryMethod)}
    assert unary == set(BY_PATH) | {method.path for method in READING | OF_MESSAGES | OF_THE_CLUSTER}


class Rig:
    """A gate before one handler, and a topic that it changes."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[bytes, CallContext], Any]] = {}
        self.records: list[Record] = []
        self.topics: dict[str, Any] = {}
        sink = NoSink()
        setattr(sink, "write", lambda record, **_: self.records.append(record))  # noqa: B010 - a method is put in its place
        store = cast(MessageStore, SimpleNamespace(topics=self.topics))
        self.gate = AuditGate(
            cast(Server, SimpleNamespace(add_unary=self.handlers.__setitem__)),
            Audit(sink, SystemClock(), Place("shop", "g0", "n0")),
            Inside(store, SecurityState, dict),
        )

    def call(self, method: UnaryMethod[Any, Any], request: Any, done: Callable[[], None], who: str = "alice") -> None:
        async def handler(_request: Any, _caller: CallContext) -> Any:
            done()
            return method.response()

        method.serve(cast(Server, self.gate), handler)
        caller = cast(CallContext, SimpleNamespace(peer="10.0.0.1:7", principal=principal.user(who), metadata={}))
        asyncio.run(self.handlers[method.path](methods.encode(request), caller))

    def put(self, queues: int) -> Callable[[], None]:
        topic = SimpleNamespace(read_queues=queues, write_queues=queues, perm=6)
        return lambda: self.topics.__setitem__("t", topic)


def test_a_change_is_recorded_with_what_was_there_before_and_after() -> None:
    rig = Rig()
    rig.call(methods.CREATE_TOPIC, admin_pb2.TopicSpec(name="t"), rig.put(2))
    rig.call(methods.UPDATE_TOPIC, admin_pb2.TopicSpec(name="t"), rig.put(4))
    rig.call(methods.DELETE_TOPIC, admin_pb2.TopicSpec(name="t"), lambda: rig.topics.pop("t"))
    assert [(each["action"], each.get("before"), each.get("after")) for each in rig.records] == [
        ("create topic", None, {"read_queues": 2, "write_queues": 2, "perm": 6}),
        ("update topic", {"read_queues": 2, "write_queues": 2, "perm": 6}, {"read_queues": 4, "write_queues": 4, "perm": 6}),
        ("delete topic", {"read_queues": 4, "write_queues": 4, "perm": 6}, None),
    ]
    assert {(each["user"], each["address"], each["outcome"], each["allowed"]) for each in rig.records} == {
        ("alice", "10.0.0.1:7", "OK", True)
    }


def test_a_failure_is_recorded_and_the_way_to_the_leader_is_not() -> None:
    rig = Rig()

    def fails(error: Exception) -> Callable[[], None]:
        def raising() -> None:
            raise error

        return raising

    for error in (InvalidArgumentError("too many queues"), NotLeaderError("n1 leads", leader_address="")):
        with pytest.raises(type(error)):
            rig.call(methods.CREATE_TOPIC, admin_pb2.TopicSpec(name="t"), fails(error))
    assert [(each["outcome"], each.get("after")) for each in rig.records] == [(InvalidArgumentError.code, None)]


def test_what_clients_repeat_leaves_one_record() -> None:
    rig = Rig()
    for _ in range(3):
        request = methods.AUTO_CREATE_TOPIC.request(name="t")
        rig.call(methods.AUTO_CREATE_TOPIC, request, rig.put(4) if not rig.topics else lambda: None)
    assert len(rig.records) == 1


def test_a_change_whose_caller_went_away_is_recorded_all_the_same() -> None:
    rig = Rig()

    def gone() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        rig.call(methods.DELETE_TOPIC, admin_pb2.TopicSpec(name="t"), gone)
    assert [(each["action"], each["outcome"]) for each in rig.records] == [("delete topic", OutcomeUnknownError.code)]
