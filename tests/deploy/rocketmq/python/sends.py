"""Producers of RocketMQ's Python client: "ok WHAT" or "bad WHAT WHY" for each kind of message, or a load of numbered ones.

python sends.py kinds ENDPOINTS TOPIC | load ENDPOINTS TOPIC MESSAGES PAUSE_MS; credentials in ACCESS_KEY and SECRET_KEY.
"""

import os
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker, TransactionResolution


def message(topic, body, **fields):
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Checker(TransactionChecker):
    """Commits what it is asked for."""

    def __init__(self):
        self.asked = threading.Event()

    def check(self, message):
        if message.body == b"checked":
            self.asked.set()
        return TransactionResolution.COMMIT


def configuration(endpoints):
    return ClientConfiguration(endpoints, Credentials(os.environ.get("ACCESS_KEY", ""), os.environ.get("SECRET_KEY", "")))


class Kinds:
    """Each kind of message."""

    def __init__(self, endpoints, topic):
        self.topic, self.checker = topic, Checker()
        self.producer = Producer(configuration(endpoints), (topic,), checker=self.checker)
        self.producer.startup()

    def send(self, body, **fields):
        return self.producer.send(message(self.topic, body, **fields))

    def normal(self):
        sent = message(self.topic, "normal", tag="t", keys="k-1")
        sent.add_property("amount", "42 €")
        self.producer.send(sent)

    def asynchronous(self):
        assert self.producer.send_async(message(self.topic, "async")).result(10).message_id

    def fifo(self):
        offsets = [self.send(f"fifo{number}", message_group="g").offset for number in range(3)]
        assert offsets == list(range(offsets[0], offsets[0] + 3)), offsets

    def delayed(self):
        self.send("delayed", delivery_timestamp=int(time.time()) + 1)

    def recalled(self):
        receipt = self.send("recalled", delivery_timestamp=int(time.time()) + 3)
        assert self.producer.recall_message(self.topic, receipt.recall_handle)

    def priority(self):
        self.send("priority", priority=2)

    def large(self):
        self.send("x" * 900_000)

    def transactions(self):
        for body, end in (("committed", "commit"), ("dropped", "rollback"), ("checked", None)):
            transaction = self.producer.begin_transaction()
            self.producer.send(message(self.topic, body), transaction)
            if end is not None:
                getattr(transaction, end)()
        assert self.checker.asked.wait(60), "not asked"


def kinds(endpoints, topic):
    steps = Kinds(endpoints, topic)
    for name in ("normal", "asynchronous", "fifo", "delayed", "recalled", "priority", "large", "transactions"):
        try:
            getattr(steps, name)()
            print("ok", name, flush=True)
        except Exception as error:
            print("bad", name, repr(error), flush=True)
    steps.producer.shutdown()


def load(endpoints, topic, messages, pause_ms):
    producer = Producer(configuration(endpoints), (topic,))
    producer.startup()
    for number in range(int(messages)):
        body = f"m{number}"
        try:
            producer.send(message(topic, body))
            print("sent", body, flush=True)
        except Exception as error:
            print("failed", body, type(error).__name__, flush=True)
        time.sleep(int(pause_ms) / 1000)
    producer.shutdown()


if __name__ == "__main__":
    {"kinds": kinds, "load": load}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # its threads do not all end
