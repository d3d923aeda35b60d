"""A secured cluster whose metrics a Prometheus collects, with some of everything in it that metrics tell of.

Owns where its metrics are, the user that reads them, and the traffic.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import yaml

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_client import (
    Action,
    Admin,
    LeasedMessage,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from dledger_client.admin.security import AccessRule
from dledger_wire.rpc import methods
from tests.cluster.attack import by_hand, secured_cluster
from tests.cluster.attack.by_hand import Identity
from tests.cluster.attack.secured_cluster import Secured
from tests.cluster.harness import Cluster
from tests.cluster.monitoring.prometheus import Prometheus
from tests.waiting import wait_until

READER, PASSWORD = "monitoring", "what-prometheus-comes-in-with"
TOPIC, GROUP = "orders", "billing"
NAME_SERVER = "ns0"


@dataclass
class Watched:
    """``targets``: node -> (group, HOST:PORT of its metrics)."""

    secured: Secured
    prometheus: Prometheus
    targets: dict[str, tuple[str, str]]
    traffic: Traffic

    @property
    def cluster(self) -> Cluster:
        return self.secured.cluster


def make(folder: Path) -> tuple[Secured, dict[str, tuple[str, str]]]:
    """Three nodes and a name server, not started; each with a port for its metrics."""
    secured = secured_cluster.make(folder, more={"broker": {"transactionTimeOut": "1s", "transactionCheckInterval": "1s"}}, name_servers=1)
    cluster = secured.cluster
    content = yaml.safe_load(cluster.local.file.read_text(encoding="utf-8"))
    ports = iter(free_ports(4))
    targets = {}
    for group, processes in (("g0", content["groups"][0]["nodes"]), ("name-servers", content["name_servers"])):
        for process in processes:
            process["metrics"] = f"127.0.0.1:{next(ports)}"
            targets[process["id"]] = (group, process["metrics"])
    text = yaml.safe_dump(content, sort_keys=False)
    cluster.local = LocalCluster(ClusterConfig.parse(text, "cluster.yaml"), cluster.data)
    cluster.local.file.write_text(text, encoding="utf-8")
    return secured, targets


def scrape_options(secured: Secured) -> dict[str, Any]:
    """What the shipped scrape config says in a comment for a cluster with TLS and users."""
    file = secured.folder / f"{READER}.password"
    file.write_text(PASSWORD, encoding="utf-8")
    return {
        "scheme": "https",
        "tls_config": {"ca_file": str(secured.ca)},
        "basic_auth": {"username": READER, "password_file": str(file)},
    }


def admit_reader(bootstrap: str) -> None:
    """The user whom Prometheus comes in as: it may describe the cluster and nothing else."""
    with Admin(bootstrap) as admin:
        admin.create_user(READER, PASSWORD)
        admin.change_rules([AccessRule(READER, "allow", "cluster", "*", "describe")])


def be_refused(secured: Secured) -> None:
    """Come to every node with a wrong password."""
    wrong = Identity(user="mallory", password="not that of mallory")
    for _, node in secured.cluster.config.all_nodes():
        said = by_hand.call(node.address, secured.ca, wrong, methods.LIST_TOPICS.path, b"")
        assert said.code == "UNAUTHENTICATED", said


def received(consumer: SimpleConsumer, count: int) -> list[LeasedMessage]:
    """So many messages."""
    found: list[LeasedMessage] = []
    while len(found) < count:
        found += consumer.receive(max_messages=count - len(found), wait_ms=1_000)
    return found


class Traffic:
    """Some of everything: sends and reads that go on, a group that lags, leases, retries, dead letters, delays and a transaction that stays
    open."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(bootstrap, group="shop")
        self._reader = PullConsumer(bootstrap, group=GROUP)
        self._offset = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Traffic:
        with Admin(self._bootstrap) as admin:
            admin.create_topic(TOPIC, queues=1)
            for name in ("mails", "paid", "parcels"):
                admin.create_topic(name, queues=1)
        self._stack.enter_context(self._producer)
        self._stack.enter_context(self._reader)
        self._reject()
        self._lease()
        transactions = TransactionProducer(self._bootstrap, "payments", lambda _message: TransactionState.UNKNOWN)
        self._stack.enter_context(transactions).prepare(Message("paid", b"nobody knows"))
        in_an_hour = int(time.time() * 1000) + 3_600_000
        self._producer.send(Message(TOPIC, b"later", deliver_at_ms=in_an_hour))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _reject(self) -> None:
        """One message is tried again, and one is given up."""
        seen, levels = Event(), iter((1, -1))

        def listen(_messages: Any, context: Any) -> Action:
            level = next(levels, None)
            if level is None:
                return Action.COMMIT
            context.delay_level = level
            if level == -1:
                seen.set()
            return Action.RECONSUME_LATER

        consumer = PushConsumer(self._bootstrap, group="mailer", listener=listen)
        consumer.subscribe("mails")
        self._stack.enter_context(consumer)
        for number in range(2):
            self._producer.send(Message("mails", b"mail %d" % number))
        wait_until(seen.is_set, "a message was given up")

    def _lease(self) -> None:
        """One message is kept, one comes again, and one is given up."""
        consumer = self._stack.enter_context(SimpleConsumer(self._bootstrap, "packing", "parcels", invisible_ms=600_000))
        for number in range(3):
            self._producer.send(Message("parcels", b"parcel %d" % number))
        got = received(consumer, 3)
        consumer.nack(got[1:2])
        consumer.reject(got[2:])
        received(consumer, 1)

    def step(self) -> None:
        """Send some, read some and confirm less than that."""
        for number in range(20):
            self._producer.send(Message(TOPIC, b"order %d" % number))
        found = self._reader.fetch(TOPIC, 0, self._offset, 10, wait_ms=1000)
        self._offset += len(found)
        self._reader.commit({(TOPIC, 0): self._offset})
