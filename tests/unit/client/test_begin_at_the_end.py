"""Consumers that begin at the end get everything that is sent after ``start`` returned, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.push_rig import Group, numbers, send
from tests.unit.client.sim_rig import Rig, until

KINDS: list[dict[str, Any]] = [{}, {"orderly": True}, {"broadcast": True}]


def options_of(kind: dict[str, Any], folder: Path) -> dict[str, Any]:
    return kind | ({"offset_folder": str(folder)} if "broadcast" in kind else {}) | {"consume_from_where": "last"}


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_sent_once_start_has_returned_is_received(kind: dict[str, Any], tmp_path: Path) -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 10, 2)
        group = Group(rig, **options_of(kind, tmp_path))
        await group.start("a")
        await send(rig, 20, 2, first=100)
        await until(lambda: len(group.seen) >= 20)
        assert sorted(group.bodies()) == numbers(20, 100)
        await group.stop()

    Rig().run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_that_ran_for_no_time_has_fixed_where_the_group_begins(kind: dict[str, Any], tmp_path: Path) -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 10, 2)
        group = Group(rig, **options_of(kind, tmp_path))
        await group.start("a")
        await group.stop("a")
        await send(rig, 10, 2, first=100)
        await group.start("a")
        await until(lambda: len(group.seen) >= 10)
        assert sorted(group.bodies()) == numbers(10, 100)
        await group.stop()

    Rig().run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_made_once_start_has_returned_is_read_from_its_first_message(kind: dict[str, Any], tmp_path: Path) -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        group = Group(rig, **options_of(kind, tmp_path))
        await group.start("a")
        await rig.topic(queues=1)
        await send(rig, 10)
        await until(lambda: len(group.seen) >= 10)
        assert sorted(group.bodies()) == numbers(10)
        await group.stop()

    Rig().run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_group_without_a_leader_at_the_start_is_read_from_the_time_of_the_start(kind: dict[str, Any], tmp_path: Path) -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 10)
        await asyncio.sleep(1)
        cluster = rig.cluster
        for node_id in rig.followers:
            cluster.kill(node_id)
        await asyncio.sleep(3)  # the master that is alone has stepped down
        group = Group(rig, **options_of(kind, tmp_path))
        started_s = cluster.loop.now_s
        await group.start("a")
        assert cluster.loop.now_s - started_s < 7  # half of it to be accepted by a leader
        cut = [(host.ip, group.members["a"].process.host) for host in cluster.hosts.values()]
        for ends in cut:  # it learns of the leader later than the producer does
            cluster.net.cut(*ends)
        for node_id in [node_id for node_id in cluster.groups["g0"].node_ids if not cluster.is_up(cluster.hosts[node_id])]:
            cluster.start(node_id)
        await until(lambda: cluster.master("g0") is not None)
        await send(rig, 10, first=100)
        cluster.net.heal_all()
        await until(lambda: len(group.seen) >= 10)
        assert sorted(group.bodies()) == numbers(10, 100)
        await group.stop()

    Rig().run(scenario)
