"""Consumers of RocketMQ's Python client: "ok WHAT" or "bad WHAT WHY" for each way to consume, or a load that is consumed.

python consumes.py kinds ENDPOINTS TOPIC GROUP | simple ENDPOINTS TOPIC GROUP COUNT | push ENDPOINTS TOPIC GROUP COUNT; a line "got BODY
ID" for each message received, until COUNT different ones were.  Credentials in ACCESS_KEY and SECRET_KEY.
"""

import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from rocketmq.grpc_protocol import FilterType

LIMIT_S = 60


def configuration(endpoints):
    return ClientConfiguration(endpoints, Credentials(os.environ.get("ACCESS_KEY", ""), os.environ.get("SECRET_KEY", "")))


class Listener(MessageListener):
    """Refuses a body as often as it is given for it."""

    def __init__(self, refused=None):
        self.refused, self.got, self.attempts = dict(refused or {}), [], []
        self.lock = threading.Lock()

    def consume(self, message):
        body = message.body.decode()
        with self.lock:
            self.attempts.append((body, message.delivery_attempt))
            if self.refused.get(body, 0) > 0:
                self.refused[body] -= 1
                return ConsumeResult.FAILURE
            self.got.append(body)
            print("got", body, message.message_id, flush=True)
        return ConsumeResult.SUCCESS


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Kinds:
    """Each way to consume."""

    def __init__(self, endpoints, topic, group):
        self.endpoints, self.topic, self.group = endpoints, topic, group
        self.producer = Producer(configuration(endpoints), (topic,))
        self.producer.startup()

    def send(self, *bodies, **fields):
        for body in bodies:
            message = Message()
            message.topic, message.body = self.topic, body.encode()
            for name, value in fields.items():
                setattr(message, name, value)
            message.add_property("n", str(len(body)))
            self.producer.send(message)

    def simple_consumer(self, name, expression=None, **options):
        consumer = SimpleConsumer(configuration(self.endpoints), f"{self.group}-{name}", **options)
        consumer.startup()
        consumer.subscribe(self.topic, expression or FilterExpression())
        return consumer

    def drained(self, consumer, count):
        """The bodies of the next messages, acknowledged."""
        found = []

        def more():
            for message in consumer.receive(16, 15):
                consumer.ack(message)
                found.append(message.body.decode())
            return len(found) >= count

        until(more, f"{found}")
        return sorted(found)

    def simple(self):
        consumer = self.simple_consumer("simple", await_duration=2)
        self.send("a", "b", "c", tag="t")
        assert self.drained(consumer, 3) == ["a", "b", "c"]
        assert not consumer.receive(16, 15)
        consumer.shutdown()

    def again(self):
        consumer = self.simple_consumer("again", await_duration=2)
        self.drained(consumer, 3)
        self.send("again")
        (message,) = consumer.receive(1, 15)
        consumer.change_invisible_duration(message, 10)
        until(lambda: [each for each in consumer.receive(1, 15) if not consumer.ack(each) and each.delivery_attempt == 2], "not again")
        consumer.shutdown()

    def filters(self):
        self.send("tagged", tag="x")
        for name, expression in (("tag", FilterExpression("x || y")), ("sql", FilterExpression("n = 6 AND TAGS = 'x'", FilterType.SQL))):
            consumer = self.simple_consumer(name, expression, await_duration=2)
            assert self.drained(consumer, 1) == ["tagged"]
            consumer.shutdown()

    def push(self):
        listener = Listener({"p1": 1})
        consumer = PushConsumer(configuration(self.endpoints), f"{self.group}-push", listener, {self.topic: FilterExpression("p")})
        consumer.startup()
        self.send("p0", "p1", "p2", tag="p")
        until(lambda: sorted(listener.got) == ["p0", "p1", "p2"], f"{listener.got} {listener.attempts}")
        assert [attempt for body, attempt in listener.attempts if body == "p1"] == [1, 2], listener.attempts
        consumer.shutdown()


def kinds(endpoints, topic, group):
    steps = Kinds(endpoints, topic, group)
    for name in ("simple", "again", "filters", "push"):
        try:
            getattr(steps, name)()
            print("ok", name, flush=True)
        except Exception as error:
            print("bad", name, repr(error), flush=True)
    steps.producer.shutdown()


def simple(endpoints, topic, group, count):
    consumer, got = SimpleConsumer(configuration(endpoints), group, await_duration=2), set()
    consumer.startup()
    consumer.subscribe(topic)
    while len(got) < int(count):
        try:
            for message in consumer.receive(16, 15):
                got.add(message.body)
                print("got", message.body.decode(), message.message_id, flush=True)
                consumer.ack(message)  # it may be stored although its answer is lost: what counts is what was received
        except Exception as error:
            print("failed", type(error).__name__, flush=True)
            time.sleep(0.1)


def push(endpoints, topic, group, count):
    listener = Listener()
    consumer = PushConsumer(configuration(endpoints), group, listener, {topic: FilterExpression()})
    consumer.startup()
    while len(set(listener.got)) < int(count):
        time.sleep(0.05)
    consumer.shutdown()


if __name__ == "__main__":
    {"kinds": kinds, "simple": simple, "push": push}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # its threads do not all end
