"""The name service's answers: what changed, to whom it matters, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.nameserver.gossip import Gossip
from broker.nameserver.quorum import NoQuorum, QuorumState
from broker.routes.directory import metadata_reply
from broker.routes.name_service import NameService, ServicePlace
from broker.routes.route_table import RouteTable
from dledger_wire._pb import broker_pb2, routes_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.security import principal
from tests.sim.clock import SimClock
from tests.sim.loop import SimLoop
from tests.sim.stream import CallContext
from tests.unit.nameserver.registrants import master, members, registration

CALLER = CallContext("test", {})


class World:
    """One name service in virtual time."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self._start_s = self.loop.now_s
        self.table = RouteTable(["g0", "g1"], expire_after_ms=20_000)
        self.service = NameService(self.table, ServicePlace("c", ["ns0:1"], 4096, "ns0"), SimClock(self.loop))

    @property
    def now_s(self) -> float:
        return self.loop.now_s - self._start_s

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self.loop.run_until_complete(work)
        finally:
            self.loop.close()

    async def ask(self, topics: dict[str, int], groups: dict[str, int] | None = None, wait_ms: int = 0) -> routes_pb2.RoutesReply:
        request = routes_pb2.RoutesRequest(wait_ms=wait_ms)
        request.topics.extend(routes_pb2.KnownRoute(name=name, version=version) for name, version in topics.items())
        request.groups.extend(routes_pb2.KnownRoute(name=name, version=version) for name, version in (groups or {}).items())
        return routes_pb2.RoutesReply.FromString(await self.service.routes(request, CALLER))


@pytest.fixture
def world() -> World:
    return World()


def test_only_what_changed_is_told(world: World) -> None:
    async def main() -> None:
        world.service.registered(master("g0", topics={"t": 2, "u": 1}))
        first = await world.ask({"t": 0})
        assert [(each.name, each.queues[0].group) for each in first.topics] == [("t", "g0")]
        assert [(each.name, each.leader_id) for each in first.groups] == [("g0", "n0")]
        assert (first.complete, list(first.name_servers), first.max_message_bytes, first.cluster) == (False, ["ns0:1"], 4096, "c")
        known, group = {"t": first.topics[0].version}, {"g0": first.groups[0].version}
        again = await world.ask(known, group)
        assert (len(again.topics), len(again.groups)) == (0, 0)
        world.service.registered(master("g0", node="n1", term=2, topics={"t": 2, "u": 1}))
        moved = await world.ask(known, group)
        assert ([each.name for each in moved.topics], [each.leader_id for each in moved.groups]) == ([], ["n1"])

    world.run(main())


def test_what_is_not_found_is_told_and_then_waited_for(world: World) -> None:
    async def main() -> None:
        first = await world.ask({"t": 0}, {"g9": 0}, wait_ms=50_000)
        assert (first.topics[0].found, first.groups[0].found) == (False, False)
        assert world.now_s < 1
        waiting = asyncio.ensure_future(world.ask({"t": first.topics[0].version}, wait_ms=50_000))
        await asyncio.sleep(10)
        assert not waiting.done()
        world.service.registered(master("g0", topics={"t": 2}))
        reply = await waiting
        assert reply.topics[0].found
        assert [each.name for each in reply.groups] == ["g0"]
        assert 10 <= world.now_s < 10.1

    world.run(main())


def test_a_wait_ends_with_what_is_known_already(world: World) -> None:
    async def main() -> None:
        world.service.registered(master("g0", topics={"t": 2}))
        first = await world.ask({"t": 0})
        reply = await world.ask({"t": first.topics[0].version}, {"g0": first.groups[0].version}, wait_ms=3_600_000)
        assert (len(reply.topics), len(reply.groups)) == (0, 0)
        assert 60 <= world.now_s < 61  # it waits no longer, whatever is asked for

    world.run(main())


def test_a_change_behind_the_look_of_a_long_request_is_not_missed(world: World) -> None:
    async def main() -> None:
        known = {each.name: each.version for each in (await world.ask({f"t{number}": 0 for number in range(1000)})).topics}
        waiting = asyncio.ensure_future(world.ask(known, wait_ms=50_000))
        for _ in range(3):  # turns: the first names were looked at, the last ones were not
            await asyncio.sleep(0)
        world.service.registered(master("g0", topics={"t0": 2}))
        reply = await waiting
        assert [(each.name, each.found) for each in reply.topics] == [("t0", True)]
        assert world.now_s < 1

    world.run(main())


def test_a_request_that_was_answered_watches_nothing(world: World) -> None:
    async def main() -> None:
        await world.ask({f"t{number}": 0 for number in range(5000)})
        await asyncio.sleep(1)
        watched = world.service._waiters._by_key
        assert watched == {}

    world.run(main())


