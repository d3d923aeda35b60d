"""Routes for RocketMQ's clients, at the nodes of a simulated cluster and at its name servers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from broker.remoting.admin_names import AdminNames
from broker.remoting.codes import Answer, Request
from broker.remoting.dispatcher import Handlers
from broker.remoting.known_routes import RoutesOfNameServer, RoutesOfNode
from broker.remoting.routes import HOLD_MS, Routes
from dledger_wire.errors import NotReadyError, TopicNotFoundError
from tests.unit.broker.remoting.rig import ask, at_each_node, content
from tests.unit.client.sim_rig import Rig, until


def at_name_server(rig: Rig, name: str) -> Handlers:
    server = rig.cluster.name_servers.hosts[name].node
    assert server is not None
    return {**Routes(RoutesOfNameServer(server)).handlers(), **AdminNames(rig.cluster.config).handlers()}


def test_a_name_server_answers_as_the_nodes_do() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("orders", queues=3)
        async with at_each_node(rig, lambda node, leader: Routes(RoutesOfNode(node, leader))) as nodes:
            named = at_name_server(rig, "ns0")
            for code, topic in (
                (Request.GET_ROUTEINFO_BY_TOPIC, "orders"),
                (Request.GET_BROKER_CLUSTER_INFO, ""),
            ):
                answers = [content(await ask(each, code, topic=topic)) for each in (named, *nodes)]
                assert all(each == answers[0] for each in answers)
            route = content(await ask(named, Request.GET_ROUTEINFO_BY_TOPIC, topic="orders"))
            assert sum(row["readQueueNums"] for row in route["queueDatas"]) == 3
            assert [broker["brokerName"] for broker in route["brokerDatas"]] == ["g0", "g1"]
            for code in (Request.GET_ALL_TOPIC_LIST, Request.GET_TOPICS_BY_CLUSTER):
                assert "orders" in content(await ask(named, code))["topicList"]
            for missing in ("missing", "%DLQ%readers", "%RETRY%"):
                with pytest.raises(TopicNotFoundError):
                    await ask(named, Request.GET_ROUTEINFO_BY_TOPIC, topic=missing)
            # Tools look for a group's brokers by its retries, also when nothing was ever retried.
            for each in (named, *nodes):
                route = content(await ask(each, Request.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%readers"))
                assert [broker["brokerName"] for broker in route["brokerDatas"]] == ["g0", "g1"]
                assert not any(row["readQueueNums"] or row["writeQueueNums"] for row in route["queueDatas"])

    Rig(groups=2, name_servers=2).run(scenario)


def test_a_name_server_that_has_just_started_waits_and_says_of_no_topic_that_it_does_not_exist() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("orders")
        rig.cluster.name_servers.wipe("ns0")
        for node_id in rig.cluster.hosts:
            rig.cluster.net.cut(rig.cluster.hosts[node_id].ip, rig.cluster.name_servers.hosts["ns0"].ip)
        rig.cluster.name_servers.start("ns0", rig.cluster.config)
        await until(lambda: (node := rig.cluster.name_servers.hosts["ns0"].node) is not None and node.is_open)
        named, begin_s = at_name_server(rig, "ns0"), asyncio.get_running_loop().time()
        with pytest.raises(NotReadyError):
            await ask(named, Request.GET_ROUTEINFO_BY_TOPIC, topic="orders")
        assert HOLD_MS / 1000 <= asyncio.get_running_loop().time() - begin_s < 2.5
        rig.cluster.net.heal_all()
        while True:
            with contextlib.suppress(NotReadyError):
                found = await ask(named, Request.GET_ROUTEINFO_BY_TOPIC, topic="orders")
                break
        assert content(found)["brokerDatas"][0]["brokerName"] == "g0"

    Rig(name_servers=1).run(scenario)


def test_a_name_server_has_settings_that_are_shown_and_not_changed() -> None:
    async def scenario(rig: Rig) -> None:
        named = at_name_server(rig, "ns0")
        shown = bytes((await ask(named, Request.GET_NAMESRV_CONFIG)).body).decode().splitlines()
        assert f"expireAfter={rig.cluster.config.name_service.expireAfter}" in shown
        refused = (Request.UPDATE_NAMESRV_CONFIG, Request.PUT_KV_CONFIG, Request.WIPE_WRITE_PERM_OF_BROKER)
        assert [(await ask(named, code)).code for code in refused] == [Answer.SYSTEM_ERROR] * len(refused)
        assert (await ask(named, Request.GET_KV_CONFIG, namespace="n", key="k")).code == Answer.QUERY_NOT_FOUND
        assert content(await ask(named, Request.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"] == ["g0", rig.cluster.config.cluster]

    Rig(name_servers=1).run(scenario)
