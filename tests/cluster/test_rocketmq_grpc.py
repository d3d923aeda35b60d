"""RocketMQ's gRPC protocol at real nodes: leader or not, every kind of message, telemetry, and strangers at the port."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from broker.remoting.codes import Answer, Request
from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc._pb import service_pb2 as service
from dledger_client import PullConsumer
from dledger_client.fetch.records import ReceivedMessage
from tests.cluster.harness import send_garbage
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.cluster.rocketmq_grpc import GrpcClient, message, topic_of
from tests.waiting import wait_until

ID = "01020304050607080900000000000000%02X"
FAR_MS = 4_000_000_000_000
TIMERS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}

Telemetry = service.TelemetryCommand


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(Path(tmp_path_factory.mktemp("grpc")) / "data", settings={"broker": TIMERS})
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def at(cluster: RocketmqCluster) -> Iterator[Callable[..., GrpcClient]]:
    """Makes clients at the leader or at a follower."""
    made: list[GrpcClient] = []

    def client(place: str = "leader", client_id: str = "client-1") -> GrpcClient:
        leader = cluster.leader()
        others = [node_id for node_id in cluster.local.node_ids() if node_id != leader]
        made.append(GrpcClient(cluster.remoting(leader if place == "leader" else others[0]), client_id))
        return made[-1]

    yield client
    for each in made:
        each.close()


def read(cluster: RocketmqCluster, topic: str, count: int, queue_id: int = 0) -> list[ReceivedMessage]:
    """The first messages of a queue, once there are so many."""
    with PullConsumer(cluster.bootstrap) as consumer:
        wait_until(lambda: len(consumer.fetch(topic, queue_id, 0, count)) >= count, f"{count} messages")
        return list(consumer.fetch(topic, queue_id, 0, count))


def test_a_route_has_each_queue_once_and_the_addresses_of_all_nodes(cluster: RocketmqCluster, at: Callable[..., GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "routed", "--queues", "3")
    nodes = {cluster.remoting(node_id) for node_id in cluster.local.node_ids()}
    request = service.QueryRouteRequest(topic=topic_of("routed"))
    for place in ("leader", "follower"):
        client = at(place)
        wait_until(lambda client=client: client.code("QueryRoute", request) == pb.OK, "the topic is known")
        queues = client.call("QueryRoute", request).message_queues
        assert [(queue.topic.name, queue.id, queue.permission, queue.broker.id) for queue in queues] == [
            ("routed", number, pb.READ_WRITE, 0) for number in range(3)
        ]
        for queue_ in queues:
            assert list(queue_.accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]
            assert queue_.broker.endpoints.scheme == pb.IPv4
            assert {f"{each.host}:{each.port}" for each in queue_.broker.endpoints.addresses} == nodes
        assigned = client.call("QueryAssignment", service.QueryAssignmentRequest(topic=topic_of("routed"), group=topic_of("readers")))
        assert (assigned.status.code, [each.message_queue.id for each in assigned.assignments]) == (pb.OK, [-1])
        missing = client.call("QueryRoute", service.QueryRouteRequest(topic=topic_of("nowhere")))
        assert missing.status.code == pb.TOPIC_NOT_FOUND
        assert missing.status.message == "CODE: 17  DESC: No topic route info in name server for the topic: nowhere"
    assert sorted(cluster.status_json()["rocketmq"]["grpc"]) == sorted(nodes)
    node = GrpcClient(cluster.remoting(cluster.leader()), metadata=(("x-mq-language", "HTTP"),))
    for queue_ in node.call("QueryRoute", request).message_queues:
        target = ",".join(f"{each.host}:{each.port}" for each in queue_.broker.endpoints.addresses)
        assert (target[:5], set(target[5:].split(","))) == ("ipv4:", nodes), "one target of gRPC, which this client makes of them"
    node.close()


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_message_is_stored_with_all_that_its_producer_gave_it(
    cluster: RocketmqCluster, at: Callable[..., GrpcClient], place: str
) -> None:
    topic = f"sent-{place}"
    cluster.cli_ok("topic", "create", topic, "--queues", "1")
    answer = at(place).send(topic, "42 €".encode(), ID % 1, {"amount": "42 €"}, tag="paid", keys=["o-1", "o-2"], priority=3)
    (entry,) = answer.entries
    assert (answer.status.code, entry.status.code, entry.message_id, entry.transaction_id) == (pb.OK, pb.OK, ID % 1, ID % 1)
    assert entry.offset == 0
    (found,) = read(cluster, topic, 1)
    assert (found.body, found.tags, found.keys, found.properties["amount"]) == ("42 €".encode(), "paid", "o-1 o-2", "42 €")
    assert found.properties["UNIQ_KEY"] == ID % 1
    assert found.properties["_SYS_MSG_PRIORITY_"] == "3"


def test_a_repeated_send_is_stored_once(cluster: RocketmqCluster, at: Callable[..., GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "once", "--queues", "2")
    offsets = [at(place).send("once", b"pay 42", ID % 2).entries[0].offset for place in ("leader", "follower", "leader")]
    assert offsets == [0, 0, 0]
    ends = [ask(cluster.remoting(cluster.leader()), Request.GET_MAX_OFFSET, {"topic": "once", "queueId": str(number)}) for number in (0, 1)]
    assert sum(int(answer.fields["offset"]) for answer in ends) == 1


def is_applied_everywhere(cluster: RocketmqCluster) -> bool:
    nodes = [node for group in cluster.status_json()["groups"] for node in group["nodes"]]
    return all(node["reachable"] for node in nodes) and len({node["applied_index"] for node in nodes}) == 1


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_priority_chooses_the_queue_of_a_topic_that_has_priorities(
    cluster: RocketmqCluster, at: Callable[..., GrpcClient], place: str
) -> None:
    topic = f"urgent-{place}"
    cluster.cli_ok("topic", "create", topic, "--queues", "3", "--priorities")
    client, node = at(place), cluster.remoting(cluster.leader())
    wait_until(lambda: is_applied_everywhere(cluster), "each node knows the topic")
    batch = [message(topic, body, ID % number, priority=priority) for number, (body, priority) in enumerate([(b"low", 0), (b"top", 9)], 64)]
    assert client.call("SendMessage", service.SendMessageRequest(messages=batch)).status.code == pb.OK
    assert client.send(topic, b"none", ID % 66, message_type=pb.FIFO, message_group="o-1").status.code == pb.OK
    properties = f"UNIQ_KEY\x01{ID % 67}\x02_SYS_MSG_PRIORITY_\x011\x02"
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": properties}
    assert ask(node, Request.SEND_MESSAGE_V2, fields, b"remoting").fields["queueId"] == "1"
    stored = {queue_id: [each.body for each in read(cluster, topic, count, queue_id)] for queue_id, count in ((0, 2), (1, 1), (2, 1))}
    assert stored == {0: [b"low", b"none"], 1: [b"remoting"], 2: [b"top"]}


def test_messages_of_a_group_go_to_one_queue_in_their_order_and_batches_are_answered_one_by_one(
    cluster: RocketmqCluster, at: Callable[..., GrpcClient]
) -> None:
    cluster.cli_ok("topic", "create", "ordered", "--queues", "4")
    client = at("follower")
    for number in range(3):
        assert client.send("ordered", b"%d" % number, ID % (16 + number), message_type=pb.FIFO, message_group="o-1").status.code == pb.OK
    batch = [message("ordered", b"%d" % number, ID % (32 + number), message_type=pb.FIFO, message_group="o-1") for number in range(3, 6)]
    answer = client.call("SendMessage", service.SendMessageRequest(messages=batch))
    assert [(entry.status.code, entry.message_id, entry.offset) for entry in answer.entries] == [
        (pb.OK, ID % (32 + number), number) for number in range(3, 6)
    ]
    with PullConsumer(cluster.bootstrap) as consumer:
        found = [[each.body for each in consumer.fetch("ordered", number, 0, 10)] for number in range(4)]
    assert sorted(found) == [[], [], [], [b"0", b"1", b"2", b"3", b"4", b"5"]]


def test_a_message_waits_for_its_time_and_is_recalled_at_any_node(cluster: RocketmqCluster, at: Callable[..., GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "timed", "--queues", "1")
    client = at("follower")
    due = Timestamp()
    due.GetCurrentTime()
    soon = Timestamp(seconds=due.seconds + 1)
    sent = client.send("timed", b"soon", ID % 3, message_type=pb.DELAY, delivery_timestamp=soon).entries[0]
    later = client.send("timed", b"later", ID % 4, message_type=pb.DELAY, delivery_timestamp=Timestamp(seconds=due.seconds + 3600))
    recall = service.RecallMessageRequest(topic=topic_of("timed"), recall_handle=later.entries[0].recall_handle)
    recalled = at("leader").call("RecallMessage", recall)
    assert (recalled.status.code, recalled.message_id) == (pb.OK, ID % 4)
    assert client.code("RecallMessage", recall) == pb.OK
    for wrong in (service.RecallMessageRequest(topic=topic_of("timed"), recall_handle="x"), service.RecallMessageRequest()):
        assert client.code("RecallMessage", wrong) in (pb.BAD_REQUEST, pb.ILLEGAL_TOPIC)
    assert [each.body for each in read(cluster, "timed", 1)] == [b"soon"]
    too_late = service.RecallMessageRequest(topic=topic_of("timed"), recall_handle=sent.recall_handle)
    assert client.code("RecallMessage", too_late) == pb.BAD_REQUEST


REFUSED: dict[str, tuple[dict[str, Any], int]] = {
    "no body": ({"body": b""}, pb.MESSAGE_BODY_EMPTY),
    "too large": ({"body": bytes((4 << 20) + 1)}, pb.MESSAGE_BODY_TOO_LARGE),
    "no id": ({"message_id": ""}, pb.ILLEGAL_MESSAGE_ID),
    "blank tag": ({"tag": " "}, pb.ILLEGAL_MESSAGE_TAG),
    "tag of two": ({"tag": "a|b"}, pb.ILLEGAL_MESSAGE_TAG),
    "key": ({"keys": ["\x01"]}, pb.ILLEGAL_MESSAGE_KEY),
    "group": ({"message_group": "g" * 65}, pb.ILLEGAL_MESSAGE_GROUP),
    "property": ({"properties": {"TAGS": "x"}}, pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "separator": ({"properties": {"a": "b\x02TRAN_MSG\x01true"}}, pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "properties": ({"properties": {"a": "b" * (17 << 10)}}, pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "fifo without group": ({"message_type": pb.FIFO}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "no gzip": ({"body_encoding": pb.GZIP}, pb.MESSAGE_CORRUPTED),
    "no topic": ({"topic": "a b"}, pb.ILLEGAL_TOPIC),
    "unknown topic": ({"topic": "nowhere"}, pb.TOPIC_NOT_FOUND),
    "system topic": ({"topic": "rmq_sys_wheel_timer"}, pb.BAD_REQUEST),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_that_may_not_be_stored_is_refused_as_the_reference_does(
    cluster: RocketmqCluster, at: Callable[..., GrpcClient], name: str
) -> None:
    if "refused" not in cluster.cli_ok("topic", "list"):
        cluster.cli_ok("topic", "create", "refused", "--queues", "1")
    fields, code = REFUSED[name]
    sent: dict[str, Any] = {"topic": "refused", "body": b"body", "message_id": ID % 5, "properties": {}} | fields
    answer = at().send(**sent)
    assert (answer.status.code, answer.status.message != "") == (code, True)


class Producer:
    """A client with a stream, and what came on it."""

    def __init__(self, client: GrpcClient, *topics: str) -> None:
        self._out: queue.Queue[Telemetry | None] = queue.Queue()
        self.answers = client.stream("Telemetry", iter(self._out.get, None), Telemetry)
        self.settings(*topics)

    def settings(self, *topics: str) -> None:
        publishing = pb.Publishing(topics=[topic_of(topic) for topic in topics])
        self._out.put(Telemetry(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing)))

    def end(self) -> None:
        self._out.put(None)


def test_settings_are_answered_at_each_write(cluster: RocketmqCluster, at: Callable[..., GrpcClient]) -> None:
    producer = Producer(at("follower"))
    for topics in ((), ("more",)):
        answer = next(producer.answers)
        assert answer.status.code == pb.OK
        assert answer.settings.publishing.max_body_size == cluster.config.store.maxMessageSize
        assert [topic.name for topic in answer.settings.publishing.topics] == list(topics)
        assert (answer.settings.backoff_policy.max_attempts, answer.settings.backoff_policy.WhichOneof("strategy")) == (
            3,
            "exponential_backoff",
        )
        producer.settings("more")
    producer.end()
    subscription = pb.Subscription(group=topic_of("readers"))
    given = [Telemetry(settings=pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription))]
    answer = next(at().stream("Telemetry", iter(given), Telemetry))
    assert (answer.settings.subscription.group.name, answer.settings.subscription.long_polling_timeout.seconds) == ("readers", 20)
    assert len(answer.settings.backoff_policy.customized_backoff.next) == 18
    node = GrpcClient(cluster.remoting(cluster.leader()), metadata=(("x-mq-language", "HTTP"),))
    settings = next(node.stream("Telemetry", iter(given), Telemetry)).settings
    assert settings.backoff_policy.HasField("exponential_backoff"), "Node.js knows no other"
    node.close()
    refused = next(at(client_id="").stream("Telemetry", iter(given), Telemetry))
    assert refused.status.code == pb.CLIENT_ID_REQUIRED


def test_headers_of_telemetry_come_before_anything_is_sent(at: Callable[..., GrpcClient]) -> None:
    waiting: queue.Queue[None] = queue.Queue()
    call: Any = at().stream("Telemetry", iter(waiting.get, None), Telemetry)
    assert call.initial_metadata() is not None
    waiting.put(None)


def test_transactions_end_at_any_node_and_open_ones_are_asked_for_on_the_stream_of_a_producer(
    cluster: RocketmqCluster, at: Callable[..., GrpcClient]
) -> None:
    cluster.cli_ok("topic", "create", "halves", "--queues", "1")
    client, producer = at("follower"), Producer(at("follower", "client-1"), "halves")
    assert next(producer.answers).status.code == pb.OK

    def end(entry: service.SendResultEntry, resolution: pb.TransactionResolution.ValueType, place: str = "leader", **other: str) -> int:
        ids: dict[str, Any] = {"message_id": entry.message_id, "transaction_id": entry.transaction_id} | other
        return at(place).code("EndTransaction", service.EndTransactionRequest(topic=topic_of("halves"), resolution=resolution, **ids))

    halves = [client.send("halves", b"%d" % number, ID % (64 + number), {"n": "1"}, message_type=pb.TRANSACTION) for number in range(3)]
    entries = [half.entries[0] for half in halves]
    assert end(entries[0], pb.COMMIT) == pb.OK
    assert end(entries[1], pb.ROLLBACK, "follower") == pb.OK
    assert end(entries[2], pb.TRANSACTION_RESOLUTION_UNSPECIFIED) == pb.BAD_REQUEST
    for wrong in ("", "x", "#", f"{ID % 66}#-1", f"{ID % 66}#{'9' * 30}", "é#2"):
        assert end(entries[2], pb.COMMIT, transaction_id=wrong) == pb.INVALID_TRANSACTION_ID
    asked = next(producer.answers).recover_orphaned_transaction_command
    assert (asked.transaction_id, asked.message.body, asked.message.topic.name) == (entries[2].transaction_id, b"2", "halves")
    assert asked.message.system_properties.message_id == ID % 66
    assert dict(asked.message.user_properties) == {"n": "1", "__transactionId__": ID % 66}
    assert end(entries[2], pb.COMMIT, "follower", transaction_id=asked.transaction_id) == pb.OK
    assert [each.body for each in read(cluster, "halves", 2)] == [b"0", b"2"]
    producer.end()


def test_what_is_not_here_is_answered_as_the_reference_does(at: Callable[..., GrpcClient]) -> None:
    client = at()
    assert client.code("SyncLiteSubscription", service.SyncLiteSubscriptionRequest()) == pb.NOT_IMPLEMENTED
    assert client.code("Heartbeat", service.HeartbeatRequest(client_type=pb.PRODUCER)) == pb.OK
    assert at(client_id="").code("Heartbeat", service.HeartbeatRequest()) == pb.CLIENT_ID_REQUIRED
    assert client.code("NotifyClientTermination", service.NotifyClientTerminationRequest()) == pb.OK
    for name in ("QueryOffset", "GetOffset", "UpdateOffset"):
        with pytest.raises(grpc.RpcError) as refused:
            client.call(name, getattr(service, f"{name}Request")())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_without_a_leader_requests_are_answered_before_clients_give_up(cluster: RocketmqCluster, at: Callable[..., GrpcClient]) -> None:
    cluster.cli_ok("topic", "create", "leaderless", "--queues", "1")
    survivor = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    client = GrpcClient(cluster.remoting(survivor))
    killed = [node_id for node_id in cluster.local.node_ids() if node_id != survivor]
    with ThreadPoolExecutor() as threads:
        for node_id in killed:
            cluster.kill(node_id)
        sent = message("leaderless", b"body", ID % 80)
        answer = client.call("SendMessage", service.SendMessageRequest(messages=[sent]), 3.0)
        assert answer.status.code in (pb.HA_NOT_AVAILABLE, pb.PROXY_TIMEOUT)
        assert client.call("QueryRoute", service.QueryRouteRequest(topic=topic_of("leaderless")), 3.0).status.code == pb.OK
        list(threads.map(cluster.start, killed))
    wait_until(lambda: client.send("leaderless", b"body", ID % 80).status.code == pb.OK, "a leader was elected")
    assert len(read(cluster, "leaderless", 1)) == 1
    client.close()


def test_garbage_harms_nobody(cluster: RocketmqCluster, at: Callable[..., GrpcClient]) -> None:
    client, address = at(), cluster.remoting(cluster.leader())
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for data in (b"P", b"PROXY TCP4 1 2 3 4\r\n", b"POST / HTTP/1.1\r\n\r\n", preface + b"\xff" * 4096, preface + bytes(9) * 100, preface):
        send_garbage(address, data)
    with socket.create_connection((address.rpartition(":")[0], int(address.rpartition(":")[2]))) as slow:
        slow.sendall(b"P")
        assert client.code("Heartbeat", service.HeartbeatRequest()) == pb.OK
    raw = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage", bytes, service.SendMessageResponse.FromString)
    for data in (b"\xff" * 100, b"\x0a\x05\x0a\x03\x0a\x01\xff"):
        assert raw(data, metadata=client.metadata).status.code == pb.BAD_REQUEST
    assert ask(address, Request.GET_ALL_TOPIC_LIST, {}).code == Answer.SUCCESS