def test_a_failover_wakes_those_who_use_the_group(world: World) -> None:
    async def main() -> None:
        world.service.registered(master("g0", topics={"t": 2}))
        world.service.registered(master("g1", topics={"u": 2}))
        versions = {name: (await world.ask({name: 0})) for name in ("t", "u")}

        async def client(name: str) -> float:
            known = versions[name]
            await world.ask({name: known.topics[0].version}, {known.groups[0].name: known.groups[0].version}, wait_ms=40_000)
            return world.now_s

        clients = [asyncio.ensure_future(client(name)) for name in ("t", "u") for _ in range(1_000)]
        await asyncio.sleep(5)
        assert world.service.whole_directory().figures.waiting_clients == 2_000
        world.service.registered(master("g0", node="n2", term=2, topics={"t": 2}))
        await asyncio.sleep(1)
        assert [each.done() for each in clients] == [True] * 1_000 + [False] * 1_000
        assert all(each.result() < 5.1 for each in clients[:1_000])
        await asyncio.gather(*clients)
        assert world.service.whole_directory().figures.waiting_clients == 0

    world.run(main())


def test_a_client_that_goes_away_is_forgotten(world: World) -> None:
    async def main() -> None:
        first = await world.ask({"t": 0})
        waiting = asyncio.ensure_future(world.ask({"t": first.topics[0].version}, wait_ms=50_000))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert world.service.whole_directory().figures.waiting_clients == 0

    world.run(main())


@pytest.mark.parametrize("wrong", [{"cluster": "other"}, {"node_id": ""}, {"node_id": "a b"}, {"group": "a/b"}])
def test_registrations_of_others_are_refused(world: World, wrong: dict[str, str]) -> None:
    async def main() -> None:
        told = master("g0")
        told.MergeFrom(routes_pb2.Registration(**wrong))  # type: ignore[arg-type]
        if wrong.get("node_id") == "":
            told.node_id = ""
        with pytest.raises(InvalidArgumentError):
            await world.service.take_registration(told, CALLER)
        assert world.table.known_groups == 0

    world.run(main())


def test_the_directory_is_told_once_per_version(world: World) -> None:
    async def main() -> None:
        reply = world.service.registered(master("g0", topics={"t": 2}))
        whole = world.service.whole_directory()
        assert (whole.version, whole.unchanged) == (reply.directory_version, False)
        assert [(group.name, group.leader_id, [node.id for node in group.nodes]) for group in whole.groups] == [
            ("g0", "n0", ["n0", "n1", "n2"])
        ]
        assert [node.expired for node in whole.groups[0].nodes] == [False, True, True]
        assert world.service.whole_directory(whole.version).unchanged
        world.service.registered(master("g0", sequence=2, topics={"t": 2}, state="removed", state_version=4))
        gone = world.service.whole_directory(whole.version)
        assert [(group.name, group.state, len(group.nodes)) for group in gone.groups] == [("g0", "removed", 0)]

    world.run(main())


