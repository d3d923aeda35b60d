"""``Admin.connections``: which connections are held up and by what, against real nodes in virtual time with drawn connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api import connections
from broker.api.connections import bottleneck_of
from broker.support.memory_alarm import blocked
from dledger_client.aio import Message
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.tcp.server import Accepted
from tests.unit.client.sim_rig import Rig, context_of, node_of, until


@dataclass
class Drawn:
    """A connection as ``state_of`` sees it."""

    peer: str
    purpose: str = methods.PRODUCE.path
    is_held: bool = False
    waits_for_credit: bool = False
    held_back: object = None
    resumed_s: float = float("-inf")
    received_bytes: int = 0
    unsent: int = 0
    user: str = "u"
    arrival: Any = field(default_factory=lambda: SimpleNamespace(since_s=0.0))

    def waits_for_taker(self, _now_s: float) -> bool:
        return self.is_held


def give(rig: Rig, node_id: str, *drawn: Drawn) -> None:
    node_of(rig, node_id).connections = lambda: [cast(Accepted, each) for each in drawn]


def test_those_that_wait_come_first_and_each_names_what_it_waits_for() -> None:
    async def scenario(rig: Rig) -> None:
        give(
            rig,
            rig.master,
            Drawn("running", purpose="calls", received_bytes=9),
            Drawn("lately", purpose=methods.FETCH.path, resumed_s=asyncio.get_running_loop().time()),
            Drawn("held", is_held=True, received_bytes=5),
            Drawn("reading", purpose=methods.FETCH.path, held_back=object(), unsent=7),
            Drawn("starved", waits_for_credit=True, received_bytes=3),
            Drawn("served", purpose=methods.PACKAGE + "Groups/Join", is_held=True),
        )
        async with rig.admin() as admin:
            found = {each.node: each for each in await admin.connections()}
            assert set(found) == set(rig.cluster.hosts)
            assert found[rig.followers[0]].connections == ()
            own = found[rig.master]
            assert own.states == {"flow": 5, "running": 1}
            assert [(each.peer, each.kind, each.state, each.waits_for) for each in own.connections] == [
                ("reading", "fetch", "flow", "reader"),
                ("held", "produce", "flow", "log"),
                ("starved", "produce", "flow", "memory"),
                ("served", "Groups/Join", "flow", "handler"),
                ("lately", "fetch", "flow", ""),
                ("running", "calls", "running", ""),
            ]
            assert own.connections[0].unsent_bytes == 7
            assert own.connections[0].user == "u"
            (few,) = await admin.connections(rig.master, 2)
            assert ([each.peer for each in few.connections], few.states) == (["reading", "held"], own.states)
            with pytest.raises(InvalidArgumentError, match="there is no node 'n9'"):
                await admin.connections("n9")

    Rig().run(scenario)


def test_producers_of_a_node_whose_disk_is_too_full_are_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_context: object) -> None:
        raise blocked("the disk is used to 96 %", "disk", "n0")

    async def scenario(rig: Rig) -> None:
        give(rig, rig.master, Drawn("producer"), Drawn("reader", purpose=methods.FETCH.path))
        monkeypatch.setattr("broker.context.ServiceContext.require_room", refuse)
        async with rig.admin() as admin:
            (found,) = await admin.connections(rig.master)
        assert [(each.peer, each.state, each.waits_for) for each in found.connections] == [
            ("producer", "blocked", "disk"),
            ("reader", "running", ""),
        ]

    Rig().run(scenario)


def test_the_bottleneck_is_the_followers_that_do_not_confirm() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        context, followers = context_of(rig, rig.master), sorted(rig.followers)
        assert bottleneck_of(context) == "log"
        async with rig.producer(send_timeout_ms=400) as producer:
            await producer.send(Message("t", b"before"))
            for each in followers:
                rig.isolate(each)
            sent = asyncio.ensure_future(producer.send(Message("t", b"x")))
            await until(lambda: context.raft.status().durable.index > context.raft.status().commit_index)
            assert bottleneck_of(context) == f"follower {', '.join(followers)}"
            with pytest.raises(DledgerError):
                await sent

    Rig().run(scenario)


def test_a_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_LISTED", 5)

    async def scenario(rig: Rig) -> None:
        give(rig, rig.master, *(Drawn(f"p{number}") for number in range(40)))
        async with rig.admin() as admin:
            (found,) = await admin.connections(rig.master, 1000)
        assert (len(found.connections), found.states) == (5, {"running": 40})

    Rig().run(scenario)
