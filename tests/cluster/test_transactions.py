"""Transactions on real processes: the producer is killed between half message and commit, the master at any moment; the check decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dledger_client import Admin, Message, TransactionProducer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_MS, wait_until

# Asked so often that none is parked because the machine keeps its producer from answering for some seconds.
QUICK = {"broker": {"transactionTimeOut": "400ms", "transactionCheckInterval": "400ms", "transactionCheckMax": 1000}}

# Stores a half message, says so, and would commit it a minute later.
DYING = """
import sys, time
from dledger_client import Message, TransactionProducer, TransactionState
def slowly(message, argument):
    print("local transaction", flush=True)
    time.sleep(600)
    return TransactionState.COMMIT
with TransactionProducer(sys.argv[1], "shop", lambda message: TransactionState.UNKNOWN) as producer:
    producer.send_in_transaction(Message("t", b"of the dead"), slowly)
"""


def start_dying(bootstrap: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", DYING, bootstrap], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().strip() == "local transaction"
    return process


def test_every_transaction_is_published_once_or_never_whoever_is_killed(make_cluster: Callable[..., Cluster]) -> None:
    """docs/reference/semantics, row X1."""
    cluster = make_cluster(settings=QUICK)
    cluster.start()
    decided = {b"of the dead": TransactionState.COMMIT}  # the application's database
    decided |= {b"%d" % number: TransactionState.ROLLBACK if number % 4 == 0 else TransactionState.COMMIT for number in range(150)}
    asked: Counter[bytes] = Counter()

    def check(message: ReceivedMessage) -> TransactionState:
        asked[message.body] += 1
        return decided[message.body]

    dying = None
    try:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", queues=1)
        dying = start_dying(cluster.bootstrap)
        dying.send_signal(signal.SIGKILL)
        with TransactionProducer(cluster.bootstrap, "shop", check, send_timeout_ms=LIMIT_MS) as producer:

            def transact(number: int) -> None:
                body = b"%d" % number
                if number % 10 == 1:
                    producer.prepare(Message("t", body))  # its end is left to the check
                else:
                    producer.send_in_transaction(Message("t", body), lambda message, _: decided[message.body])

            with ThreadPoolExecutor(8) as pool:
                for first in (0, 50, 100):
                    work = [pool.submit(transact, number) for number in range(first, first + 50)]
                    if first:
                        victim = cluster.leader()
                        cluster.kill(victim)
                        cluster.start(victim, wait=False)
                    for each in work:
                        each.result()
            with Admin(cluster.bootstrap) as admin:
                wait_until(lambda: not admin.transactions()[0].open, "every transaction has ended")
            (told,) = json.loads(cluster.cli_ok("transaction", "list", "--json"))["groups"]
            assert (told["open"], told["parked"], told["attending"]) == (0, 0, {"shop": 1})
        wanted = sorted(body for body, state in decided.items() if state is TransactionState.COMMIT)
        assert sorted(cluster.consume("t", 1000)) == wanted
        assert asked[b"of the dead"] >= 1
    finally:
        if dying is not None:
            dying.kill()
            dying.wait()


def test_the_command_line_ends_transactions_in_place_of_their_producers(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={"broker": {"transactionTimeOut": "600s"}})
    cluster.start()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", queues=1)
        with TransactionProducer(cluster.bootstrap, "shop", lambda _: TransactionState.UNKNOWN, send_timeout_ms=LIMIT_MS) as producer:
            opened = [producer.prepare(Message("t", body)).half.msg_id for body in (b"yes", b"no")]
        assert cluster.cli("transaction", "commit", "A" * 32, "--yes").returncode == 1
        for _ in range(2):  # the second time as after an answer that was lost
            cluster.cli_ok("transaction", "commit", opened[0], "--yes")
        cluster.cli_ok("transaction", "rollback", opened[1], "--yes")
        too_late = cluster.cli("transaction", "rollback", opened[0], "--yes")
        assert (too_late.returncode, "committed" in too_late.stderr) == (1, True)
    assert cluster.consume("t", 10) == [b"yes"]


def test_the_message_of_a_parked_transaction_is_sent_once(make_cluster: Callable[..., Cluster]) -> None:
    quick = {"transactionTimeOut": "300ms", "transactionCheckInterval": "300ms", "transactionCheckMax": 1}
    cluster = make_cluster(settings={"broker": quick})
    cluster.start()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", queues=1)
        with TransactionProducer(cluster.bootstrap, "shop", lambda _: TransactionState.UNKNOWN, send_timeout_ms=LIMIT_MS) as producer:
            message = Message("t", b"late", keys="o-1", tags="paid", properties={"shop": "7"})
            transaction_id = producer.prepare(message).half.msg_id
            wait_until(lambda: admin.transactions()[0].parked, "the transaction is parked")
        rolled_back = cluster.cli("transaction", "rollback", transaction_id, "--yes")
        assert (rolled_back.returncode, "parked, so its message is never delivered" in rolled_back.stderr) == (0, True)
        for _ in range(2):
            told = json.loads(cluster.cli_ok("transaction", "commit", transaction_id, "--yes", "--json"))
            assert told == {"transaction_id": transaction_id, "outcome": "committed"}
        (sent,) = admin.query_by_key("t", "o-1").messages
        assert (sent.body, sent.tags, sent.properties["shop"]) == (b"late", "paid", "7")
    assert cluster.consume("t", 10) == [b"late"]