class Wire(NoQuorum):
    """Keeps what is spread."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def spread(self, data: bytes) -> None:
        self.sent.append(data)


def test_name_servers_tell_each_other_what_changed_and_whom_they_hear(world: World) -> None:
    async def main() -> None:
        wire, clock = Wire(), SimClock(world.loop)
        gossip = Gossip("ns0", world.service, wire, clock, 5_000)
        other = NameService(RouteTable(expire_after_ms=20_000), ServicePlace("c", [], 0, "ns1"), clock)
        far = Gossip("ns1", other, NoQuorum(), clock, 5_000)
        telling = asyncio.ensure_future(gossip.run())
        told = master("g0", topics={"t": 2})
        for _ in range(7):
            world.service.registered(told)
            await asyncio.sleep(4)
            for data in wire.sent:
                far.deliver(data)
            other.expire()
        assert sum(len(routes_pb2.Spread.FromString(data).registrations) for data in wire.sent) == 1
        assert other.table.topic_route("t") == world.table.topic_route("t")
        assert other.table.group_route("g0") == world.table.group_route("g0")
        await asyncio.sleep(25)
        for data in wire.sent:
            far.deliver(data)  # again, and late
        far.deliver(b"\xff\xff")
        other.expire()
        assert routes_pb2.RoutesReply.FromString(other.table.group_route("g0").data).groups[0].leader_id == ""
        telling.cancel()

    world.run(main())


def test_a_name_server_that_was_away_is_told_everything(world: World) -> None:
    """Also of nodes that do not reach it."""

    class Leading(Wire):
        away = True

        def state(self) -> QuorumState:
            return QuorumState("leader", True, 0, frozenset() if self.away else frozenset({"ns1"}))

    async def main() -> None:
        wire, clock = Leading(), SimClock(world.loop)
        gossip = Gossip("ns0", world.service, wire, clock, 5_000)
        world.service.registered(master("g0", topics={"t": 2}))
        world.service.registered(registration("g0", "n1", topics_version=1))
        world.service.registered(master("g1", "m0", term=4, state="draining", state_version=3, group_epoch=7))
        world.service.registered(registration("", "s0", term=0, members=[]))
        telling = asyncio.ensure_future(gossip.run())
        await asyncio.sleep(6)
        wire.sent.clear()
        wire.away = False
        await asyncio.sleep(5)
        other = NameService(RouteTable(expire_after_ms=20_000), ServicePlace("c", [], 0, "ns1"), clock)
        far = Gossip("ns1", other, NoQuorum(), clock, 5_000)
        for data in wire.sent:
            far.deliver(data)
        assert other.table.directory_version == world.table.directory_version
        for name in ("g0", "g1"):
            assert other.table.group_route(name) == world.table.group_route(name)
        assert other.table.topic_route("t") == world.table.topic_route("t")
        assert [row.id for row in other.table.spares] == ["s0"]
        wire.sent.clear()
        await asyncio.sleep(10)
        assert not any(routes_pb2.Spread.FromString(data).registrations for data in wire.sent)  # once
        await asyncio.sleep(8)
        other.expire()
        assert routes_pb2.RoutesReply.FromString(other.table.group_route("g0").data).groups[0].leader_id == ""  # the age was told, too
        telling.cancel()

    world.run(main())


def test_nobody_waits_at_a_server_that_stops(world: World) -> None:
    async def main() -> None:
        first = await world.ask({"t": 0})
        waiting = asyncio.ensure_future(world.ask({"t": first.topics[0].version}, wait_ms=50_000))
        await asyncio.sleep(1)
        world.service.stop()
        assert len((await waiting).topics) == 0
        assert world.now_s < 2

    world.run(main())


def test_registered_replies(world: World) -> None:
    async def main() -> None:
        asked = world.service.registered(registration("g0", term=3, topics_version=1, master=True))
        assert (asked.accepted, asked.group_term, asked.wants_topics) == (True, 3, True)
        follower = world.service.registered(registration("g0", "n1", term=3, topics_version=1))
        assert not follower.wants_topics  # the master was asked
        refused = world.service.registered(registration("g0", "n2", term=2))
        assert (refused.accepted, refused.group_term) == (False, 3)
        figures = world.service.whole_directory().figures
        assert (figures.registrations, figures.refused_registrations) == (3, 1)

    world.run(main())


def node_caller(group: str, node_id: str) -> CallContext:
    return CallContext("test", {}, principal.node("c", group, node_id))


@pytest.mark.parametrize(
    ("certificate", "node_id", "taken"),
    [("g0", "n0", True), ("g1", "n5", False), ("-", "sp0", False), ("g0", "n7", False), ("-", "n3", True), ("g0", "n3", True)],
)
def test_only_nodes_of_the_group_change_its_routes(world: World, certificate: str, node_id: str, taken: bool) -> None:
    """n0 to n2 stand in the cluster file; n3 is a member as the master told."""
    world.service.place = replace(world.service.place, configured={"g0": frozenset({"n0", "n1", "n2"})})
    world.table.register(master("g0", "n1", members=members("n0", "n1", "n2", "n3")), 0)
    told = master("g0", node_id, term=1 << 40)
    with nullcontext() if taken else pytest.raises(NotReadyError, match="is not known here"):
        world.run(world.service.take_registration(told, node_caller(certificate, node_id)))  # type: ignore[arg-type]
    found = world.table.group("g0")
    assert found is not None
    assert (found.fence == 1 << 40) is taken


def test_routes_of_a_topic_that_is_not_seen_name_no_group(world: World) -> None:
    world.table.register(master(topics={"hidden": 2}), 0)
    world.service.sees = lambda _caller, _topic: False

    async def scenario() -> None:
        assert not (await world.ask({"hidden": 0})).groups
        assert not (await world.ask({"nothing": 0})).groups

    world.run(scenario())


def test_metadata_names_configured_groups_that_have_not_registered() -> None:
    config = ClusterConfig.parse(
        "cluster: c\ngroups:\n  - {name: g0, nodes: [{id: n0, address: '127.0.0.1:1001'}]}\n"
        "  - {name: g1, nodes: [{id: n1, address: '127.0.0.1:1002'}]}\n",
        "f",
    )
    table = RouteTable(["g0", "g1"], expire_after_ms=20_000)
    table.register(master(), 0)
    reply = metadata_reply(table, broker_pb2.MetadataRequest(), configured=config.groups)
    assert [(group.name, [node.address for node in group.nodes][-1:]) for group in reply.groups][1] == ("g1", ["127.0.0.1:1002"])
