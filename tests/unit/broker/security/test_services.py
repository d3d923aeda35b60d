"""Services that decide themselves: what they refuse to a user, and what they leave out of their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.security.permissions import CHECKS, asks_itself
from dledger_client.aio import AccessRule, Admin, Message
from dledger_wire._pb import broker_pb2, query_pb2, retry_pb2, routes_pb2, security_pb2, sessions_pb2, transaction_pb2
from dledger_wire.errors import DledgerError, PermissionDeniedError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.methods import StreamMethod, UnaryMethod
from tests.sim.security import APPLICATION
from tests.unit.client.sim_rig import Rig
from tests.unit.store.store_rig import batch_of

SEEN, HIDDEN, SEEN_GROUP, HIDDEN_GROUP = "seen-topic", "hidden-topic", "seen-group", "hidden-group"
MALLORY = "mallory"
CALL_S = 5.0
# Every service that decides itself has a test below.
TESTED: set[UnaryMethod[Any, Any] | StreamMethod[Any, Any]] = {
    methods.PRODUCE,
    methods.FETCH,
    methods.METADATA,
    methods.LIST_TOPICS,
    methods.JOIN_GROUP,
    methods.LIST_GROUPS,
    methods.JOIN_PRODUCER_GROUP,
    methods.QUERY_MESSAGES,
    methods.ROUTES,
}


def test_every_service_that_decides_itself_is_tested_here() -> None:
    assert {method.path for method in TESTED} == {path for path, check in CHECKS.items() if check is asks_itself}


class Mallory:
    """A user with rights on SEEN and SEEN_GROUP, at the master."""

    def __init__(self, rig: Rig, user: str = MALLORY) -> None:
        cluster = rig.cluster
        network = cluster.net.of(rig.process, cluster.security.of_user(user))
        self._channel = network.connect(cluster.hosts[rig.master].address)

    async def call(self, method: UnaryMethod[Any, Any], request: Any) -> Any:
        return await method.call(self._channel, request, timeout_s=CALL_S)

    async def first(self, method: Any, request: bytes) -> bytes:
        """The first answer on a stream."""
        stream = method.open(self._channel)
        await stream.write(request)
        answer = await stream.read()
        await stream.close()
        assert answer is not None
        return bytes(answer)

    async def close(self) -> None:
        await self._channel.close()


async def create(rig: Rig, admin: Admin, user: str) -> None:
    kept = rig.cluster.security.verifier(user)
    made = security_pb2.SecurityUser(name=user)
    made.verifier.salt, made.verifier.stored_key, made.verifier.server_key = kept.salt, kept.stored_key, kept.server_key
    made.verifier.iterations = kept.iterations
    await admin._calls.ask_leader("g0", methods.PUT_USER, security_pb2.PutUserRequest(user=made, create=True))


async def prepared(rig: Rig) -> None:
    async with rig.admin() as admin:
        for user in (APPLICATION, MALLORY):
            await create(rig, admin, user)
        everything = [AccessRule(APPLICATION, "allow", "cluster", "*", "administer")]
        own = [AccessRule(MALLORY, "allow", kind, name, "administer") for kind, name in (("topic", SEEN), ("group", SEEN_GROUP))]  # type: ignore[arg-type]
        await admin.change_rules(added=[*everything, *own])
        for topic in (SEEN, HIDDEN):
            await admin.create_topic(topic, queues=1)
    async with rig.producer() as producer:
        for topic in (SEEN, HIDDEN):
            await producer.send(Message(topic, b"secret of " + topic.encode(), keys="k"))
    app = Mallory(rig, APPLICATION)
    for group in (SEEN_GROUP, HIDDEN_GROUP):
        await app.call(methods.PUT_GROUP, retry_pb2.GroupSettings(name=group))
        offsets = [broker_pb2.GroupOffset(topic=topic, queue_id=0, offset=1) for topic in (SEEN, HIDDEN)]
        await app.call(methods.COMMIT_OFFSETS, broker_pb2.CommitOffsetsRequest(group=group, offsets=offsets))
    await app.close()


def attacked(scenario: Callable[[Rig, Mallory], Awaitable[None]]) -> None:
    async def run(rig: Rig) -> None:
        await prepared(rig)
        mallory = Mallory(rig)
        try:
            await scenario(rig, mallory)
        finally:
            await mallory.close()

    Rig(secured=True).run(run)


def test_a_batch_is_refused_by_its_topic_and_the_others_of_the_request_are_stored() -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        request = envelope.encode(
            methods.PRODUCE.request(request_id=1), [batch_of(topic, 0, [b"forged"]) for topic in (HIDDEN, SEEN, "%RETRY%hidden-group")]
        )
        answer = broker_pb2.ProduceResponse.FromString(await mallory.first(methods.PRODUCE, request))
        assert [result.error.code for result in answer.results] == ["PERMISSION_DENIED", "", "PERMISSION_DENIED"]
        assert "user mallory may not write topic hidden-topic" in answer.results[0].error.message

    attacked(scenario)


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        (SEEN, "", ""),
        (SEEN, SEEN_GROUP, ""),
        (SEEN, HIDDEN_GROUP, "PERMISSION_DENIED"),
        (HIDDEN, SEEN_GROUP, "PERMISSION_DENIED"),
        (f"%RETRY%{HIDDEN_GROUP}", "", "PERMISSION_DENIED"),
        ("SCHEDULE_TOPIC_XXXX", "", "PERMISSION_DENIED"),
        ("no-topic-at-all", "", "PERMISSION_DENIED"),
    ],
)
def test_a_fetch_needs_its_topic_and_its_group(topic: str, group: str, code: str) -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        request = broker_pb2.FetchRequest(topic=topic, group=group, max_messages=10, max_bytes=1 << 20)
        header, payload = envelope.decode(broker_pb2.FetchResponse, await mallory.first(methods.FETCH, request.SerializeToString()))
        assert header.error.code == code
        assert (b"secret of seen-topic" in bytes(payload)) == (not code)

    attacked(scenario)


def test_lists_leave_out_what_is_not_to_be_seen() -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        answers = [
            await mallory.call(methods.METADATA, broker_pb2.MetadataRequest(all_topics=True)),
            await mallory.call(methods.LIST_TOPICS, methods.LIST_TOPICS.request()),
            await mallory.call(methods.LIST_GROUPS, retry_pb2.GroupSettings()),
            await mallory.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest()),
            await mallory.call(methods.DEAD_LETTERS, retry_pb2.DeadLettersRequest()),
            await mallory.call(methods.DESCRIBE_MEMBERS, sessions_pb2.DescribeMembersRequest()),
            await mallory.call(methods.CONSUMED, query_pb2.ConsumedRequest(topic=SEEN, queue_id=0, offset=0)),
        ]
        shown = "".join(map(str, answers))
        assert SEEN in shown
        assert SEEN_GROUP in shown
        assert "hidden" not in shown

    attacked(scenario)


def test_a_member_is_shown_without_the_topics_that_are_not_to_be_seen() -> None:
    async def scenario(rig: Rig, mallory: Mallory) -> None:
        app = Mallory(rig, APPLICATION)
        join = sessions_pb2.MemberMessage()
        join.join.group, join.join.client_id, join.join.session_id = SEEN_GROUP, "app", "app"
        for topic in (SEEN, HIDDEN):
            join.join.subscriptions.add(topic=topic)
            join.join.queues.add(topic=topic)
        stream = methods.JOIN_GROUP.open(app._channel)
        await stream.write(join.SerializeToString())
        await stream.read()
        request = sessions_pb2.DescribeMembersRequest(groups=[SEEN_GROUP])
        [whole] = (await app.call(methods.DESCRIBE_MEMBERS, request)).groups[0].members
        [part] = (await mallory.call(methods.DESCRIBE_MEMBERS, request)).groups[0].members
        assert [[each.topic for each in found.subscriptions] for found in (whole, part)] == [[SEEN, HIDDEN], [SEEN]]
        assert [[each.topic for each in found.queues] for found in (whole, part)] == [[SEEN, HIDDEN], [SEEN]]
        await stream.close()
        await app.close()

    attacked(scenario)


def test_a_topic_that_is_not_to_be_seen_is_answered_for_as_one_that_there_is_not() -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        for topic in (HIDDEN, "no-topic-at-all"):
            told = await mallory.call(methods.METADATA, broker_pb2.MetadataRequest(topics=[topic]))
            assert [(each.name, each.found, each.incarnation, each.read_queues) for each in told.topics] == [(topic, False, "", 0)]
            routes = await mallory.call(methods.ROUTES, routes_pb2.RoutesRequest(topics=[routes_pb2.KnownRoute(name=topic)]))
            assert not any(each.found or each.queues for each in routes.topics)

    attacked(scenario)


def test_the_directory_gives_everybody_the_names_of_replica_groups_and_no_more() -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        with pytest.raises(PermissionDeniedError, match="may not describe the cluster"):
            await mallory.call(methods.DIRECTORY, routes_pb2.DirectoryRequest())
        told = await mallory.call(methods.DIRECTORY, routes_pb2.DirectoryRequest(names_only=True))
        expected = routes_pb2.DirectoryReply(cluster=told.cluster, version=told.version, complete=told.complete)
        expected.groups.add(name="g0", state=told.groups[0].state)
        assert told == expected

    attacked(scenario)


def test_a_query_finds_nothing_in_topics_that_may_not_be_read() -> None:
    async def scenario(rig: Rig, mallory: Mallory) -> None:
        with pytest.raises(PermissionDeniedError):
            await mallory.call(methods.QUERY_MESSAGES, query_pb2.QueryMessagesRequest(topic=HIDDEN, key="k"))
        places = await positions(rig)
        assert len(places) == 2
        for pos, topic in places.items():
            found = await mallory.call(methods.QUERY_MESSAGES, query_pb2.QueryMessagesRequest(pos=pos))
            assert [each.topic for each in found.messages] == ([SEEN] if topic == SEEN else [])
            assert HIDDEN.encode() not in found.payload

    async def positions(rig: Rig) -> dict[int, str]:
        """Where the messages of both topics begin in the log."""
        app = Mallory(rig, APPLICATION)
        found: dict[int, str] = {}
        for topic in (SEEN, HIDDEN):
            reply = await app.call(methods.QUERY_MESSAGES, query_pb2.QueryMessagesRequest(topic=topic, key="k"))
            found |= {each.pos: each.topic for each in reply.messages}
        await app.close()
        return found

    attacked(scenario)


def joined(group: str, topic: str) -> bytes:
    message = sessions_pb2.MemberMessage()
    message.join.group, message.join.client_id, message.join.session_id = group, "mallory", "mallory"
    message.join.subscriptions.add(topic=topic)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(("group", "topic"), [(HIDDEN_GROUP, SEEN), (SEEN_GROUP, HIDDEN)])
def test_a_group_is_joined_with_rights_on_it_and_on_what_it_reads(group: str, topic: str) -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        with pytest.raises(PermissionDeniedError):
            await mallory.first(methods.JOIN_GROUP, joined(group, topic))
        welcome = sessions_pb2.MasterMessage.FromString(await mallory.first(methods.JOIN_GROUP, joined(SEEN_GROUP, SEEN)))
        assert welcome.WhichOneof("body") == "welcome"

    attacked(scenario)


def test_another_s_transactions_are_neither_joined_nor_ended_nor_shown() -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        join = transaction_pb2.ProducerJoin(producer_group=HIDDEN_GROUP)
        with pytest.raises(PermissionDeniedError):
            await mallory.first(methods.JOIN_PRODUCER_GROUP, join.SerializeToString())
        for method, request in (
            (methods.END_TRANSACTIONS, transaction_pb2.EndTransactionsRequest(producer_group=HIDDEN_GROUP)),
            (methods.DESCRIBE_TRANSACTIONS, transaction_pb2.DescribeTransactionsRequest(producer_group=HIDDEN_GROUP)),
        ):
            with pytest.raises(PermissionDeniedError):
                await mallory.call(method, request)
        shown = await mallory.call(methods.DESCRIBE_TRANSACTIONS, transaction_pb2.DescribeTransactionsRequest())
        assert "hidden" not in str(shown)

    attacked(scenario)


def test_another_s_group_is_not_reset_or_read_for() -> None:
    async def scenario(_rig: Rig, mallory: Mallory) -> None:
        theirs = [broker_pb2.GroupOffset(topic=SEEN, queue_id=0, offset=0)]
        hidden = [broker_pb2.GroupOffset(topic=HIDDEN, queue_id=0, offset=0)]
        for request in (
            broker_pb2.CommitOffsetsRequest(group=HIDDEN_GROUP, offsets=theirs),
            broker_pb2.CommitOffsetsRequest(group=SEEN_GROUP, offsets=hidden),
        ):
            with pytest.raises(PermissionDeniedError):
                await mallory.call(methods.COMMIT_OFFSETS, request)
        hidden_queues = [broker_pb2.QueueRef(topic=HIDDEN, timestamp_ms=-1)]
        for asked in (broker_pb2.OffsetsRequest(topics=[SEEN, HIDDEN]), broker_pb2.OffsetsRequest(topics=[SEEN], queues=hidden_queues)):
            with pytest.raises(PermissionDeniedError):
                await mallory.call(methods.QUEUE_OFFSETS, asked)
        (told,) = (await mallory.call(methods.QUEUE_OFFSETS, broker_pb2.OffsetsRequest(topics=[SEEN]))).topics
        assert told.topic == SEEN
        for group, topic in ((HIDDEN_GROUP, SEEN), (SEEN_GROUP, HIDDEN)):
            with pytest.raises(DledgerError) as refused:
                await mallory.call(methods.SEND_BACK, retry_pb2.SendBackRequest(group=group, topic=topic, offsets=[0]))
            assert refused.value.code == "PERMISSION_DENIED"

    attacked(scenario)
