"""What nodes count of messages that come and go, as status tells it: each stored once in the cluster, each read where it was read."""

from __future__ import annotations

from dledger_client.aio import Message
from dledger_client.aio.producer import Producer
from dledger_client.types import SendResult
from store.traffic import Traffic
from tests.unit.client.sim_rig import Rig


def _totals(rig: Rig) -> dict[str, tuple[int, int, int, int]]:
    return {node_id: host.node.store.traffic.total.values for node_id, host in rig.cluster.hosts.items() if host.node is not None}


async def _send(producer: Producer, count: int) -> list[SendResult]:
    return [await producer.send(Message("t", b"x" * 100)) for _ in range(count)]


def test_messages_count_once_at_the_master_and_where_they_are_read() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        before = sum(total[0] for total in _totals(rig).values())
        assert before == 0  # what the services made for themselves is no traffic
        async with rig.producer() as producer, rig.consumer(read_from="follower") as consumer, rig.admin() as admin:
            await _send(producer, 7)
            assert len(await consumer.fetch("t", queue_id=0, offset=0)) == 7
            totals = _totals(rig)
            assert totals[rig.master][0] == 7
            assert totals[rig.master][1] > 700
            assert [totals[node][:2] for node in rig.followers] == [(0, 0), (0, 0)]
            assert totals[rig.master][2] == 0
            assert sum(totals[node][2] for node in rig.followers) == 7
            assert sum(totals[node][3] for node in rig.followers) == totals[rig.master][1]
            told = {node.id: node for node in (await admin.cluster_status())[0].nodes}
            for node_id, total in totals.items():
                node = told[node_id]
                assert (node.messages_in_total, node.bytes_in_total, node.messages_out_total, node.bytes_out_total) == total

    Rig().run(scenario)


def test_a_new_master_counts_what_comes_to_it_and_nothing_that_was_there() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await _send(producer, 5)
            old = rig.master
            await rig.restart(old)
            await _send(producer, 3)
            totals = _totals(rig)
            assert totals[rig.master][0] == 3
            assert sum(total[0] for total in totals.values()) == 3  # the old master applied its log anew, as no master

    Rig().run(scenario)


def test_what_is_kept_of_a_topic_goes_with_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.admin() as admin:
            await _send(producer, 2)
            node = rig.cluster.hosts[rig.master].node
            assert node is not None
            assert node.store.traffic.topics["t"].messages_in == 2
            await admin.delete_topic("t")
            assert "t" not in node.store.traffic.topics
            assert node.store.traffic.total.messages_in == 2

    Rig().run(scenario)


def test_a_read_that_was_under_way_does_not_bring_a_deleted_topic_back() -> None:
    topics = {"t"}
    traffic = Traffic(topics.__contains__)
    traffic.read("t", 1, 10)
    topics.clear()
    traffic.forget_topic("t")
    traffic.read("t", 2, 20)
    assert (traffic.topics, traffic.changed, traffic.total.values) == ({}, {}, (0, 0, 3, 30))
