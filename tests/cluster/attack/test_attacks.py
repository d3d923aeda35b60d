"""What a stranger, a user and a node of elsewhere try on a secured cluster: forged messages, replays, downgrades, floods."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dledger.core.messages import Heartbeat, VoteRequest
from dledger.core.messages import Message as RaftMessage
from dledger.core.types import EntryId
from dledger.transport import codec
from dledger_client import Message, Producer
from dledger_wire._pb import broker_pb2, raft_pb2
from dledger_wire.batches.batch import Sequence64
from dledger_wire.rpc import envelope, methods
from dledger_wire.security import principal
from dledger_wire.security.certificates import new_authority
from tests.cluster.attack import by_hand
from tests.cluster.attack.by_hand import AUTHENTICATION, NO_RECEIVER, Connection, Identity
from tests.cluster.attack.requests import batch
from tests.cluster.attack.secured_cluster import (
    ALICE,
    CLUSTER,
    GROUP,
    MALLORY,
    PASSWORDS,
    PRODUCER,
    SECRETS,
    TOPIC,
    TRENT,
    Secured,
)
from tests.waiting import wait_until

FAR = 1_000  # terms that no node reaches by itself in a test


def kept_of_peers(secured: Secured) -> dict[str, str]:
    """What each node keeps of its peers."""
    return {node: (secured.cluster.data / node / "peers.json").read_text() for node in secured.cluster.local.all_ids()}


def highest_term(secured: Secured) -> int:
    return max(node.term for node in secured.cluster.statuses().values())


# Raft and copies


def link(secured: Secured, identity: Identity, name: str, *messages: RaftMessage, to: str = "") -> list[by_hand.Said]:
    """Open a link as node ``name`` to the leader and send what it would."""
    leader = secured.cluster.leader()
    hello = raft_pb2.LinkHello(node_id=name, store_id="0" * 32, configuration=1 << 40, term=FAR, last_index=1 << 40, starts=1 << 40)
    metadata = {
        "dledger-cluster": CLUSTER,
        "dledger-group": "g0",
        "dledger-node": name,
        "dledger-hello": hello.SerializeToString().hex(),
        "dledger-address": "127.0.0.1:1",
        "dledger-to": to or leader,
    }
    sent = [codec.encode(message) for message in messages]
    return by_hand.stream(secured.address, secured.ca, identity, methods.RAFT_LINK.path, *sent, metadata=metadata)


def test_forged_raft_messages_change_no_term_vote_or_peer(secured: Secured) -> None:
    leader = secured.cluster.leader()
    member = next(node for node in secured.cluster.local.all_ids() if node != leader)
    term, peers = highest_term(secured), kept_of_peers(secured)
    forged: list[RaftMessage] = [
        Heartbeat(term=term, commit=0, round=1, newest_commit=0),
        Heartbeat(term=term + FAR, commit=0, round=1, newest_commit=0),
        VoteRequest(term=term + FAR, last=EntryId(1 << 40, term + FAR), transfer=True),
        Heartbeat(term=(1 << 63) - 1, commit=0, round=1, newest_commit=0),
    ]
    other = next(node for node in secured.cluster.local.all_ids() if node not in (leader, member))
    callers = {
        "nobody": (NO_RECEIVER, member),
        "an administrator": (Identity(user="admin", password=SECRETS[0]), member),
        "a user": (MALLORY, member),
        "another authority's member": (
            secured.certificate(principal.node(CLUSTER, "g0", member), "evil", new_authority(CLUSTER)),
            member,
        ),
        "a node of another cluster": (secured.certificate(principal.node("other", "g0", member), "other"), member),
        "a node of another group": (secured.certificate(principal.node(CLUSTER, "g1", member), "g1"), member),
        "a removed member": (secured.certificate(principal.node(CLUSTER, "g0", "n9"), "n9"), "n9"),
        "a spare node": (secured.certificate(principal.node(CLUSTER, "-", "s9"), "s9"), "s9"),
        "a spare node under a member's name": (Identity(secured.folder / "s9"), member),
        "a member under another's name": (Identity(secured.folder / other), member),
    }
    for who, (identity, name) in callers.items():
        codes = {each.code for message in forged for each in link(secured, identity, name, message)}
        assert codes <= {"PERMISSION_DENIED", "UNAUTHENTICATED", "CLOSED"}, f"{who}: {codes}"
    assert highest_term(secured) < term + FAR
    assert kept_of_peers(secured) == peers
    told = secured.log_text()
    for name in ("node n9 of replica group g0", "spare node s9", f"node {member} of replica group g1"):
        assert f"refused: {name}" in told


def test_a_member_s_own_certificate_cannot_stop_a_node_or_bend_its_term(secured: Secured) -> None:
    """A member that was taken over, on another folder: what it says contradicts what the group knows of it."""
    leader = secured.cluster.leader()
    member = next(node for node in secured.cluster.local.all_ids() if node != leader)
    term, peers = highest_term(secured), kept_of_peers(secured)
    for message in (
        Heartbeat(term=term, commit=0, round=1, newest_commit=0),
        Heartbeat(term=(1 << 63) - 1, commit=0, round=1, newest_commit=0),
        VoteRequest(term=(1 << 63) - 1, last=EntryId(1 << 62, 1 << 62), transfer=True),
    ):
        assert all(each.code or each.kind == by_hand.MESSAGE for each in link(secured, Identity(secured.folder / member), member, message))
    secured.cluster.wait_healthy()
    assert highest_term(secured) < term + FAR
    assert kept_of_peers(secured) == peers


def test_a_removed_member_is_out_and_comes_back_when_it_is_added_again(secured: Secured) -> None:
    cluster = secured.cluster
    victim = next(node for node in cluster.local.all_ids() if node != cluster.leader())
    certificate, address = Identity(secured.folder / victim), cluster.config.node(victim).node.address
    assert secured.call(certificate, methods.FETCH_ENTRY, replicated("g0")).code != "PERMISSION_DENIED"
    cluster.cli_ok("member", "remove", "--id", victim, "--yes")
    refusal = f"refused: node {victim} of replica group g0 of cluster {CLUSTER} is no member"
    wait_until(lambda: refusal in secured.log_text(), "its links are refused by name")
    term = highest_term(secured)
    for message in (
        Heartbeat(term=term + FAR, commit=0, round=1, newest_commit=0),
        VoteRequest(term=term + FAR, last=EntryId(1 << 40, term)),
    ):
        assert {each.code for each in link(secured, certificate, victim, message)} == {"PERMISSION_DENIED"}
    for method in (methods.FETCH_ENTRY, methods.COPY_PLAN, methods.COPY_STATE):
        asked = replicated("g0") if method is methods.FETCH_ENTRY else method.request(cluster=CLUSTER, group="g0")
        assert secured.call(certificate, method, asked).code == "PERMISSION_DENIED"
    assert highest_term(secured) < term + FAR
    cluster.cli_ok("member", "add", "--id", victim, "--address", address)
    wait_until(lambda: not cluster.cli("member", "promote", "--id", victim).returncode, lambda: cluster.log_text(victim))
    cluster.wait_healthy()
    cluster.wait_equal()


def replicated(group: str) -> raft_pb2.EntryRequest:
    """A request for the first entry of the log."""
    return raft_pb2.EntryRequest(cluster=CLUSTER, group=group, entry=raft_pb2.EntryIdentity(index=1, term=1))


# Authentication


def test_a_recorded_exchange_is_worth_nothing(secured: Secured) -> None:
    recorded = Recorded(secured, ALICE)
    for replayed in (recorded.first, recorded.first):
        with Connection(secured.address, secured.ca) as connection:
            connection.send(replayed)
            assert connection.read().kind == AUTHENTICATION  # another nonce of the server
            connection.send(recorded.final)
            assert connection.read().code == "UNAUTHENTICATED"


class Recorded:
    """The bytes that a user sent to come in, and what it was answered."""

    def __init__(self, secured: Secured, identity: Identity) -> None:
        sent: list[bytes] = []
        with Connection(secured.address, secured.ca, identity) as connection:
            send = connection.send

            def record(data: bytes) -> None:
                sent.append(data)
                send(data)

            connection.send = record  # type: ignore[method-assign]
            assert connection.open({"calls": True}) is None
        self.first, self.final = sent


def opening(auth: object) -> bytes:
    packed = json.dumps({"calls": True, "auth": auth}).encode()
    return b"DLTP" + struct.pack(">I", len(packed)) + packed


def test_what_the_server_said_is_no_proof(secured: Secured) -> None:
    """Its own messages sent back to it."""
    with Connection(secured.address, secured.ca) as connection:
        connection.send(opening({"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdefgh"}))
        challenge = connection.read()
        assert challenge.kind == AUTHENTICATION
        connection.send_frame(AUTHENTICATION, challenge.payload)
        assert connection.read().code == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "auth",
    [
        {"mechanism": "PLAIN", "message": "n,,n=alice,r=abcdefgh"},
        {"mechanism": "SCRAM-SHA-1", "message": "n,,n=alice,r=abcdefgh"},
        {"mechanism": "SCRAM-SHA-256-PLUS", "message": "p=tls-unique,,n=alice,r=abcdefgh"},
        {"mechanism": "SCRAM-SHA-256", "message": "p=tls-unique,,n=alice,r=abcdefgh"},
        {"mechanism": "SCRAM-SHA-256", "message": "n,a=admin,n=alice,r=abcdefgh"},
        {"mechanism": "SCRAM-SHA-256", "message": "n,,m=ext,n=alice,r=abcdefgh"},
        {"mechanism": "SCRAM-SHA-256", "message": "n,,n=,r="},
        {"mechanism": "SCRAM-SHA-256", "message": "n,,n=\x00alice,r=\x1b[31m"},
        {"mechanism": "SCRAM-SHA-256", "message": "n" * 40_000},
        {"mechanism": "SCRAM-SHA-256", "message": ["n,,n=alice,r=abcdefgh"]},
        {"mechanism": "SCRAM-SHA-256"},
        {},
        [],
        "",
        0,
        False,
    ],
    ids=lambda auth: repr(auth)[:60],
)
def test_an_odd_opening_does_not_come_in(secured: Secured, auth: object) -> None:
    with Connection(secured.address, secured.ca) as connection:
        connection.send(opening(auth))
        said = connection.read()
        if said.kind == AUTHENTICATION:  # a challenge that nothing answers
            connection.send_frame(AUTHENTICATION, b"c=biws,r=x,p=x")
            said = connection.read()
        assert said.code in ("UNAUTHENTICATED", "CLOSED")


def test_nothing_is_served_before_the_proof(secured: Secured) -> None:
    with Connection(secured.address, secured.ca) as connection:
        connection.send(opening({"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdefgh"}))
        assert connection.read().kind == AUTHENTICATION
        said = connection.call(methods.LIST_TOPICS.path, b"")
        assert said.code in ("UNAUTHENTICATED", "CLOSED")


def test_whether_there_is_a_user_is_not_told(secured: Secured) -> None:
    def told(name: str) -> tuple[list[str], str, int]:
        with Connection(secured.address, secured.ca) as connection:
            connection.send(opening({"mechanism": "SCRAM-SHA-256", "message": f"n,,n={name},r=abcdefgh"}))
            challenge = connection.read().payload.decode()
            fields = dict(part.split("=", 1) for part in challenge.split(","))
            proof = base64.b64encode(bytes(32)).decode()
            connection.send_frame(AUTHENTICATION, f"c=biws,r={fields['r']},p={proof}".encode())
            said = connection.read()
            return [fields["s"], fields["i"]], said.text.replace(name, "NAME"), len(base64.b64decode(fields["s"]))

    (salt, *_), known, size = told("alice")
    assert told("alice")[0][0] == salt
    (other_salt, *_), unknown, other_size = told("nobody-of-that-name")
    assert told("nobody-of-that-name")[0][0] == other_salt  # a salt that changed would tell that it was made up
    assert (known, size) == (unknown, other_size)


def test_tls_before_1_3_is_not_spoken(secured: Secured) -> None:
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        Connection(secured.address, secured.ca, newest=ssl.TLSVersion.TLSv1_2) as connection,
    ):
        connection.send_opening({"calls": True})


@pytest.mark.parametrize(("begin", "end"), [(-20, -10), (10, 20)], ids=["expired", "not yet valid"])
def test_a_certificate_out_of_its_time_is_none(secured: Secured, begin: int, end: int) -> None:
    owner = principal.node(CLUSTER, "g0", "n1")
    days = datetime.timedelta(days=begin), datetime.timedelta(days=end)
    identity = secured.certificate_of_time(owner, f"times{begin}", *days)
    said = by_hand.call(secured.address, secured.ca, identity, methods.WATCH_SECURITY.path, b"")
    assert said.code == "CLOSED"


# What belongs to others


def producer_of(secured: Secured, identity: Identity, stable_id: str = "", producer_id: int = 0) -> by_hand.Said:
    return secured.call(identity, methods.INIT_PRODUCER, methods.INIT_PRODUCER.request(stable_id=stable_id, producer_id=producer_id))


def produced(secured: Secured, identity: Identity, *batches: bytes) -> list[str]:
    """The error of each batch, empty when it was stored."""
    request = envelope.encode(methods.PRODUCE.request(request_id=1), batches)
    [said] = by_hand.stream(secured.address, secured.ca, identity, methods.PRODUCE.path, request)
    assert not said.code, said.text
    return [str(result.error.code) for result in methods.PRODUCE.response.FromString(said.payload).results]


@pytest.mark.parametrize("stable_id", [PRODUCER, ""], ids=["with a name", "without a name"])
def test_another_s_producer_is_neither_fenced_nor_spoken_for(secured: Secured, stable_id: str) -> None:
    said = producer_of(secured, ALICE, stable_id=stable_id)
    assert not said.code, said.text
    made = broker_pb2.InitProducerResponse.FromString(said.payload[8:])
    assert produced(secured, ALICE, batch(TOPIC, sequence=Sequence64(made.producer_id, made.epoch, 0))) == [""]
    for attacker in (MALLORY, TRENT):
        assert producer_of(secured, attacker, producer_id=made.producer_id).code == "PERMISSION_DENIED"
        assert producer_of(secured, attacker, producer_id=made.producer_id, stable_id=PRODUCER).code == "PERMISSION_DENIED"
    for epoch, first in ((made.epoch, 1), (made.epoch + 1, 0), (made.epoch, 0)):
        forged = batch("trents-topic", sequence=Sequence64(made.producer_id, epoch, first))
        assert produced(secured, TRENT, forged) == ["PERMISSION_DENIED"]
    assert produced(secured, ALICE, batch(TOPIC, sequence=Sequence64(made.producer_id, made.epoch, 1))) == [""]


@pytest.mark.parametrize(
    "topic",
    [TOPIC, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "RMQ_SYS_wheel", "TRANS_CHECK_MAX_TIME_TOPIC", "victims-order", "victims-orders*", "*"],
)
def test_rights_on_one_topic_are_none_on_another(secured: Secured, topic: str) -> None:
    [code] = produced(secured, TRENT, batch(topic))
    assert code == "PERMISSION_DENIED"
    request = methods.FETCH.request(topic=topic, max_messages=1, max_bytes=1000).SerializeToString()
    [said] = by_hand.stream(secured.address, secured.ca, TRENT, methods.FETCH.path, request)
    assert b"PERMISSION_DENIED" in said.payload
    for method in (methods.CREATE_TOPIC, methods.UPDATE_TOPIC, methods.DELETE_TOPIC):
        assert secured.call(TRENT, method, method.request(name=topic)).code == "PERMISSION_DENIED"


def parked(topic: str, group: str) -> bytes:
    """The properties of a half message for ``topic`` of the producers ``group``."""
    pairs = [("UNIQ_KEY", "7" * 32), ("TRAN_MSG", "true"), ("PGROUP", group), ("REAL_TOPIC", topic), ("REAL_QID", "0")]
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        (TOPIC, "trents-producers", "PERMISSION_DENIED"),
        ("trents-topic", GROUP, "PERMISSION_DENIED"),
        ("trents-topic", "trents-producers", ""),
    ],
    ids=["to another's topic", "of another's producers", "of one's own"],
)
def test_a_transaction_needs_rights_on_its_topic_and_on_its_producers(secured: Secured, topic: str, group: str, code: str) -> None:
    place = "RMQ_SYS_TRANS_HALF_TOPIC"
    properties = parked(topic, group)
    assert produced(secured, TRENT, batch(place, properties=properties)) == [code]


# Floods


@pytest.fixture
def writing(secured: Secured) -> Iterator[list[str]]:
    """A producer that sends all the while; what failed."""
    failed: list[str] = []
    sent = [0]
    over = threading.Event()

    def send() -> None:
        with Producer(secured.cluster.bootstrap) as producer:
            while not over.is_set():
                try:
                    producer.send(Message(TOPIC, b"all the while"))
                    sent[0] += 1
                except Exception as error:
                    failed.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield failed
        before = sent[0]
        wait_until(lambda: sent[0] > before, "messages are stored")
    finally:
        over.set()
        thread.join()
    assert failed == []


def resident_mb(secured: Secured) -> float:
    process = secured.cluster.processes[secured.cluster.leader()]
    return float(psutil.Process(process.pid).memory_info().rss) / (1 << 20)


def plain_socket(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it, without waiting."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


def test_who_says_nothing_or_says_it_slowly_is_closed_and_costs_nothing(secured: Secured, writing: list[str]) -> None:
    address, before = secured.address, resident_mb(secured)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(plain_socket(address)) for _ in range(300)]  # no TLS handshake
        for silent in idle[::2]:
            silent.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the first bytes of one
        shaken = [stack.enter_context(Connection(address, secured.ca)) for _ in range(50)]  # the handshake, and then nothing
        for connection, begun in zip(shaken, (b"", b"D", b"DLTP\x00\x00\x10\x00{", b"PRI * HT", b"DLTP\x00"), strict=False):
            connection.send(begun)
        half = [stack.enter_context(Connection(address, secured.ca)) for _ in range(20)]
        for connection in half:
            connection.send(opening({"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdefgh"}))
        everything = [*idle, *(each.socket for each in (*shaken, *half))]
        wait_until(lambda: all(map(is_closed, everything)), "the node closes what says nothing", limit_s=60)
    assert resident_mb(secured) < before + 100


@pytest.mark.parametrize("length", [(64 << 10) + 1, 64 << 20, (1 << 32) - 1])
def test_what_is_claimed_before_anybody_is_known_is_closed_and_not_kept(secured: Secured, writing: list[str], length: int) -> None:
    address, before = secured.address, resident_mb(secured)
    for head in (b"DLTP" + struct.pack(">I", length), None):
        for _ in range(20):
            with Connection(address, secured.ca) as connection, contextlib.suppress(ConnectionError, ssl.SSLError):
                if head is None:
                    connection.send(opening({"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=abcdefgh"}))
                    assert connection.read().kind == AUTHENTICATION
                    connection.send(struct.pack(">BI", AUTHENTICATION, length) + b"x" * 1000)
                else:
                    connection.send(head + b"x" * 1000)
                assert connection.read().code == "CLOSED"
    assert resident_mb(secured) < before + 100


def test_a_thousand_connections_and_a_hundred_wrong_passwords_leave_nothing(secured: Secured, writing: list[str]) -> None:
    address, before = secured.address, resident_mb(secured)
    process = psutil.Process(secured.cluster.processes[secured.cluster.leader()].pid)
    handles = process.num_fds()
    for number in range(1_000):
        with plain_socket(address) as connection:
            if number % 2:
                connection.sendall(b"\x16\x03\x01")
    for number in range(100):
        wrong = Identity(user=f"user{number % 3}", password="wrong")
        assert by_hand.call(address, secured.ca, wrong, methods.LIST_TOPICS.path, b"").code == "UNAUTHENTICATED"
    wait_until(lambda: process.num_fds() <= handles + 20, lambda: f"{process.num_fds()} handles, {handles} before", limit_s=60)
    assert resident_mb(secured) < before + 100


# Secrets


def test_no_secret_can_be_seen(secured: Secured) -> None:
    """In logs, in the process list, in what the cluster tells an administrator, in what is refused."""
    shown = [secured.log_text(), secured.cluster.cli_ok("status", "--json"), secured.cluster.cli_ok("user", "list")]
    for process in secured.cluster.processes.values():
        seen = psutil.Process(process.pid)
        shown += [" ".join(seen.cmdline()), " ".join(seen.environ().values())]
    for method in (methods.LIST_USERS, methods.LIST_RULES, methods.NODE_STATUS):
        shown.append(str(secured.asked(method)))
    shown.append(by_hand.call(secured.address, secured.ca, Identity(user="alice", password="x" + PASSWORDS["alice"]), "/x", b"").text)
    shown.append(secured.call(MALLORY, methods.DELETE_TOPIC, methods.DELETE_TOPIC.request(name=TOPIC)).text)
    for name, password in PASSWORDS.items():
        by_hand.call(secured.address, secured.ca, Identity(user=name, password=password), "/x", b"")
    hidden = [*SECRETS, *by_hand.SEEN]
    for key in secured.folder.glob("*.key"):
        hidden.append(key.read_text().splitlines()[1])
    assert [(secret, text[:200]) for secret in hidden for text in shown if secret in text] == []


def test_a_crash_leaves_no_memory_behind(secured: Secured) -> None:
    for process in secured.cluster.processes.values():
        assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_CORE) == (0, 0)
        assert int(Path(f"/proc/{process.pid}/coredump_filter").read_text(), 16) == 0
