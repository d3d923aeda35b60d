"""TLS and users from nothing, with real processes: commands and Python clients through the whole story, and what the refused are told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dledger_client import (
    Action,
    Admin,
    AuthenticationFailedError,
    DledgerError,
    Message,
    PermissionDeniedError,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    TlsSettings,
    TransactionOutcome,
    TransactionProducer,
    TransactionState,
)
from tests.cluster.secured import ADMIN, SecuredCluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

BILLING, PASSWORD = "billing", "kLm-8w2pQ7rt_secret"
TOPIC, OTHER_TOPIC = "orders", "salaries"
SOON_S = LIMIT_S / 4  # of a timeout of LIMIT_S: a refusal does not wait for it


@pytest.fixture(scope="module")
def shop(module_folder: Path) -> Iterator[SecuredCluster]:
    """Two replica groups, an administrator, and two users of the topic ``orders``: ``billing`` reads and writes it with groups of its own;
    ``reporting`` has a certificate only and reads it."""
    made = SecuredCluster(module_folder, (3, 1))
    try:
        up = made.ok("up", "--timeout", str(int(LIMIT_S)))
        assert "2 groups, 4 of 4 nodes up" in up
        for topic in (TOPIC, OTHER_TOPIC):
            made.ok("topic", "create", topic, "--queues", "2", user=ADMIN)
        Path(made.password_file(BILLING)).touch(0o600)
        Path(made.password_file(BILLING)).write_text(PASSWORD, encoding="utf-8")
        made.ok("user", "create", BILLING, "--new-password-file", made.password_file(BILLING), user=ADMIN)
        made.ok("acl", "allow", BILLING, "read,write", "--topic", f"{TOPIC}*", "--group", "billing*", user=ADMIN)
        made.ok("user", "create", "reporting", "--no-password", user=ADMIN)
        made.ok("acl", "allow", "reporting", "read", "--topic", TOPIC, "--group", "reporting", user=ADMIN)
        yield made
    finally:
        made.end()


def timed(work: Any) -> tuple[float, DledgerError]:
    """How long it took to fail, and how."""
    begun = time.monotonic()
    with pytest.raises(DledgerError) as failed:
        work()
    return time.monotonic() - begun, failed.value


def refusals(shop: SecuredCluster) -> list[str]:
    return shop.ok("audit", "tail", "--count", "1000", "--denied", "--by", BILLING, user=ADMIN).splitlines()


def test_the_story_by_commands(shop: SecuredCluster) -> None:
    before = refusals(shop)
    assert shop.ok("produce", TOPIC, user=BILLING, stdin=b"one\ntwo\n") == ""
    read = shop.ok("consume", TOPIC, "--group", "billing", "--max", "2", "--idle-exit", "60", user=BILLING)
    assert sorted(read.split()) == ["one", "two"]
    # By options in place of variables, at an address in place of the cluster file, with a certificate in place of a password.
    options = ("--user", BILLING, "--password-file", shop.password_file(BILLING), "--tls-ca", shop.ca)
    result = shop.cli("topic", "list", "--json", "--bootstrap", shop.bootstrap, *options, env={"DLEDGER_CONFIG": ""})
    assert [row["name"] for row in json.loads(result.stdout)["topics"]] == [TOPIC], result.stderr
    assert refusals(shop) == before, "what a user may do leaves no refusal in the audit log"
    certificate = ("--tls-cert", "certs/user-reporting.crt", "--tls-key", "certs/user-reporting.key")
    read = shop.ok("consume", TOPIC, "--group", "reporting", "--max", "2", "--idle-exit", "60", *certificate)
    assert sorted(read.split()) == ["one", "two"]


def test_what_a_user_may_not_see_does_not_show(shop: SecuredCluster) -> None:
    names = {row["name"] for row in json.loads(shop.ok("topic", "list", "--json", user=ADMIN))["topics"]}
    assert names >= {TOPIC, OTHER_TOPIC}
    assert {row["name"] for row in json.loads(shop.ok("topic", "list", "--json", user=BILLING))["topics"]} == {TOPIC}
    with Admin(shop.bootstrap, **shop.who(BILLING)) as admin:
        assert {topic.topic for topic in admin.list_topics()} == {TOPIC}


def test_a_refusal_names_user_action_and_resource(shop: SecuredCluster) -> None:
    assert shop.refused("topic", "describe", OTHER_TOPIC, user=BILLING) == f"user {BILLING} may not read topic {OTHER_TOPIC}"
    assert shop.refused("topic", "create", "more", user=BILLING).startswith(f"user {BILLING} may not create topic more")
    assert shop.refused("consume", TOPIC, "--group", "other", user=BILLING) == f"user {BILLING} may not describe group other"
    for command in (("status",), ("user", "list"), ("nameserver", "status")):
        assert shop.refused(*command, user=BILLING) == f"user {BILLING} may not describe the cluster"
    written = shop.cli("produce", OTHER_TOPIC, user=BILLING, stdin=b"raise\n")
    assert written.stderr.splitlines()[0] == f"dledger: line 1: user {BILLING} may not write topic {OTHER_TOPIC}"
    absent = shop.cli("produce", f"{TOPIC}-of-tomorrow", user=BILLING, stdin=b"x\n")
    assert "does not exist" in absent.stderr


def test_a_backup_takes_an_administrator(shop: SecuredCluster, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    shop.add_user("watching", "looks at what there is")
    shop.ok("acl", "allow", "watching", "describe", "--cluster", user=ADMIN)
    assert shop.refused("backup", "--to", str(place), user="watching") == "user watching may not administer the cluster"
    assert [file.name for file in place.rglob("*") if file.is_file()] == ["repository.json"]  # whose backups they are
    shop.ok("backup", "--to", str(place), user=ADMIN)
    shop.ok("verify", "--backup", str(place))


def test_who_is_not_let_in_is_told_in_one_line(shop: SecuredCluster) -> None:
    wrong = shop.folder / "wrong"
    wrong.write_text("not this\n", encoding="utf-8")
    wrong.chmod(0o600)
    for command in (("status",), ("topic", "list"), ("nameserver", "status")):
        said = shop.refused(*command, env={"DLEDGER_USER": BILLING, "DLEDGER_PASSWORD_FILE": str(wrong)})
        assert said == f"{BILLING}: wrong name or password"
    assert "expected a user with a password, or a certificate" in shop.refused("topic", "list")
    assert "speaks TLS; expected the authorities of the cluster (--tls-ca" in shop.refused(
        "topic", "list", "--bootstrap", shop.bootstrap, env={"DLEDGER_CONFIG": ""}
    )
    assert "not trusted" in shop.refused("topic", "list", "--tls-ca", "certs/user-reporting.crt", user=ADMIN)


def test_files_with_secrets_that_others_can_read_are_refused(shop: SecuredCluster) -> None:
    for file, arguments in (
        (shop.password_file(BILLING), ("--user", BILLING, "--password-file", shop.password_file(BILLING))),
        ("certs/user-reporting.key", ("--tls-cert", "certs/user-reporting.crt", "--tls-key", "certs/user-reporting.key")),
    ):
        place = shop.folder / file
        place.chmod(0o644)
        try:
            said = shop.refused("topic", "list", *arguments)
            assert f"{file}: " in said
            assert "can be read by others (mode 0644)" in said
            assert "expected mode 0600" in said
        finally:
            place.chmod(0o600)
    key = shop.folder / "certs" / "n0.key"
    key.chmod(0o604)
    try:
        said = shop.refused("node", "--check", "--config", str(shop.file), "--id", "n0", "--data", "data")
        assert "certs/n0.key: a private key can be read by others (mode 0604)" in said
    finally:
        key.chmod(0o600)


def test_python_clients_of_both_kinds_of_credentials(shop: SecuredCluster) -> None:
    with Producer(shop.bootstrap, **shop.who(BILLING)) as producer:
        result = producer.send(Message(TOPIC, b"py"))
        assert result.status is SendStatus.SEND_OK
        refused = producer.send_async(Message(OTHER_TOPIC, b"raise")).exception()
    assert isinstance(refused, PermissionDeniedError)
    assert refused.details == {"user": BILLING, "action": "write", "resource": "topic", "name": OTHER_TOPIC}
    files = TlsSettings(shop.ca, str(shop.folder / "certs/user-reporting.crt"), str(shop.folder / "certs/user-reporting.key"))
    with PullConsumer(shop.bootstrap, "reporting", tls=files, read_from="follower") as consumer:
        place = TOPIC, result.queue_id, result.queue_offset
        found = consumer.fetch(*place, replica_group=result.replica_group, linearizable=True)  # a follower may not have applied it yet
        assert found[0].body == b"py"
        with pytest.raises(PermissionDeniedError, match=f"user reporting may not read topic {OTHER_TOPIC}"):
            consumer.topic(OTHER_TOPIC)


def test_push_and_transactions(shop: SecuredCluster) -> None:
    got: list[bytes] = []
    here = threading.Event()

    def listener(messages: Any, _context: Any) -> Action:
        got.extend(message.body for message in messages)
        if b"committed" in got:
            here.set()
        return Action.COMMIT

    consumer = PushConsumer(shop.bootstrap, "billing-push", listener, **shop.who(BILLING))
    consumer.subscribe(TOPIC)
    consumer.start()
    try:
        with TransactionProducer(shop.bootstrap, "billing-tx", lambda _: TransactionState.ROLLBACK, **shop.who(BILLING)) as producer:
            rolled = producer.send_in_transaction(Message(TOPIC, b"rolled back"), lambda *_: TransactionState.ROLLBACK)
            done = producer.send_in_transaction(Message(TOPIC, b"committed"), lambda *_: TransactionState.COMMIT)
        assert (rolled.outcome, done.outcome) == (TransactionOutcome.ROLLED_BACK, TransactionOutcome.COMMITTED)
        assert here.wait(LIMIT_S)
        assert b"rolled back" not in got
    finally:
        consumer.shutdown()


def clients_of(shop: SecuredCluster, **who: Any) -> dict[str, Any]:
    """Each kind of client at its first work."""
    limit_ms = int(LIMIT_S * 1000)

    def push() -> None:
        consumer = PushConsumer(shop.bootstrap, "billing", lambda *_: Action.COMMIT, timeout_ms=limit_ms, **who)
        consumer.subscribe(TOPIC)
        try:
            consumer.start()
        finally:
            consumer.shutdown()

    def pull() -> None:
        with PullConsumer(shop.bootstrap, "billing", timeout_ms=limit_ms, **who) as consumer:
            consumer.offsets(TOPIC)

    def produce() -> None:
        with Producer(shop.bootstrap, send_timeout_ms=limit_ms, **who) as producer:
            producer.send(Message(TOPIC, b"x"))

    def transact() -> None:
        with TransactionProducer(shop.bootstrap, "billing", lambda _: TransactionState.COMMIT, send_timeout_ms=limit_ms, **who) as producer:
            producer.send_in_transaction(Message(TOPIC, b"x"), lambda *_: TransactionState.COMMIT)

    def administer() -> None:
        with Admin(shop.bootstrap, timeout_ms=limit_ms, **who) as admin:
            admin.list_topics()

    return {"push": push, "pull": pull, "produce": produce, "transact": transact, "administer": administer}


@pytest.mark.parametrize("kind", ["push", "pull", "produce", "transact", "administer"])
def test_a_wrong_password_is_one_clear_error_at_once(shop: SecuredCluster, kind: str) -> None:
    secret = "Zx9-not-the-password"
    took_s, error = timed(clients_of(shop, user=BILLING, password=secret, tls=shop.ca)[kind])
    assert type(error) is AuthenticationFailedError
    assert str(error) == f"{BILLING}: wrong name or password"
    assert took_s < SOON_S
    assert secret not in repr(error) + str(error.details)


def test_without_tls_nothing_is_said_in_the_clear(shop: SecuredCluster) -> None:
    """A client without TLS is told at once; its password was not sent."""
    with (
        pytest.raises(AuthenticationFailedError, match="speaks TLS; expected the authorities"),
        Admin(shop.bootstrap, timeout_ms=LIMIT_MS, user=ADMIN, password="x") as admin,
    ):
        admin.list_topics()


def test_no_secret_stands_anywhere(shop: SecuredCluster) -> None:
    secrets = [shop.password(user).encode() for user in (ADMIN, BILLING)]
    files = [file for file in shop.data.rglob("*") if file.is_file() and file.suffix in (".log", ".yaml", ".pid", ".jsonl")]
    assert len(files) > 4
    for file in files:
        text = file.read_bytes()
        assert not any(secret in text for secret in secrets), file
    running = shop.local().running()
    assert len(running) == 4
    for pid in running.values():
        process = psutil.Process(pid)
        shown = " ".join([*process.cmdline(), *process.environ().values()]).encode()
        assert not any(secret in shown for secret in secrets)
    with Producer(shop.bootstrap, user=BILLING, password=PASSWORD, tls=shop.ca) as producer:
        producer.send(Message(TOPIC, b"x"))
        assert PASSWORD not in repr(producer) + repr(vars(producer)) + repr(vars(producer._inner))


def test_a_password_is_changed_by_its_user(shop: SecuredCluster, tmp_path: Path) -> None:
    shop.add_user("changing", "the first password")
    file = tmp_path / "new"
    file.touch(0o600)
    file.write_text("the second password\n", encoding="utf-8")
    shop.ok("user", "update", "changing", "--new-password-file", str(file), user="changing")
    assert shop.refused("topic", "list", user="changing") == "changing: wrong name or password"
    Path(shop.password_file("changing")).write_text("the second password\n", encoding="utf-8")
    shop.ok("topic", "list", user="changing")


def test_deny_wins_and_a_deleted_user_is_out(shop: SecuredCluster) -> None:
    shop.add_user("leaving", "to be deleted soon")
    shop.ok("acl", "allow", "leaving", "write", "--topic", f"{TOPIC}*", user=ADMIN)
    with Producer(shop.bootstrap, **shop.who("leaving")) as producer:
        producer.send(Message(TOPIC, b"x"))
        shop.ok("acl", "deny", "leaving", "write", "--topic", TOPIC, user=ADMIN)
        wait_until(lambda: isinstance(producer.send_async(Message(TOPIC, b"x")).exception(), PermissionDeniedError), "denied")
        shop.ok("acl", "deny", "leaving", "write", "--topic", TOPIC, "--remove", user=ADMIN)
        wait_until(lambda: producer.send_async(Message(TOPIC, b"x")).exception() is None, "allowed again")
        shop.ok("user", "delete", "leaving", "--yes", user=ADMIN)
        wait_until(lambda: isinstance(producer.send_async(Message(TOPIC, b"x")).exception(), DledgerError), "refused")
    assert shop.refused("topic", "list", user="leaving") == "leaving: wrong name or password"


def test_status_and_down_need_no_user_beside_the_keys(shop: SecuredCluster) -> None:
    assert "4 of 4 nodes up" in shop.ok("status")
    stopped = shop.cli("down")
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stderr.count("stopped") == 4
    assert "cannot be seen" not in stopped.stderr
