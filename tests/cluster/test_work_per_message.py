"""What one message at a time makes every node do: counted in turns of event loops and callbacks, which a slow machine does not change.

Milliseconds depend on who else uses the machine; these do not.  The nodes are whole ones with real disks and sockets, each with a thread
and an event loop of its own that counts.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from broker.node import BrokerNode
from broker.process.machine import machine_of
from dledger.core.types import Role
from dledger.log.config import LogConfig
from dledger.runtime.real_blocked_time import BlockedTime
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer
from dledger_wire.security import principal
from tests.waiting import LIMIT_S

ROUNDS, MESSAGES = 10, 25
LOG = LogConfig(units_sync_delay_ms=600_000, fill_window_bytes=0)  # nothing in the background that goes by time
Counts = dict[str, float]


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its turns, and the callbacks that were scheduled for another turn."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.turns = self.callbacks = self.from_threads = 0

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        self.callbacks += 1
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        self.from_threads += 1
        return super().call_soon_threadsafe(callback, *args, context=context)

    @property
    def counts(self) -> dict[str, int]:
        return {"turns": self.turns, "callbacks": self.callbacks, "from threads": self.from_threads}


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: CountingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.turns += 1
        return super().select(timeout)


class ThreadedNode:
    """A node of a cluster file, in a thread of this process."""

    def __init__(self, cluster: PrivateCluster, node_id: str) -> None:
        self._settings, self._folder = cluster.config.node(node_id), str(cluster.data / node_id)
        self._ready: Future[tuple[BrokerNode, CountingLoop]] = Future()
        self._thread = threading.Thread(target=self._run, name=node_id, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it serves, which takes a majority."""
        self.node, self.loop = self._ready.result(LIMIT_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=CountingLoop) as runner:
                runner.run(self._serve())
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        own = principal.node(self._settings.cluster.cluster, self._settings.group.name, self._settings.node.id)
        machine = machine_of(self._settings.cluster, own, self._folder)
        node, self._stopping = BrokerNode(self._settings, machine.env, security=machine.security, log_config=LOG), asyncio.Event()
        await node.open()
        self._ready.set_result((node, loop))
        await self._stopping.wait()
        await node.stop(hand_over=False)

    @property
    def leads(self) -> bool:
        return self.node.raft.role is Role.LEADER

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(LIMIT_S)


def round_of(producer: Producer, nodes: list[ThreadedNode]) -> list[Counts]:
    """What each node's loop did for each message of some."""
    before = [node.loop.counts for node in nodes]
    for _ in range(MESSAGES):
        producer.send(Message("t", bytes(1024)))
    after = [node.loop.counts for node in nodes]
    return [{name: (late[name] - early[name]) / MESSAGES for name in early} for early, late in zip(before, after, strict=True)]


def work_per_message(folder: Path) -> tuple[Counts, list[Counts]]:
    """(leader, followers): what their event loops did for each message, in the round in which they did the least: the rest is heartbeats
    and timers, of which a slow machine has more a message."""
    cluster = PrivateCluster(folder)
    nodes = [ThreadedNode(cluster, node_id) for node_id in ("n0", "n1", "n2")]
    for node in nodes:
        node.wait()
    try:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", queues=1)
        with Producer(cluster.bootstrap) as producer:
            for _ in range(100):  # the leader is found, the disks are known to be fast, blocks are filled
                producer.send(Message("t", bytes(1024)))
            rounds = [round_of(producer, nodes) for _ in range(ROUNDS)]
        leads = [node.leads for node in nodes]
    finally:
        for node in nodes:
            node.stop()
    assert sum(leads) == 1
    spent = [{name: min(each[name] for each in found) for name in found[0]} for found in zip(*rounds, strict=True)]
    return spent[leads.index(True)], [each for each, is_leader in zip(spent, leads, strict=True) if not is_leader]


def test_one_message_costs_few_turns_and_callbacks_and_no_change_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fast disk: how fast the one of this machine is has no part in this."""
    monkeypatch.setattr(BlockedTime, "so_far_s", lambda _self: 0.0)
    leader, followers = work_per_message(tmp_path)
    # Before they delivered and flushed at once: a leader 12.5 turns and 16.5 callbacks, a follower 7.8 and 6.9, each one change of threads.
    assert leader["turns"] <= 7, leader
    assert leader["callbacks"] <= 3, leader
    for follower in followers:
        assert follower["turns"] <= 4.5, follower
        assert follower["callbacks"] <= 2.5, follower
    for node in (leader, *followers):
        assert node["from threads"] <= 0.2, node
