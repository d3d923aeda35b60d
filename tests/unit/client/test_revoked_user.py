"""A user that is deleted, or whose password is changed, while a client of it works: the client says so, and goes on when it may again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dledger_client.aio import Message
from dledger_wire.errors import AuthenticationFailedError, DeadlineExceededError, DledgerError, NotSentError
from tests.sim.security import APPLICATION
from tests.sim.spread.users import EVERYWHERE_S, create_users
from tests.unit.client.sim_rig import CLIENT_IP, Rig

REASON = f"{APPLICATION}: wrong name or password"


async def delete_application(rig: Rig) -> None:
    async with rig.admin() as admin:
        await admin.delete_user(APPLICATION)
    await asyncio.sleep(EVERYWHERE_S)
    for listener in rig.cluster.net.listeners.values():  # as real ones do, which end the connections
        listener.callers.clear()
    for host in rig.cluster.hosts.values():
        rig.cluster.net.break_connections(CLIENT_IP, host.ip)


def test_a_producer_tells_why_its_messages_were_not_sent_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await rig.topic()
        async with rig.producer(send_timeout_ms=5000) as producer:
            await producer.send(Message("t", b"before"))
            await delete_application(rig)
            with pytest.raises((NotSentError, DeadlineExceededError), match=REASON) as first:
                await producer.send(Message("t", b"first"))
            with pytest.raises(NotSentError, match=REASON) as second:
                await producer.send(Message("t", b"second"))
            assert all(isinstance(failed.value.__cause__, AuthenticationFailedError) for failed in (first, second))
            sending = producer.send_async(Message("t", b"third"))
            await create_users(rig)
            await sending

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig(secured=True).run(scenario)
    assert len([record for record in caplog.records if REASON in record.message]) <= 2


def test_a_consumer_tells_why_nothing_is_read() -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await rig.topic()
        async with rig.consumer(timeout_ms=3000) as consumer:
            await consumer.fetch("t", 0, 0, replica_group="g0", wait_ms=0)
            await delete_application(rig)
            with pytest.raises(DledgerError, match=f"{REASON}|user {APPLICATION} may not read topic t"):  # the latter: its rules go first
                await consumer.fetch("t", 0, 0, replica_group="g0", wait_ms=0)
            for _ in range(3):
                with pytest.raises(DledgerError, match=REASON):
                    await consumer.fetch("t", 0, 0, replica_group="g0", wait_ms=0)
            with pytest.raises(AuthenticationFailedError):
                await consumer.offsets("t")

    Rig(secured=True).run(scenario)


@pytest.mark.parametrize("read_from", ["follower", "any"])
def test_a_refusal_of_the_only_replica_that_is_up_is_told_at_once(read_from: str) -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"before"))
        async with rig.consumer(read_from=read_from, timeout_ms=10_000) as consumer:
            await consumer.fetch("t", 0, 0)
            await delete_application(rig)
            for node_id in rig.followers:
                rig.cluster.kill(node_id)
            clock = consumer._router.clock
            for read in (consumer.fetch("t", 0, 0, replica_group="g0"), anext(consumer.read_chunks("t", 0, 0, 1, replica_group="g0"))):
                began_ms = clock.monotonic_ms()
                with pytest.raises(AuthenticationFailedError, match=REASON):
                    await read
                assert clock.monotonic_ms() - began_ms < 5_000

    Rig(secured=True).run(scenario)
