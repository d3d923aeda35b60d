"""A running cluster gets TLS and then users, and its certificates are replaced: every node restarts in turn, nothing that is sent or read
fails, nothing is lost.  (docs/guides/operate/secure-a-running-cluster.md)"""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from broker.config.cluster_file import ClusterConfig
from broker.config.security import verifier_text
from dledger_cli.local.processes import LocalCluster
from dledger_client import Message, Producer, PullConsumer
from dledger_wire.errors import AuthenticationFailedError, DledgerError
from dledger_wire.security import principal
from dledger_wire.security.certificates import KeyPair, issue, new_authority
from dledger_wire.security.scram import password_verifier
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

CLUSTER, TOPIC, TYPED = "private", "orders", "what admin types"
NODES = [principal.node(CLUSTER, "g0", f"n{number}") for number in range(3)]


class Traffic:
    """A producer and a consumer that never stop; each is told now and then who it is to be."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._security: dict[str, Any] = {}
        self._version = 0
        self._seen = {"write": 0, "read": 0}
        self.sent = 0
        self.read: list[bytes] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in self._seen]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self.goes_on()

    def become(self, **security: Any) -> None:
        """Both make their clients anew, and go on."""
        self._security, self._version = security, self._version + 1
        wait_until(lambda: self.errors or min(self._seen.values()) == self._version, "the clients were not made anew")
        self.goes_on()

    def goes_on(self) -> None:
        """Messages sent from now on arrive."""
        sent, read = self.sent, len(self.read)
        wait_until(lambda: self.errors or (self.sent > sent + 5 and len(self.read) > read + 5), "nothing is sent or read")
        assert not self.errors, self.errors

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _run(self, name: str) -> None:
        try:
            while not self._stop.is_set():
                version, security = self._version, self._security
                self._seen[name] = version
                work = self._write if name == "write" else self._read
                work(version, security)
        except Exception as error:
            self.errors.append(f"{name}: {error!r}")

    def _write(self, version: int, security: dict[str, Any]) -> None:
        with Producer(self._bootstrap, send_timeout_ms=LIMIT_MS, **security) as producer:
            while version == self._version and not self._stop.wait(0.005):
                producer.send(Message(TOPIC, b"%d" % self.sent))
                self.sent += 1

    def _read(self, version: int, security: dict[str, Any]) -> None:
        with PullConsumer(self._bootstrap, timeout_ms=LIMIT_MS, **security) as consumer:
            while version == self._version and not self._stop.is_set():
                found = consumer.fetch(TOPIC, queue_id=0, offset=len(self.read), max_messages=1000, wait_ms=200)
                self.read += [message.body for message in found]


class Secured:
    """The cluster's files and their changes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        self.content = yaml.safe_load(cluster.local.file.read_text())
        self.authority = new_authority(CLUSTER)
        self.put("ca.crt", self.authority.certificate)
        for node in NODES:
            self.put_pair(node.name, issue(self.authority, node, ["127.0.0.1"]))
        self.put("password", TYPED.encode())

    def put(self, name: str, data: bytes) -> None:
        """A file is replaced at once, as an operator's tools do it."""
        made = self.folder / (name + ".new")
        made.write_bytes(data)
        made.chmod(0o600)
        made.replace(self.folder / name)

    def put_pair(self, name: str, pair: KeyPair) -> None:
        self.put(name + ".key", pair.key)
        self.put(name + ".crt", pair.certificate)

    def roll(self, **security: Any) -> None:
        """The block ``security`` changes, and every node restarts, one after the other."""
        self.content["security"] = {"folder": str(self.folder)} | security
        cluster = self.cluster
        cluster.local.file.write_text(yaml.safe_dump(self.content))
        cluster.local = LocalCluster(ClusterConfig.load(str(cluster.local.file)), cluster.data)
        for node in NODES:
            process = cluster.processes[node.name]
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0
            cluster.start(node.name)

    def shown(self, node_id: str) -> x509.Certificate:
        """The certificate that a new connection is shown."""
        host, port = self.cluster.config.node(node_id).node.address.split(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((host, int(port)), LIMIT_S) as plain, context.wrap_socket(plain) as connection:
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found)

    def warnings(self) -> list[str]:
        return [text for node in self.cluster.statuses().values() for text in node.warnings]


