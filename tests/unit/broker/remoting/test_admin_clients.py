"""What RocketMQ's tools ask about clients and the queues that they read, at the leader of a simulated replica group."""

from __future__ import annotations

from typing import Any

import pytest

from broker.remoting import admin_clients
from broker.remoting.admin_clients import AdminClients
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.query import Queries
from dledger_client.aio import Message
from dledger_wire.java_hash import java_hash
from tests.unit.broker.remoting.rig import ask, content, leader_of, stranger
from tests.unit.broker.remoting.test_heartbeats import beat
from tests.unit.client.sim_rig import Rig, node_of


def test_a_queue_is_shown_with_what_a_group_wants_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_clients, "MOST_UNITS", 10)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with leader_of(rig, rig.master) as leader, rig.producer() as producer:
            node = node_of(rig, rig.master)
            clients, queries = Clients(node, leader), Queries(leader)
            handlers = AdminClients(node, leader, clients, queries).handlers()
            for number in range(15):
                await producer.send(Message("t", b"%d" % number, tags=f"tag{number % 2}"))

            async def rows(**fields: Any) -> dict[str, Any]:
                return content(await ask(handlers, Request.QUERY_CONSUME_QUEUE, topic="t", queueId=0, **fields))

            found = await rows(index=3, count=2)
            assert (found["minQueueIndex"], found["maxQueueIndex"], "filterData" in found) == (0, 15, False)
            first, second = found["queueData"]
            assert [each["tagsCode"] for each in (first, second)] == [java_hash("tag1"), java_hash("tag0")]
            shown, _ = await queries.at(second["physicOffset"])
            assert (shown.queue_offset, shown.size) == (4, second["physicSize"])
            assert [
                len((await rows(index=at, count=count))["queueData"]) for at, count in ((0, 1 << 40), (10, 9), (1 << 40, 1), (-5, 1))
            ] == [*(10, 5, 0, 1)]
            assert (await rows(index=0, count=1, consumerGroup="g"))["filterData"] == "no consumer of group g is there"
            await clients.heartbeat(Command(Request.HEART_BEAT, body=beat("c1", "g")), stranger())
            wanted = (await rows(index=0, count=1, consumerGroup="g"))["subscriptionData"]
            assert (wanted["topic"], wanted["subString"]) == ("t", "a")
            assert (await ask(handlers, Request.QUERY_CONSUME_QUEUE, topic="t", queueId=1, index=0, count=1)).code == Answer.SYSTEM_ERROR
            clients.close()

    Rig().run(scenario)
