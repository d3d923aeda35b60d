"""What RocketMQ's tools ask about brokers, at the nodes of a simulated replica group."""

from __future__ import annotations

import asyncio
import re

import pytest

from broker.node import BrokerNode
from broker.remoting.admin_brokers import AdminBrokers, _duration, _readable
from broker.remoting.admin_names import AdminNames
from broker.remoting.codes import Answer, Request
from broker.remoting.leader import Leader
from broker.remoting.traffic_windows import TrafficWindows
from dledger_client.aio import Message
from tests.unit.broker.remoting.rig import Several, ask, at_each_node, content
from tests.unit.client.sim_rig import Rig

# What the exporter reads as numbers: it drops all of a broker for one that is missing.
NUMBERS = (
    "brokerVersion bootTimestamp startAcceptSendRequestTimeStamp msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow "
    "msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow putMessageTimesTotal putMessageSizeTotal "
    "putMessageEntireTimeMax "
    "getMessageEntireTimeMax dispatchMaxBuffer dispatchBehindBytes commitLogMinOffset commitLogMaxOffset earliestMessageTimeStamp "
    "pageCacheLockTimeMills remainTransientStoreBufferNumbs sendThreadPoolQueueSize sendThreadPoolQueueCapacity "
    "sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills "
    "queryThreadPoolQueueSize queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills "
)


@pytest.mark.parametrize(("size", "text"), [(0, "0.0 B"), (1023, "1023.0 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes_are_written_as_the_exporter_reads_them(size: int, text: str) -> None:
    assert _readable(size) == text


def test_a_duration_is_written_as_rocketmq_does() -> None:
    assert _duration(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"


def test_runtime_information_and_statistics_of_a_node() -> None:
    windows: list[TrafficWindows] = []

    def processor(node: BrokerNode, leader: Leader) -> AdminBrokers:
        windows.append(TrafficWindows(node))
        return AdminBrokers(node, leader, windows[-1])

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with at_each_node(rig, processor) as (first, *others), rig.producer() as producer:
            work = asyncio.get_running_loop().create_task(windows[0].run())
            await asyncio.sleep(100)
            for number in range(30):
                await producer.send(Message("t", b"%d" % number))
            await asyncio.sleep(1)
            for node in (first, *others):
                table = content(await ask(node, Request.GET_BROKER_RUNTIME_INFO))["table"]
                assert [name for name in NUMBERS.split() if not re.fullmatch(r"\d+", table.get(name, ""))] == []
                assert re.fullmatch(r"\d+\.\d\d \d+\.\d\d \d+\.\d\d", table["putTps"])
                assert re.fullmatch(r"Total : [\d.]+ (\wi)?B, Free : [\d.]+ (\wi)?B\.", table["commitLogDirCapacity"])
            table = content(await ask(first, Request.GET_BROKER_RUNTIME_INFO))["table"]
            assert float(table["putTps"].split()[0]) > 1
            assert table["msgPutTotalTodayNow"] == "30"
            found = content(await ask(first, Request.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="t"))
            assert [found[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [30, 30, 30]
            await asyncio.sleep(150)
            found = content(await ask(first, Request.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="t"))
            assert [found[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [0, 30, 30]
            async with rig.consumer("g") as consumer:
                assert len(await consumer.fetch("t", 0, 0, 30)) == 30
            found = content(await ask(first, Request.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="t@g"))
            assert [found[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [30, 30, 30]
            assert found["statsMinute"]["tps"] > 0
            for name, key in (("TOPIC_PUT_NUMS", "none"), ("GROUP_GET_NUMS", "t@none"), ("GROUP_GET_NUMS", "t"), ("NONE", "t")):
                assert (await ask(first, Request.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)).code == Answer.SYSTEM_ERROR
            work.cancel()

    Rig().run(scenario)


def test_settings_are_shown_and_not_changed() -> None:
    async def scenario(rig: Rig) -> None:
        def processor(node: BrokerNode, leader: Leader) -> Several:
            names = AdminNames(node.settings.cluster)
            return Several([AdminBrokers(node, leader, TrafficWindows(node)).handlers(), names.handlers()])

        async with at_each_node(rig, processor) as (node, *_):
            answer = await ask(node, Request.GET_BROKER_CONFIG)
            rows = dict(row.split("=", 1) for row in bytes(answer.body).decode().splitlines())
            assert (rows["brokerName"], answer.fields["version"]) == ("g0", "{}")
            assert (rows["autoCreateTopicEnable"], rows["flushDiskType"]) == ("false", "SYNC_FLUSH")
            for code in (Request.UPDATE_BROKER_CONFIG, Request.PUT_KV_CONFIG, Request.WIPE_WRITE_PERM_OF_BROKER):
                refused = await ask(node, code, b"a=b")
                assert refused.code == Answer.SYSTEM_ERROR
                assert refused.remark
            assert (await ask(node, Request.DELETE_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="t")).code == Answer.SUCCESS
            assert (await ask(node, Request.GET_KV_CONFIG, namespace="n", key="k")).code == Answer.QUERY_NOT_FOUND

    Rig().run(scenario)