def refused(bootstrap: str, **security: Any) -> DledgerError:
    with pytest.raises(DledgerError) as error, PullConsumer(bootstrap, timeout_ms=LIMIT_MS, **security) as consumer:
        consumer.topic(TOPIC)
    return error.value


def test_tls_then_users_then_other_certificates(make_cluster: Any, tmp_path: Path) -> None:
    cluster: Cluster = make_cluster()
    cluster.start()
    cluster.cli_ok("topic", "create", TOPIC, "--queues", "1")
    secured, traffic = Secured(cluster, tmp_path / "certs"), Traffic(cluster.bootstrap)
    ca = str(secured.folder / "ca.crt")
    traffic.start()
    try:
        tls_comes(secured, traffic, ca)
        users_come(secured, traffic, ca)
        certificates_are_replaced(secured, traffic)
    finally:
        traffic.stop()
    assert not traffic.errors
    expected = [b"%d" % number for number in range(traffic.sent)]
    with PullConsumer(cluster.bootstrap, user="admin", password_file=str(secured.folder / "password"), tls=ca) as consumer:
        while len(traffic.read) < len(expected):
            traffic.read += [each.body for each in consumer.fetch(TOPIC, queue_id=0, offset=len(traffic.read), max_messages=1000)]
    assert traffic.read == expected


def tls_comes(secured: Secured, traffic: Traffic, ca: str) -> None:
    tls = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
    secured.roll(tls=tls | {"step": "offer"})
    traffic.goes_on()
    assert all("takes plaintext (security.tls.step offer)" in text for text in secured.warnings())
    traffic.become(tls=ca)
    secured.roll(tls=tls | {"step": "use"})
    traffic.goes_on()
    traffic.become()  # a client that is not changed yet
    texts = secured.warnings()
    assert len(texts) == 3
    assert all("takes plaintext (security.tls.step use)" in text for text in texts)
    assert any(not text.endswith(": 0 connections since the start") for text in texts)
    assert "plaintext is accepted: security.tls.step is use" in secured.cluster.log_text("n0")
    traffic.become(tls=ca)
    secured.roll(tls=tls)
    traffic.goes_on()
    assert secured.warnings() == []
    refused(secured.cluster.bootstrap)
    wait_until(
        lambda: "refused: no TLS connection" in "".join(secured.cluster.log_text(node.name) for node in NODES), "no line of the refusal"
    )


def users_come(secured: Secured, traffic: Traffic, ca: str) -> None:
    tls = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
    administrators = {"admin": verifier_text(password_verifier("admin", TYPED))}
    secured.roll(tls=tls, users={"required": False, "administrators": administrators})
    traffic.goes_on()
    traffic.become(tls=ca, user="admin", password_file=str(secured.folder / "password"))
    secured.roll(tls=tls, users={"administrators": administrators})
    traffic.goes_on()
    assert isinstance(refused(secured.cluster.bootstrap, tls=ca), AuthenticationFailedError)


def certificates_are_replaced(secured: Secured, traffic: Traffic) -> None:
    pids = {name: process.pid for name, process in secured.cluster.processes.items()}
    newer = new_authority("newer authority")
    secured.put("ca.crt", secured.authority.certificate + newer.certificate)
    before = secured.shown("n0").serial_number
    for node in NODES:
        secured.put_pair(node.name, issue(newer, node, ["127.0.0.1"], days=5 if node.name == "n1" else 100))
    issuer = x509.load_pem_x509_certificate(newer.certificate).subject
    wait_until(lambda: all(secured.shown(node.name).issuer == issuer for node in NODES), "an old certificate is shown")
    assert secured.shown("n0").serial_number != before
    secured.put("ca.crt", newer.certificate)
    traffic.goes_on()
    wait_until(lambda: secured.warnings() == ["its certificate expires in 4 days"], lambda: str(secured.warnings()))
    assert "its certificate expires in 4 days" in secured.cluster.cli_ok("status")

    good = (secured.folder / "n2.key").read_bytes()
    shown = secured.shown("n2").serial_number
    secured.put("n2.key", b"junk")
    wait_until(
        lambda: secured.shown("n2").serial_number == shown and "the old ones remain in use" in secured.cluster.log_text("n2"),
        "a broken key was not told of",
    )
    secured.put("n2.key", good)
    traffic.become(**traffic._security)  # new connections, everything anew
    assert pids == {name: process.pid for name, process in secured.cluster.processes.items() if process.poll() is None}
