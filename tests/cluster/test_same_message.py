"""Any message that one side sends and another reads is the same message: native clients, RocketMQ's remoting protocol, the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from dledger_client import Message, Producer, PullConsumer
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame import Frame, decode_frame
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.waiting import wait_until

TOPIC, QUEUES = "same", 3
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")  # the two separate properties on the wire
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="|"), min_size=1, max_size=12)


@dataclass(frozen=True)
class Sent:
    """What an application gives to a message."""

    body: bytes
    tags: str
    keys: str
    properties: tuple[tuple[str, str], ...]
    flag: int
    queue_id: int

    @property
    def encoded(self) -> str:
        """Its properties as RocketMQ's clients write them."""
        rows = {"TAGS": self.tags, "KEYS": self.keys} | dict(self.properties)
        return "".join(f"{name}\x01{value}\x02" for name, value in rows.items() if value or name not in ("TAGS", "KEYS"))


MESSAGES = st.builds(
    Sent,
    st.binary(max_size=300),
    st.just("") | WORDS,
    st.lists(WORDS, max_size=3).map(" ".join),
    st.dictionaries(st.text(CHARACTERS, max_size=12).map("p{}".format), st.text(CHARACTERS, max_size=40), max_size=4).map(
        lambda found: tuple(found.items())
    ),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, QUEUES - 1),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(Path(tmp_path_factory.mktemp("same")) / "data", nodes=1)
    try:
        made.start()
        made.cli_ok("topic", "create", TOPIC, "--queues", str(QUEUES))
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def producer(cluster: RocketmqCluster) -> Iterator[Producer]:
    with Producer(cluster.bootstrap, group="p") as made:
        yield made


@pytest.fixture(scope="module")
def consumer(cluster: RocketmqCluster) -> Iterator[PullConsumer]:
    with PullConsumer(cluster.bootstrap) as made:
        yield made


def send(cluster: RocketmqCluster, message: Sent, properties: str) -> Command:
    fields = {"a": "producers", "b": TOPIC, "d": "4", "e": str(message.queue_id), "f": "0", "g": "1700000000000", "h": str(message.flag)}
    return ask(cluster.remoting("n0"), Request.SEND_MESSAGE_V2, fields | {"i": properties}, message.body)


def pull(cluster: RocketmqCluster, queue_id: int, offset: int) -> Frame:
    names = {"consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "1"}
    answer = ask(cluster.remoting("n0"), Request.PULL_MESSAGE, names | {"sysFlag": "0", "commitOffset": "0", "subVersion": "0"})
    assert answer.code == Answer.SUCCESS
    return decode_frame(answer.body, 0)


def own(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of the application."""
    return tuple((name, value) for name, value in properties.items() if name not in ("UNIQ_KEY", "TAGS", "KEYS"))


def in_frame(frame: Frame) -> Sent:
    """As RocketMQ's clients read it."""
    tags, keys = frame.properties.get("TAGS", ""), frame.properties.get("KEYS", "")
    return Sent(bytes(frame.body), tags, keys, own(frame.properties), frame.flag, frame.queue_id)


def native(consumer: PullConsumer, queue_id: int, offset: int) -> Sent:
    (found,) = consumer.fetch(TOPIC, queue_id, offset, 1)
    return Sent(found.body, found.tags, found.keys, own(found.properties), found.flag, found.queue_id)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(Sent(b"", "", "", (), 0, 0))
@example(Sent(b"\0", "t", "a b", (("p", ""), ("p=\x00\x03", '{"a":"\\u0001"}\n')), -1, 2))
@given(MESSAGES)
def test_what_either_side_sends_both_read(cluster: RocketmqCluster, producer: Producer, consumer: PullConsumer, message: Sent) -> None:
    answer = send(cluster, message, message.encoded)
    assert answer.code == Answer.SUCCESS, answer.remark
    assert int(answer.fields["queueId"]) == message.queue_id
    made = Message(TOPIC, message.body, tags=message.tags, keys=message.keys, properties=dict(message.properties), flag=message.flag)
    result = producer.send(made, queue_id=message.queue_id)
    for offset in (int(answer.fields["queueOffset"]), result.queue_offset):
        assert native(consumer, message.queue_id, offset) == message
        assert in_frame(pull(cluster, message.queue_id, offset)) == message


def test_a_delay_by_level_is_the_same_delay(cluster: RocketmqCluster, producer: Producer, consumer: PullConsumer) -> None:
    cluster.cli_ok("topic", "create", "late", "--queues", "1")
    fields = {"a": "p", "b": "late", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    answer = ask(cluster.remoting("n0"), Request.SEND_MESSAGE_V2, fields | {"i": "DELAY\x012\x02KEYS\x01k\x02p\x01v\x02"}, b"late")
    assert answer.code == Answer.SUCCESS, answer.remark
    producer.send(Message("late", b"late", keys="k", properties={"p": "v"}, delay_level=2))
    found = wait_until(lambda: len(read := consumer.fetch("late", 0, 0, 2)) == 2 and read, "both are delivered")
    assert found
    shown = [{name: value for name, value in message.properties.items() if name != "UNIQ_KEY"} for message in found]
    assert shown[0] == shown[1]
    for message in found:
        assert (message.body, message.keys, message.properties["p"]) == (b"late", "k", "v")


def test_the_command_line_shows_what_both_sent(cluster: RocketmqCluster, producer: Producer) -> None:
    cluster.cli_ok("topic", "create", "shown", "--queues", "1")
    fields = {"a": "p", "b": "shown", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    ask(cluster.remoting("n0"), Request.SEND_MESSAGE_V2, fields | {"i": "TAGS\x01t\x02KEYS\x01k l\x02ü\x01\n \x02"}, "€".encode())
    producer.send(Message("shown", "€".encode(), tags="t", keys="k l", properties={"ü": "\n "}))
    shown = cluster.cli_ok("consume", "shown", "--from", "first", "--max", "2", "--json").splitlines()
    first, second = (json.loads(row) for row in shown)
    for row in (first, second):
        assert (row["body"], row["tags"], row["keys"], own(row["properties"])) == ("€", "t", "k l", (("ü", "\n "),))


def test_what_cannot_be_expressed_is_refused_in_words(cluster: RocketmqCluster) -> None:
    for wrong in ("a\x01b", "a\x02b"):
        with pytest.raises(InvalidArgumentError, match="neither"):
            Message(TOPIC, b"", properties={"name": wrong})
    refused = send(cluster, Sent(b"", "", "", (), 0, 0), "name\x01a\x01b\x02")
    assert (refused.code, "neither" in (refused.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)
    large = send(cluster, Sent(b"", "", "", (), 0, 0), f"p\x01{'v' * (MAX_PROPERTIES_BYTES + 1)}\x02")
    assert large.code == Answer.MESSAGE_ILLEGAL
    assert large.remark
