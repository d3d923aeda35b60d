"""Messages acknowledged one by one on real processes, the leader killed under load: each comes, none after its acknowledgement."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict

from dledger_client.aio import LeasedMessage, Message, Producer, SimpleConsumer
from dledger_wire.errors import DeadlineExceededError, NotLeaderError, NotReadyError, OutcomeUnknownError, UnreachableError
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_S

COUNT, CONSUMERS = 1_000, 8


class Account:
    """By body: the leases with which it was delivered, and the one whose acknowledgement was answered."""

    def __init__(self) -> None:
        self.delivered: dict[bytes, list[int]] = defaultdict(list)
        self.acknowledged: dict[bytes, int] = {}
        self.doubtful: set[bytes] = set()  # the acknowledgement was asked for, and not answered at once

    async def consume(self, bootstrap: str) -> None:
        async with SimpleConsumer(bootstrap, "g", "t", invisible_s=3) as consumer:
            while len(self.acknowledged.keys() | self.doubtful) < COUNT:
                got: list[LeasedMessage] = []
                with contextlib.suppress(NotLeaderError, NotReadyError, OutcomeUnknownError, UnreachableError, DeadlineExceededError):
                    got = await consumer.receive(16, wait_s=1)
                    for leased in got:
                        self.delivered[leased.body].append(leased.lease)
                    self._settled(got, await consumer.ack(got))
                    got = []
                self.doubtful |= {leased.body for leased in got}

    def _settled(self, got: list[LeasedMessage], late: list[LeasedMessage]) -> None:
        self.doubtful |= {leased.body for leased in late}
        for leased in got:
            if leased not in late:
                assert leased.body not in self.acknowledged, "two leases counted"
                self.acknowledged[leased.body] = leased.lease


async def produce_and_consume(bootstrap: str, account: Account) -> None:
    async with asyncio.timeout(LIMIT_S), Producer(bootstrap, "p") as producer, asyncio.TaskGroup() as group:
        for _ in range(CONSUMERS):
            group.create_task(account.consume(bootstrap))
        for number in range(COUNT):
            await producer.send(Message("t", b"%d" % number))


def test_acknowledged_messages_do_not_come_again_when_the_leader_is_killed(cluster: Cluster) -> None:
    """docs/reference/semantics, row B5."""
    cluster.cli_ok("topic", "create", "t", "--queues", "2")
    account = Account()
    killing = threading.Timer(1.0, lambda: cluster.kill(cluster.leader()))
    killing.start()
    try:
        asyncio.run(produce_and_consume(cluster.bootstrap, account))
    finally:
        killing.join()
    assert set(account.delivered) == {b"%d" % number for number in range(COUNT)}
    for body, lease in account.acknowledged.items():
        assert max(account.delivered[body]) == lease, f"{body!r} came again after it was acknowledged"
    assert len(account.acknowledged) > COUNT * 0.9
