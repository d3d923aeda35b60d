"""Limits of alarms: what they may be, and that one set at run time moves the alarm at once and outlives a restart."""

from __future__ import annotations

import asyncio

import pytest

from broker.config.alarm_limits import disk_limit_of, with_limits
from broker.config.cluster_file import ClusterConfig
from broker.config.memory_shares import watermark
from broker.config.model import Mistakes
from dledger_client.aio import Message
from dledger_wire.errors import ConfigError, InvalidArgumentError
from store.settings import DiskLimit
from tests.unit.client.sim_rig import Rig, node_of, until

GIB = 1 << 30
FILE = "cluster: c\ngroups: [{{name: g0, nodes: [{{id: n0, address: 127.0.0.1:10911}}]}}]\nstore: {{diskFreeLimit: {}}}\n"


def cluster(limit: str = "''") -> ClusterConfig:
    return ClusterConfig.parse(FILE.format(limit), "given.yaml")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("''", DiskLimit()),
        ("2GB", DiskLimit(2 * 10**9)),
        ("2000000000", DiskLimit(2 * 10**9)),
        ("mem_relative 1.5", DiskLimit(6 * GIB)),
        ("5%", DiskLimit(free_percent=5)),
    ],
)
def test_a_disk_limit_is_a_size_or_a_share_of_disk_or_memory(limit: str, expected: DiskLimit) -> None:
    assert disk_limit_of(cluster(limit), 4 * GIB) == expected


@pytest.mark.parametrize("limit", ["1MB", "0", "x%", "95%", "mem_relative", "mem_relative 0", "plenty", "true"])
def test_others_are_mistakes(limit: str) -> None:
    with pytest.raises((ConfigError, Mistakes), match="diskFreeLimit: expected a size of at least 50MB, a share of the disk such as 5%"):
        cluster(limit)
    with pytest.raises(InvalidArgumentError, match="diskFreeLimit: expected a size of at least 50MB"):
        with_limits(cluster(), {"diskFreeLimit": limit})


def test_what_was_set_counts_in_place_of_the_cluster_file() -> None:
    found = with_limits(cluster("2GB"), {"diskFreeLimit": "1GB", "memoryHighWatermark": "1GiB"})
    assert (disk_limit_of(found, 0), watermark(found.broker.memoryHighWatermark, 0)) == (DiskLimit(10**9), GIB)


def test_the_disk_alarm_sets_and_clears_when_the_limit_is_changed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=120_000) as producer, rig.admin() as admin:
            await producer.send(Message("t", b"before"))
            found = await admin.describe_replica_group("g0")
            assert (found.limits, found.limits_set) == ({"diskFreeLimit": "", "memoryHighWatermark": "40%"}, ())
            found = await admin.update_replica_group("g0", limits={"diskFreeLimit": "2TiB"})
            assert (found.limits["diskFreeLimit"], found.limits_set) == ("2TiB", ("diskFreeLimit",))
            await until(lambda: node_of(rig, rig.master).store.expiry.room.refuses_messages)
            sent = asyncio.ensure_future(producer.send(Message("t", b"held")))
            await until(lambda: bool(producer.blocked))
            assert "the disk has " in producer.blocked
            assert " MiB free, below diskFreeLimit, 2097152 MiB" in producer.blocked
            with pytest.raises(InvalidArgumentError, match="diskFreeLimit: expected"):
                await admin.update_replica_group("g0", limits={"diskFreeLimit": "1MB"})
            with pytest.raises(InvalidArgumentError, match="maxMessageSize: expected diskFreeLimit or memoryHighWatermark"):
                await admin.update_replica_group("g0", limits={"maxMessageSize": "1MB"})
            assert not sent.done()
            await admin.update_replica_group("g0", limits={"diskFreeLimit": "1GB"})
            await sent
            assert producer.blocked == ""

    Rig(3).run(scenario)


def test_limits_outlive_a_restart_and_go_back_to_the_cluster_file() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.update_replica_group("g0", limits={"diskFreeLimit": "1GB", "memoryHighWatermark": "2GiB"})
            for node_id in list(rig.cluster.hosts):
                rig.cluster.kill(node_id)
            for node_id in list(rig.cluster.hosts):
                rig.cluster.start(node_id)
            await until(lambda: rig.is_group_up("g0"))
            for node_id in rig.cluster.hosts:
                node = node_of(rig, node_id)
                assert (node.store.disk_limit(), node._memory_mark(GIB)) == (DiskLimit(10**9), 2 * GIB)
            await admin.update_replica_group("g0", limits={"diskFreeLimit": ""})
            details = await admin.node_details(rig.master)
            assert (details.settings["store.diskFreeLimit"], details.settings["broker.memoryHighWatermark"]) == ("", "2GiB")

    Rig(4).run(scenario)
