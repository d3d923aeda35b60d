"""What clients that go on trying say in the log while their cluster is away, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dledger_client.aio import TransactionState
from tests.unit.client.push_rig import Group, numbers, send
from tests.unit.client.sim_rig import Rig, until


def kill_all(rig: Rig) -> None:
    for node_id in rig.cluster.hosts:
        rig.cluster.kill(node_id)


def said(caplog: pytest.LogCaptureFixture, client: str) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if text.startswith(client)]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_whose_cluster_is_away_says_so_once_and_when_it_goes_on(orderly: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 5)
        group = Group(rig, orderly=orderly)
        await group.start("a")
        await until(lambda: len(group.seen) == 5)
        caplog.clear()
        kill_all(rig)
        await asyncio.sleep(20)
        (away,) = said(caplog, "consumer group g: ")
        assert all(host.address in away for host in rig.cluster.hosts.values()), away
        rig.cluster.start_all()
        await until(lambda: rig.cluster.master() is not None)
        await send(rig, 5, first=5)
        await until(lambda: set(numbers(10)) <= set(group.bodies()))
        await until(lambda: len(said(caplog, "consumer group g: ")) > 1)
        (_, again) = said(caplog, "consumer group g: ")
        assert "is reached again after 2" in again
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)


def test_a_failover_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        await group.start("a")
        await until(lambda: group.share("a") == [0])
        await rig.restart(rig.master)
        await send(rig, 5)
        await until(lambda: len(group.seen) >= 5)
        await group.stop()
        assert said(caplog, "consumer group g: ") == []

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)


def test_a_cluster_that_comes_and_goes_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        await group.start("a")
        await until(lambda: group.share("a") == [0])
        for _ in range(3):
            kill_all(rig)
            await asyncio.sleep(8)
            rig.cluster.start_all()
            await until(lambda: rig.cluster.master() is not None)
            await asyncio.sleep(4)
        assert len(said(caplog, "consumer group g: ")) == 2  # of the first time: away, and back
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)


def test_a_transaction_producer_whose_cluster_is_away_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.transactions(lambda _: TransactionState.COMMIT, "payments") as producer:
            producer.start()
            await asyncio.sleep(3)
            kill_all(rig)
            await asyncio.sleep(10)
            (away,) = said(caplog, "transaction producers payments: ")
            assert all(host.address in away for host in rig.cluster.hosts.values()), away
            rig.cluster.start_all()
            await until(lambda: len(said(caplog, "transaction producers payments: ")) == 2)

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)
