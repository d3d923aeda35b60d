"""How a client finds topics and leaders: name servers that are late, behind, wrong, silent or gone, and nodes that know none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dledger_client.aio import Producer
from dledger_client.cluster.route_watch import BEGIN_AFTER_S
from dledger_client.cluster.router import Router
from dledger_client.runtime.environment import use_environment
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, TopicNotFoundError, UnreachableError
from dledger_wire.rpc import methods
from tests.unit.client.name_board import Board
from tests.unit.client.sim_rig import until


def board(groups: int = 2, names: int = 3, **topics: dict[str, int]) -> Board:
    """``topics``: by replica group, with their queues."""
    made = Board(groups, names)
    for group, held in topics.items():
        made.groups[group].topics = dict(held)
    return made


async def queues_of(router: Router, topic: str = "t", **how: bool) -> dict[str, int]:
    found = await router.topic(topic, router.clock.monotonic_ms() + 2000, **(how or {"fresh": True}))
    return {queues.replica_group: queues.read_queues for queues in found}


async def watched(made: Board, topic: str = "t") -> Router:
    """A router that has used the topic, and whose watch is under way."""
    router = made.router()
    await queues_of(router, topic)
    router.watch()
    await until(lambda: router.route_watch.is_current)
    return router


# What is asked


def test_a_client_asks_one_name_server_and_nobody_else_for_its_topics() -> None:
    made = board(10, g3={"t": 4}, g7={"u": 2})

    async def scenario() -> None:
        made.register_all()
        router = made.router()
        assert await queues_of(router) == {"g3": 4}
        assert (await router.leaders.leader("g3")).leader_address == made.groups["g3"].leader
        assert set(router.groups) == {"g3"}
        assert made.asked.by_method == {"Routes": 1}
        with pytest.raises(TopicNotFoundError, match="topic nowhere does not exist in cluster c"):
            await queues_of(router, "nowhere")
        assert made.asked.addresses.keys() == {"Routes"}
        assert len(made.asked.addresses["Routes"]) == 1
        await router.close()

    made.run(scenario)


def test_a_search_for_a_leader_asks_the_nodes_of_its_group_only() -> None:
    made = board(10, g3={"t": 4})

    async def scenario() -> None:
        made.register_all()
        router, group = made.router(), made.groups["g3"]
        await queues_of(router)
        made.kill(group.leader)
        group.leader, group.term = group.addresses[1], 2
        found = await router.leaders.leader("g3", group.addresses[0], 1)
        assert (found.leader_address, found.term) == (group.addresses[1], 2)
        assert made.asked.addresses["Metadata"] <= set(group.addresses)
        await router.close()

    made.run(scenario)


def test_everything_is_known_of_all_groups_to_whoever_asks_for_all() -> None:
    made = board(3)

    async def scenario() -> None:
        made.register_all()
        router = made.router()
        groups = await router.all_groups(router.clock.monotonic_ms() + 2000)
        assert {name: group.leader_address for name, group in groups.items()} == {name: g.leader for name, g in made.groups.items()}
        with pytest.raises(InvalidArgumentError, match="no replica group 'g9' in cluster c; expected one of g0, g1, g2"):
            await router.ensure_group("g9", router.clock.monotonic_ms() + 2000)
        for address in list(made.services):
            made.kill(address)
        assert set(await router.all_groups(router.clock.monotonic_ms() + 2000)) == {"g0", "g1", "g2"}
        await router.close()

    made.run(scenario)


def test_who_may_not_see_the_cluster_learns_of_added_groups_and_is_never_refused() -> None:
    """Each refusal is a record of the audit log, and one more command line is one more client."""
    made = board(2, g0={"t": 4})
    made.denies_directory = True

    async def scenario() -> None:
        made.register_all()
        router = made.router(",".join([*made.name_addresses, *made.groups["g0"].addresses]))
        for _ in range(3):
            assert set(await router.all_groups(router.clock.monotonic_ms() + 2000)) == {"g0", "g1"}
        assert made.asked.by_method["Directory"] == 3
        assert made.asked.by_method["Metadata"] == 0, "a name server said it"
        await router.close()

    made.run(scenario)


# Where the name servers are


@pytest.mark.parametrize("names", [1, 3])
def test_nodes_tell_where_the_name_servers_are(names: int) -> None:
    made = board(3, names, g0={"t": 4})

    async def scenario() -> None:
        made.register_all()
        router = made.router(",".join(made.groups["g2"].addresses))
        assert await queues_of(router) == {"g0": 4}
        assert "Metadata" not in made.asked.by_method
        assert len(made.asked.addresses["Routes"]) == 2  # a node, then a name server
        await router.close()

    made.run(scenario)


@pytest.mark.parametrize("serves", [False, True], ids=["no answer", "none configured"])
def test_without_a_name_service_nodes_are_asked(serves: bool) -> None:
    made = board(2, 0, g0={"t": 2}, g1={"t": 3})
    made.nodes_serve_routes = serves

    async def scenario() -> None:
        router = made.router(made.groups["g0"].addresses[1])
        for _ in range(5):
            assert await queues_of(router) == {"g0": 2, "g1": 3}
        assert set(await router.all_groups(router.clock.monotonic_ms() + 2000)) == {"g0", "g1"}
        assert made.asked.by_method["Routes"] <= 6, "a node that has no name service is left alone for a while"
        await router.close()

    made.run(scenario)


def test_a_name_server_that_has_not_heard_of_all_groups_is_not_believed_that_a_topic_does_not_exist() -> None:
    made = board(2, g0={"t": 2}, g1={"t": 3, "u": 1})

    async def scenario() -> None:
        made.register("g0")
        router = made.router(",".join([*made.name_addresses, *made.groups["g0"].addresses]))
        assert await queues_of(router) == {"g0": 2, "g1": 3}
        assert await queues_of(router, "u") == {"g1": 1}
        with pytest.raises(TopicNotFoundError):
            await queues_of(router, "nowhere")
        await router.close()

    made.run(scenario)


def test_a_topic_that_was_made_just_now_is_found_as_soon_as_the_name_server_hears_of_it() -> None:
    made = board(2)

    async def scenario() -> None:
        made.register_all()
        router = made.router()
        looking = asyncio.ensure_future(queues_of(router))
        await asyncio.sleep(0.05)
        made.groups["g1"].topics["t"], made.groups["g1"].version = 2, 2
        made.register("g1")
        assert await looking == {"g1": 2}
        await router.close()

    made.run(scenario)


def test_a_change_that_a_producer_found_itself_makes_it_look_nothing_up_again() -> None:
    made = board(1, g0={"t": 4, "u": 2, "v": 2})

    async def scenario() -> None:
        made.register_all()
        with use_environment(**made.around()):
            producer = Producer(made.name_addresses)
        core, clock = producer._core, made.clock
        for topic in ("t", "u", "v"):
            await core.resolve(topic, clock.monotonic_ms() + 2000)
        made.groups["g0"].topics["t"], made.groups["g0"].version = 6, 2
        made.register("g0")
        made.asked.by_method.clear()
        await core.resolve("t", clock.monotonic_ms() + 2000, 5)
        await asyncio.sleep(5)
        assert made.asked.by_method == {"Routes": 1}
        made.groups["g0"].topics["u"], made.groups["g0"].version = 3, 3
        made.register("g0")
        made.asked.by_method.clear()
        core.routes.mark_stale()
        await asyncio.sleep(5)
        assert core.accumulator.knows("u", 2)
        assert made.asked.by_method == {"Routes": 3}
        await producer.close()

    made.run(scenario)


# Name servers that are gone


def test_with_all_name_servers_gone_clients_go_on_and_new_ones_find_their_way_by_nodes() -> None:
    made = board(3, g0={"t": 2}, g1={"t": 3})

    async def scenario() -> None:
        made.register_all()
        router = await watched(made)
        for address in list(made.services):
            made.kill(address)
        await until(lambda: not router.route_watch.is_current)
        made.groups["g1"].topics["t"], made.groups["g1"].version = 5, 2
        assert await queues_of(router, fresh=False) == {"g0": 2, "g1": 3}
        assert await queues_of(router) == {"g0": 2, "g1": 5}
        group = made.groups["g0"]
        made.kill(group.leader)
        group.leader, group.term = group.addresses[2], 4
        assert (await router.leaders.leader("g0", group.addresses[0], 1)).leader_address == group.leader
        new = made.router(made.groups["g2"].addresses[0])
        assert await queues_of(new) == {"g0": 2, "g1": 5}
        blind = made.router()
        with pytest.raises(UnreachableError):
            await queues_of(blind)
        for each in (router, new, blind):
            await each.close()

    made.run(scenario)


def test_name_servers_that_come_back_empty_are_used_again_once_they_have_heard_of_the_groups() -> None:
    made = board(2, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        router = await watched(made)
        for address in list(made.services):
            made.kill(address)
        await until(lambda: not router.route_watch.is_current)
        for address in made.name_addresses:
            await made.loop.create_task(made.start_name_server(address), name="start")
        await until(lambda: router.route_watch.is_current)
        assert await queues_of(router, fresh=False) == {"g0": 2}, "an empty name server takes nothing away"
        made.groups["g0"].topics["t"], made.groups["g0"].version = 6, 2
        made.register_all()
        await until(lambda: router.cache.topics["t"][0].read_queues == 6)
        await router.close()

    made.run(scenario)


def cut_off(made: Board, address: str) -> None:
    """It answers no more, and nobody is told so."""
    host, client = address.rpartition(":")[0], made.process.host
    made.net.cut(client, host)
    made.net.cut(host, client)


@pytest.mark.parametrize("strike", [Board.kill, cut_off], ids=["killed", "silent"])
def test_the_watch_goes_on_at_another_name_server(strike: Callable[[Board, str], None]) -> None:
    made = board(2, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        router, group = await watched(made), made.groups["g0"]
        await asyncio.sleep(3)
        lost = router._names.current
        strike(made, lost)
        group.leader, group.term = group.addresses[1], 2
        made.kill(group.addresses[0])
        await router.leaders.leader("g0", group.addresses[0], 1)  # a leader is lost: so may be the name server
        await until(lambda: router.route_watch.is_current and router._names.current not in ("", lost))
        group.leader, group.term = group.addresses[2], 3
        made.register("g0", at=[address for address in made.services if address != lost])
        begun = made.loop.time()
        await until(lambda: router.groups["g0"].term == 3)
        assert made.loop.time() - begun < 0.1
        await router.close()

    made.run(scenario, 100)


# The watch


def test_changes_are_told_at_once_and_only_to_whom_they_concern() -> None:
    made = board(3, g0={"t": 2}, g1={"u": 1})

    async def scenario() -> None:
        made.register_all()
        router, changed = await watched(made), list[str]()
        router.on_topic_change(changed.append)
        await asyncio.sleep(1)
        asked, group, begun = made.asked.by_method["Routes"], made.groups["g0"], made.loop.time()
        group.leader, group.term = group.addresses[2], 2
        made.register("g0")
        await until(lambda: router.groups["g0"].leader_address == group.leader)
        group.topics["t"], group.version = 4, 2
        made.register("g0")
        await until(lambda: changed == ["t"])
        assert made.loop.time() - begun < 0.2
        made.groups["g1"].topics |= {"v": 1}
        made.groups["g1"].version = 2
        made.register("g1")
        await asyncio.sleep(1)
        assert made.asked.by_method["Routes"] == asked + 2, "the other group's change wakes nobody here"
        assert set(router.groups) == {"g0"}
        await router.close()

    made.run(scenario)


def test_at_rest_a_watch_is_one_question_in_twenty_seconds() -> None:
    made = board(2, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        router = await watched(made)
        await asyncio.sleep(5)
        before = made.asked.by_method.copy()
        for _ in range(12):
            made.register_all()  # so that nobody expires
            await asyncio.sleep(10)
        assert 4 <= (made.asked.by_method - before)["Routes"] <= 7
        assert set(made.asked.by_method - before) == {"Routes"}
        await router.close()
        asked = made.asked.by_method.copy()
        await asyncio.sleep(60)
        assert made.asked.by_method == asked, "a closed client asks nobody"

    made.run(scenario)


def test_a_client_that_is_closed_soon_never_watches() -> None:
    made = board(1, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        router = made.router()
        await queues_of(router)
        router.watch()
        await asyncio.sleep(BEGIN_AFTER_S - 0.5)
        await router.close()
        await asyncio.sleep(30)
        assert made.asked.by_method == {"Routes": 1}

    made.run(scenario)


def test_a_client_that_was_never_closed_watches_no_more_once_it_is_gone() -> None:
    made = board(1, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        router = await watched(made)
        del router
        asked = made.asked.by_method.copy()
        await asyncio.sleep(60)
        assert made.asked.by_method == asked

    made.run(scenario)


def test_topics_that_are_used_later_are_watched_too() -> None:
    made = board(2, g0={"t": 2}, g1={"u": 1})

    async def scenario() -> None:
        made.register_all()
        router = await watched(made)
        assert await queues_of(router, "u") == {"g1": 1}
        router.route_watch.topic("later")
        await asyncio.sleep(1)
        made.groups["g1"].topics = {"u": 3, "later": 1}
        made.groups["g1"].version = 2
        made.register("g1")
        await until(lambda: router.cache.topics["u"][0].read_queues == 3 and "later" in router.cache.topics)
        await router.close()

    made.run(scenario)


# Answers that are late, old or wrong


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(2, 1), (1, 0)], (2, 1)),
        ([(1, 0), (2, 1)], (2, 1)),
        ([(3, 2), (2, 1), (3, 2)], (3, 2)),
        ([(2, 1), (2, 1), (2, 1)], (2, 1)),
    ],
    ids=["an older term comes late", "in order", "older between", "repeated"],
)
def test_a_lower_term_never_replaces_a_higher_one(told: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    """Each registration goes to a name server of its own, so that the client hears them all, in that order."""
    made = board(1, 3, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        router, group = await watched(made), made.groups["g0"]
        for term, node in told:
            made.register("g0", term=term, leader=group.addresses[node], at=[router._names.current])
            await asyncio.sleep(0.2)
            names = router._names
            names.current = names.known[(names.known.index(names.current) + 1) % 3] if names.current else names.known[0]
            router.route_watch._more.set()
            await asyncio.sleep(0.5)
        found = router.groups["g0"]
        assert (found.term, found.leader_address) == (expected[0], group.addresses[expected[1]])
        await router.close()

    made.run(scenario)


def test_a_wrong_name_server_costs_time_only() -> None:
    """It names a leader of a term that never was: the nodes of the group, of which none has seen that term, are believed."""
    made = board(1, 1, g0={"t": 2})

    async def scenario() -> None:
        made.register("g0", term=99, leader=made.groups["g0"].addresses[2])
        router, group = made.router(), made.groups["g0"]
        await queues_of(router)
        assert router.groups["g0"].leader_address == group.addresses[2]
        assert (await router.leaders.leader("g0", group.addresses[2], 99)).leader_address == group.leader
        for address in group.addresses[1:]:
            made.kill(address)
        router.cache.learn_group(type(router.groups["g0"])("g0", 99, "x", group.addresses[2], router.groups["g0"].nodes))
        with pytest.raises(NotLeaderError):  # a single node may not have heard of the newer term
            await router.leaders.leader("g0", group.addresses[2], 99)
        await router.close()

    made.run(scenario)


@pytest.mark.parametrize(
    ("at_leader", "expected"),
    [(2, {"g0": 2, "g1": 3}), (0, {"g1": 3}), (None, {"g0": 2, "g1": 3})],
    ids=["the leader has them", "the leader lacks them, too", "the leader is silent"],
)
def test_queues_that_a_name_server_lacks_are_gone_when_their_leader_says_so(at_leader: int | None, expected: dict[str, int]) -> None:
    made = board(2, g0={"t": 2}, g1={"t": 3})

    async def scenario() -> None:
        made.register_all()
        router, group = await watched(made), made.groups["g0"]
        group.topics, group.version = {}, 2
        made.register("g0")
        group.topics = {"t": at_leader} if at_leader else {}
        if at_leader is None:
            made.kill(group.leader)
        await asyncio.sleep(3)
        assert await queues_of(router, fresh=False) == expected
        assert await queues_of(router) == expected
        await router.close()

    made.run(scenario)


def test_an_older_table_of_topics_does_not_replace_what_the_leader_told() -> None:
    made = board(1, g0={"t": 2})

    async def scenario() -> None:
        made.register_all()
        behind = list(made.services)
        router, group = made.router(",".join(made.groups["g0"].addresses)), made.groups["g0"]
        made.knows_names = False
        group.topics["t"], group.version = 7, 5
        assert await queues_of(router) == {"g0": 7}
        router._names.known = tuple(behind)
        assert await queues_of(router) == {"g0": 7}, "the name servers still have 2"
        await router.close()

    made.run(scenario)


# Calls


def test_a_call_to_a_silent_leader_goes_to_the_next_one_as_soon_as_that_is_told() -> None:
    made = board(1, g0={"t": 2})
    answered: list[str] = []

    async def scenario() -> None:
        made.register_all()
        router, group = await watched(made), made.groups["g0"]

        async def create(_request: admin_pb2.TopicSpec, _context: object) -> admin_pb2.TopicReply:
            answered.append(group.leader)
            return admin_pb2.TopicReply(name="made")

        server = made.net.of(made._processes[group.addresses[1]]).serve("10.1.0.2:2")
        methods.CREATE_TOPIC.serve(server, create)
        await made.loop.spawn(made._processes[group.addresses[1]], server.start(), "second port")
        group.addresses[1] = "10.1.0.2:2"
        cut_off(made, group.leader)
        begun, deadline_ms = made.loop.time(), made.clock.monotonic_ms() + 10_000
        call = asyncio.ensure_future(router.call_leader("g0", methods.CREATE_TOPIC, admin_pb2.TopicSpec(name="t"), deadline_ms=deadline_ms))
        await asyncio.sleep(0.05)
        group.leader, group.term = group.addresses[1], 2
        made.register("g0")
        assert (await call).name == "made"
        assert made.loop.time() - begun < 0.5, "without the watch it takes a second of silence, and a search"
        await router.close()

    made.run(scenario)
