"""``Admin.connections``: which connections are held up and by what, against real nodes in virtual time with drawn connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api import connections
from broker.api.connections import bottleneck_of
from broker.metrics.node_samples import NodeSamples
from broker.support.memory_alarm import blocked
from dledger_client.admin.status_text import connections_text
from dledger_client.aio import Admin, Message
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


async def states_shown(rig: Rig, admin: Admin) -> dict[str, tuple[dict[str, int], str]]:
    """By node as its status has them, which its metrics agree with."""
    (group,) = await admin.cluster_status()
    for node in group.nodes:
        samples = await NodeSamples(node_of(rig, node.id)).samples()
        counted = {labels[2]: value for labels, value in samples.values["dledger_connection_states"].items()}
        assert counted == node.connection_states
    return {node.id: (dict(node.connection_states), node.bottleneck) for node in group.nodes}


def test_what_most_wait_for_is_the_bottleneck() -> None:
    async def scenario(rig: Rig) -> None:
        reads = methods.FETCH.path
        slow_reader = Drawn("slow reader", purpose=reads, held_back=object())
        give(rig, rig.master, slow_reader, Drawn("a", waits_for_credit=True), Drawn("b", waits_for_credit=True), Drawn("c", purpose=reads))
        async with rig.admin() as admin:
            states, bottleneck = (await states_shown(rig, admin))[rig.master]
        assert connections_text(states, bottleneck) == "3/4 flow: memory"

    Rig().run(scenario)


@pytest.mark.parametrize(
    ("states", "bottleneck", "expected"),
    [
        ({}, "", "0"),
        ({"running": 40, "flow": 0, "blocked": 0}, "", "40"),
        ({"running": 28, "flow": 12, "blocked": 0}, "follower n2", "12/40 flow: follower n2"),
        ({"running": 1, "flow": 2, "blocked": 3}, "memory", "3/6 blocked, 2/6 flow: memory"),
    ],
)
def test_states_in_words(states: dict[str, int], bottleneck: str, expected: str) -> None:
    assert connections_text(states, bottleneck) == expected


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
            states = await states_shown(rig, admin)
            assert states[rig.master] == ({"running": 1, "flow": 5, "blocked": 0}, "log")
            assert states[rig.followers[0]] == ({"running": 0, "flow": 0, "blocked": 0}, "")
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
            assert (await states_shown(rig, admin))[rig.master] == ({"running": 1, "flow": 0, "blocked": 1}, "disk")
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
