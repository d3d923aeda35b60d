"""RocketMQ's gRPC consumers at real nodes: messages leased, acknowledged, given back and buried, whichever node takes the call."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc._pb import service_pb2 as service
from dledger_client import Admin, Message, Producer
from tests.cluster.rocketmq import RocketmqCluster
from tests.cluster.rocketmq_grpc import GrpcClient, topic_of
from tests.waiting import wait_until

ID = "01020304050607080900000000000000%02X"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(Path(tmp_path_factory.mktemp("grpc")) / "data")
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def clients(cluster: RocketmqCluster) -> Iterator[list[GrpcClient]]:
    """At the leader, and at a follower."""
    leader = cluster.leader()
    other = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    with ExitStack() as stack:
        yield [stack.enter_context(closing(GrpcClient(cluster.remoting(node_id)))) for node_id in (leader, other)]


def asked(
    topic: str, group: str = "readers", *, poll_s: float = 2, invisible_s: int = 60, **fields: object
) -> service.ReceiveMessageRequest:
    request = service.ReceiveMessageRequest(group=topic_of(group), message_queue=pb.MessageQueue(topic=topic_of(topic)), batch_size=32)
    request.invisible_duration.CopyFrom(Duration(seconds=invisible_s))
    request.long_polling_timeout.CopyFrom(Duration(nanos=int(poll_s % 1 * 1e9), seconds=int(poll_s)))
    request.MergeFrom(service.ReceiveMessageRequest(**fields))  # type: ignore[arg-type]
    return request


def received(client: GrpcClient, request: service.ReceiveMessageRequest) -> list[pb.Message]:
    """The messages of an answer, which is as clients want it."""
    answers = client.receive(request, request.long_polling_timeout.seconds + 3)
    assert answers[0].WhichOneof("content") == "status"
    assert answers[-1].WhichOneof("content") == "delivery_timestamp", answers[0].status
    messages = [each.message for each in answers[1:-1]]
    assert answers[0].status.code == (pb.OK if messages else pb.MESSAGE_NOT_FOUND), answers[0].status
    return messages


def handles(messages: list[pb.Message]) -> list[str]:
    return [message.system_properties.receipt_handle for message in messages]


def ack(client: GrpcClient, topic: str, *given: str, group: str = "readers") -> list[int]:
    entries = [service.AckMessageEntry(message_id=f"m{number}", receipt_handle=handle) for number, handle in enumerate(given)]
    answer = client.call("AckMessage", service.AckMessageRequest(group=topic_of(group), topic=topic_of(topic), entries=entries))
    assert [(each.message_id, each.receipt_handle) for each in answer.entries] == [
        (f"m{number}", each) for number, each in enumerate(given)
    ]
    codes = [each.status.code for each in answer.entries]
    assert answer.status.code == (codes[0] if len(set(codes)) == 1 else pb.MULTIPLE_RESULTS)
    return codes


def change(client: GrpcClient, topic: str, handle: str, seconds: int, *, suspend: bool = False) -> service.ChangeInvisibleDurationResponse:
    request = service.ChangeInvisibleDurationRequest(group=topic_of("readers"), topic=topic_of(topic), receipt_handle=handle)
    request.invisible_duration.CopyFrom(Duration(seconds=seconds))
    request.suspend = suspend
    answer: service.ChangeInvisibleDurationResponse = client.call("ChangeInvisibleDuration", request)
    assert answer.receipt_handle == handle
    return answer


def test_a_message_comes_whole_is_acknowledged_at_any_node_and_does_not_come_again(
    cluster: RocketmqCluster, clients: list[GrpcClient]
) -> None:
    cluster.cli_ok("topic", "create", "whole", "--queues", "2")
    leader, follower = clients
    leader.send("whole", b"body", ID % 1, {"amount": "42 €"}, tag="paid", keys=["o-1", "o-2"])
    (message,) = received(follower, asked("whole"))
    system = message.system_properties
    assert (message.topic.name, message.body, dict(message.user_properties)) == ("whole", b"body", {"amount": "42 €"})
    assert (system.message_id, system.tag, list(system.keys), system.delivery_attempt) == (ID % 1, "paid", ["o-1", "o-2"], 1)
    assert (system.body_digest.type, system.body_digest.checksum) == (pb.MD5, hashlib.md5(b"body").hexdigest().upper())  # noqa: S324
    assert (system.body_encoding, system.message_type, system.invisible_duration.seconds) == (pb.IDENTITY, pb.NORMAL, 60)
    assert system.born_timestamp.seconds >= 0
    assert abs(system.store_timestamp.seconds - time.time()) < 3600
    assert received(leader, asked("whole", poll_s=0)) == []
    assert len(received(leader, asked("whole", "others"))) == 1
    handle = system.receipt_handle
    assert ack(leader, "whole", handle, "nonsense") == [pb.OK, pb.INVALID_RECEIPT_HANDLE]
    assert ack(follower, "whole", handle) == [pb.INVALID_RECEIPT_HANDLE]
    assert change(follower, "whole", handle, 10).status.code == pb.INVALID_RECEIPT_HANDLE


def test_a_long_poll_is_answered_when_a_message_comes_and_within_its_time(cluster: RocketmqCluster, clients: list[GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "polled", "--queues", "1")
    leader, follower = clients
    began_s = time.monotonic()
    assert received(follower, asked("polled", poll_s=1)) == []
    assert time.monotonic() - began_s >= 0.9
    assert follower.receive(asked("polled", poll_s=20), 3.0)[0].status.code == pb.MESSAGE_NOT_FOUND, "within the deadline of the call"
    future = follower.channel.unary_stream(  # answered while it waits
        "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
        service.ReceiveMessageRequest.SerializeToString,
        service.ReceiveMessageResponse.FromString,
    )(asked("polled", poll_s=20), timeout=23, metadata=follower.metadata)
    leader.send("polled", b"now", ID % 2)
    assert [each.message.body for each in future if each.HasField("message")] == [b"now"]


def test_a_message_given_back_comes_again_with_another_attempt_or_without_counting_it(
    cluster: RocketmqCluster, clients: list[GrpcClient]
) -> None:
    cluster.cli_ok("topic", "create", "again", "--queues", "1")
    leader, follower = clients
    leader.send("again", b"body", ID % 3)
    attempts, first = list[int](), list[str]()
    for number in range(3):
        messages = wait_until(lambda: received(follower, asked("again")), "the message is there")
        attempts.append(messages[0].system_properties.delivery_attempt)
        first += handles(messages)
        assert change((leader, follower)[number % 2], "again", first[-1], 0, suspend=number == 0).status.code == pb.OK
    assert attempts == [1, 1, 2]
    (last,) = wait_until(lambda: received(follower, asked("again")), "the message is there")
    assert ack(leader, "again", *first, last.system_properties.receipt_handle) == [pb.INVALID_RECEIPT_HANDLE] * 3 + [pb.OK]
    assert change(leader, "again", first[0], 13 * 3600).status.code == pb.ILLEGAL_INVISIBLE_TIME


def test_a_message_becomes_a_dead_letter_once(cluster: RocketmqCluster, clients: list[GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "poison", "--queues", "1")
    leader, follower = clients
    leader.send("poison", b"body", ID % 4)
    (message,) = wait_until(lambda: received(follower, asked("poison", "strict")), "the message is there")
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=topic_of("strict"), topic=topic_of("poison"), receipt_handle=message.system_properties.receipt_handle
    )
    assert follower.code("ForwardMessageToDeadLetterQueue", request) == pb.OK
    assert leader.code("ForwardMessageToDeadLetterQueue", request) == pb.INVALID_RECEIPT_HANDLE
    with Admin(cluster.bootstrap) as admin:
        admin.open_dead_letters("strict")  # consumers may read them
    (dead,) = wait_until(lambda: received(leader, asked("%DLQ%strict", "undertakers")), "the dead letter is there")
    assert (dead.topic.name, dead.body) == ("%DLQ%strict", b"body")
    assert dead.system_properties.dead_letter_queue.topic == "poison"


def test_a_group_in_order_gets_the_next_of_a_message_group_when_the_one_before_is_acknowledged(
    cluster: RocketmqCluster, clients: list[GrpcClient]
) -> None:
    cluster.cli_ok("topic", "create", "lines", "--queues", "1")
    cluster.cli_ok("group", "update", "cashiers", "--in-order")
    leader, follower = clients
    for number, (body, group) in enumerate([(b"a1", "a"), (b"a2", "a"), (b"b1", "b")]):
        assert leader.send("lines", body, ID % (48 + number), message_group=group, message_type=pb.FIFO).status.code == pb.OK
    first = received(follower, asked("lines", "cashiers"))
    assert [message.body for message in first] == [b"a1", b"b1"]
    assert received(leader, asked("lines", "cashiers", poll_s=0)) == []
    assert ack(follower, "lines", handles(first)[0], group="cashiers") == [pb.OK]
    assert [message.body for message in received(leader, asked("lines", "cashiers"))] == [b"a2"]
    assert [message.body for message in received(leader, asked("lines", "clerks"))] == [b"a1", b"a2", b"b1"], "another group: any order"


def test_messages_are_chosen_by_tags_and_by_sql(cluster: RocketmqCluster, clients: list[GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "chosen", "--queues", "1")
    leader, follower = clients
    for number, tag in enumerate("abc"):
        leader.send("chosen", tag.encode(), ID % (16 + number), {"n": str(number)}, tag=tag)
    for number, (kind, expression, found) in enumerate(
        [
            (pb.TAG, "a || c", [b"a", b"c"]),
            (pb.SQL, "n > 0 AND TAGS <> 'b'", [b"c"]),
            (pb.TAG, "*", [b"a", b"b", b"c"]),
            (pb.TAG, "", [b"a", b"b", b"c"]),
        ]
    ):
        wanted = asked("chosen", f"choosers{number}", filter_expression=pb.FilterExpression(type=kind, expression=expression))
        assert [message.body for message in received(follower, wanted)] == found
    wrong = asked("chosen", filter_expression=pb.FilterExpression(type=pb.SQL, expression="n >"))
    assert leader.receive(wrong)[0].status.code == pb.ILLEGAL_FILTER_EXPRESSION


def test_messages_of_native_producers_come_open_whatever_they_are_compressed_with(
    cluster: RocketmqCluster, clients: list[GrpcClient]
) -> None:
    cluster.cli_ok("topic", "create", "packed", "--queues", "1")
    bodies = [name.encode() * 2_000 for name in ("none", "zlib", "lz4", "zstd")]
    for body in bodies:
        with Producer(cluster.bootstrap, group="p", compress_type=_name(body), compress_over_bytes=100) as producer:
            producer.send(Message("packed", body))
    found = received(clients[1], asked("packed"))
    assert [message.body for message in found] == bodies
    assert {message.system_properties.body_encoding for message in found} == {pb.IDENTITY}


def _name(body: bytes) -> str:
    return next(name for name in ("none", "zlib", "lz4", "zstd") if body.startswith(name.encode()))


def test_what_may_not_be_asked_is_refused_a_second_late(clients: list[GrpcClient]) -> None:
    for request, code in (
        (asked("nowhere"), pb.TOPIC_NOT_FOUND),
        (asked("nowhere", invisible_s=1), pb.ILLEGAL_INVISIBLE_TIME),
        (asked("no where"), pb.ILLEGAL_TOPIC),
        (asked("nowhere", "no group"), pb.ILLEGAL_CONSUMER_GROUP),
    ):
        began_s = time.monotonic()
        assert [each.status.code for each in clients[0].receive(request)] == [code]
        assert time.monotonic() - began_s >= 0.9


def test_leases_of_a_push_consumer_are_given_back_when_it_ends(cluster: RocketmqCluster, clients: list[GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "pushed", "--queues", "1")
    leader, follower = clients
    leader.send("pushed", b"body", ID % 5)
    pushed = asked("pushed")
    pushed.ClearField("invisible_duration")
    pushed.auto_renew = True
    (message,) = received(follower, pushed)
    assert message.system_properties.invisible_duration.seconds == 60
    assert received(leader, asked("pushed", poll_s=0)) == []
    assert follower.code("NotifyClientTermination", service.NotifyClientTerminationRequest()) == pb.OK
    (again,) = received(leader, asked("pushed"))
    assert again.system_properties.delivery_attempt == 1
    assert ack(leader, "pushed", *handles([again])) == [pb.OK]


def test_a_killed_leader_takes_no_message_and_no_lease_along(cluster: RocketmqCluster, clients: list[GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "survives", "--queues", "2")
    leader, follower = clients
    for number in range(6):
        assert leader.send("survives", b"%d" % number, ID % (32 + number)).status.code == pb.OK
    messages = wait_until(lambda: received(follower, asked("survives")), "the messages are there")
    while len(messages) < 6:
        messages += received(follower, asked("survives"))
    assert ack(follower, "survives", *handles(messages[:2])) == [pb.OK] * 2
    killed = cluster.leader()
    cluster.kill(killed)
    try:
        codes = wait_until(
            lambda: (found := ack(follower, "survives", *handles(messages[2:4]))) and pb.OK in found and found, "a new leader"
        )
        assert isinstance(codes, list)
        assert set(codes) <= {pb.OK, pb.INVALID_RECEIPT_HANDLE}
        assert change(follower, "survives", handles(messages)[4], 0).status.code == pb.OK
        again = wait_until(lambda: received(follower, asked("survives")), "what was given back is there")
        assert [message.body for message in again] == [messages[4].body]
    finally:
        cluster.start(killed)
