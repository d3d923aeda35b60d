"""ASYNC_FLUSH: entries are applied before they are on disk, and what is derived from them becomes durable all the same."""

from __future__ import annotations

import asyncio

import pytest

from broker.node import BrokerNode
from dledger_client.message import Message
from tests.unit.client.sim_rig import Rig

ASYNC = "flushDiskType: ASYNC_FLUSH"


def saved(node: BrokerNode) -> tuple[int, int]:
    """The entries that the newest snapshot and the marks of the key index reach."""
    persistence, index = node.store._persistence, node.store.index
    assert persistence is not None
    assert index is not None
    return persistence.saved_index, index.files._saved.index


@pytest.mark.parametrize(("body_bytes", "pause_s"), [(10, 0.1), (4000, 0.06)], ids=["a trickle", "under load"])
def test_snapshots_and_index_marks_keep_up(body_bytes: int, pause_s: float) -> None:
    rig = Rig(store=ASYNC)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            behind = {node_id: (0, 0) for node_id in rig.cluster.hosts}
            for _ in range(2):
                until_s = asyncio.get_running_loop().time() + 7.5
                while asyncio.get_running_loop().time() < until_s:
                    await producer.send(Message("t", b"x" * body_bytes, keys="k"))
                    await asyncio.sleep(pause_s)
                for host in rig.cluster.running():
                    assert host.node is not None
                    snapshot, marks = saved(host.node)
                    assert snapshot > behind[host.node_id][0], f"{host.node_id} took no snapshot"
                    assert marks > behind[host.node_id][1], f"{host.node_id} did not mark its key index"
                    behind[host.node_id] = (snapshot, marks)

    rig.run(scenario)
    assert rig.cluster.problems() == []
