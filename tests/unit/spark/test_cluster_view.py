"""Looks at a cluster in virtual time: whose word counts, what it costs, and what a look gives while nobody leads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from dledger_client import Message
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, NotReadyError, TopicNotFoundError, UnreachableError
from dledger_wire.rpc import methods
from pyspark_dledger.options.model import ReadOptions, parse_read_options
from pyspark_dledger.planning import bounds_questions, cluster_queries, cluster_view
from pyspark_dledger.planning.bounds_questions import ViewRequest
from pyspark_dledger.planning.cluster_view import ClusterInspector
from pyspark_dledger.planning.pushdown import narrowed
from pyspark_dledger.planning.queue_offsets import QueueId
from tests.sim.disk import MountedDisk, SimFile
from tests.unit.client.sim_rig import Rig, until
from tests.unit.spark.views import held_of


def options(topic: str = "t", **extra: str) -> ReadOptions:
    named = {"topic": topic} if topic else {}
    return parse_read_options({"bootstrap": "h:1", **named, **extra}, stream=True)


async def fill(rig: Rig, topic: str, count: int, queues: int = 2) -> None:
    await rig.topic(topic, queues=queues)
    async with rig.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number), queue_id=number % queues)


class Counting(ClusterInspector):
    """Counts its questions to groups."""

    asked = 0

    async def _ask(self, *rest: Any) -> Any:
        self.asked += 1
        return await super()._ask(*rest)


def test_one_question_a_group_tells_of_all_topics_queues_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        names = [f"t{number}" for number in range(20)]
        for name in names:
            await fill(rig, name, 3)
        inspector = Counting(rig.router())
        view = await inspector.read_view(ViewRequest(options(",".join(names))))
        assert inspector.asked == 2
        assert {(queue.topic, queue.queue_id): held[1] for queue, held in held_of(view.bounds).items()} == {
            (name, queue): 2 - queue for name in names for queue in range(2)
        }
        assert set(view.topic_epochs) == set(names)
        assert all(not held.by_time for held in view.bounds.values())

        timed = options("t0,t1", startingOffsetsByTimestamp='{"t0":{"0":1000000000000}}', endingTimestamp="2100-01-01")
        view = await inspector.read_view(ViewRequest(timed))
        end_ms = timed.end.timestamp_ms
        assert held_of(view.bounds)[QueueId("t0", "g0", 0)] == (0, 2, {10**12: 0, end_ms: 2})
        assert held_of(view.bounds)[QueueId("t1", "g0", 0)] == (0, 2, {end_ms: 2})
        view = await inspector.read_view(ViewRequest(timed, start_times=False))
        assert held_of(view.bounds)[QueueId("t0", "g0", 0)] == (0, 2, {end_ms: 2})

        monkeypatch.setattr(cluster_view, "NAMES_A_REQUEST", 7)
        monkeypatch.setattr(bounds_questions, "QUEUES_A_REQUEST", 9)
        inspector.asked = 0
        assert len(held_of((await inspector.read_view(ViewRequest(options(",".join(names))))).bounds)) == 40
        assert inspector.asked == 3 + 5

    Rig().run(scenario)


@pytest.mark.parametrize(
    ("extra", "numbers"),
    [
        ({}, (0, 1, 2)),
        ({"queues": "g0:1,g0:2"}, (1, 2)),
        ({"endingTimestamp": "2100-01-01"}, (0, 1, 2)),
        ({"startingOffsetsByTimestamp": '{"t1":{"0":1000000000000}}'}, (0, 1, 2)),
        ({"startingOffsetsByTimestamp": '{"t1":{"2":1000000000000}}', "queues": "0,2"}, (0, 2)),
    ],
)
def test_bounds_are_of_the_queues_asked_for(extra: dict[str, str], numbers: tuple[int, ...]) -> None:
    async def scenario(rig: Rig) -> None:
        for name in ("t0", "t1", "t2"):
            await fill(rig, name, 4, queues=3)
        asked = ViewRequest(options("t0,t1,t2", **extra))
        now = await ClusterInspector(rig.router()).read_view(asked)
        expected = {QueueId(name, "g0", number): (0, 2 - (number > 0)) for name in ("t0", "t1", "t2") for number in numbers}
        assert {queue: held[:2] for queue, held in held_of(now.bounds).items()} == expected

    Rig().run(scenario)


def test_the_first_look_at_many_used_queues_opens_no_file_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after they were filled, and after a start: what it costs does not depend on how many were used."""
    opened: list[str] = []
    opening = MountedDisk.open

    async def counted(disk: MountedDisk, path: str, *, create: bool = False) -> SimFile:
        opened.append(path)
        return await opening(disk, path, create=create)

    monkeypatch.setattr(MountedDisk, "open", counted)

    async def scenario(rig: Rig) -> None:
        for name in ("t0", "t1"):
            await fill(rig, name, 60, queues=60)
        asked = ViewRequest(options("t0,t1"))
        everything = {QueueId(name, "g0", number): (0, 1) for name in ("t0", "t1") for number in range(60)}
        for again in (False, True):
            if again:
                for node_id in rig.cluster.groups["g0"].node_ids:
                    rig.cluster.kill(node_id)
                    rig.cluster.start(node_id)
                await until(lambda: rig.is_group_up("g0"))
            opened.clear()
            inspector = Counting(rig.router())
            assert held_of((await inspector.read_view(asked)).bounds) == everything
            assert inspector.asked == 2
            assert [path for path in opened if path.startswith("consumequeue/t")] == []

    Rig().run(scenario)


def test_a_pattern_finds_topics_and_mistakes_are_told() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, "orders-a", 1)
        await fill(rig, "other", 1)
        inspector = ClusterInspector(rig.router())
        assert set((await inspector.read_view(ViewRequest(options("", topicPattern="orders-.*")))).topic_epochs) == {"orders-a"}
        for asked, kind, words in (
            (options("", topicPattern="x.*"), TopicNotFoundError, "no topic matches"),
            (options("other,nowhere"), TopicNotFoundError, "topic nowhere does not exist"),
            (options("other", queues="9"), InvalidArgumentError, "queue 9 does not exist; topic other has g0:0 to g0:1"),
            (options("other", queues="0,9"), InvalidArgumentError, "option queues: queue 9 does not exist"),
            (options("other", queues="g0:0,g9:1"), InvalidArgumentError, "option queues: queue g9:1 does not exist"),
            (
                options("", assign='{"other":[0],"orders-a":[0,2]}'),
                InvalidArgumentError,
                "option assign: queue 2 of topic orders-a does not exist; topic orders-a has g0:0 to g0:1",
            ),
        ):
            with pytest.raises(kind, match=words):
                await inspector.read_view(ViewRequest(asked))
        assert set((await inspector.read_view(ViewRequest(options("other,nowhere"), {"nowhere"}))).topic_epochs) == {"other"}
        await rig.topic("wide", queues=4)  # a queue that one of the topics has is no mistake, also where a filter leaves that topic out
        several = options("other,wide", queues="0,3")
        assert set(held_of((await inspector.read_view(ViewRequest(several))).bounds)) == {
            QueueId(topic, "g0", queue) for topic, queue in (("other", 0), ("wide", 0), ("wide", 3))
        }
        one, _ = narrowed(several, [EqualTo(("topic",), "other")])
        assert set(held_of((await inspector.read_view(ViewRequest(one))).bounds)) == {QueueId("other", "g0", 0)}
        running = ViewRequest(options("other", queues="0,3"), {"other"})  # its topic may have been made again with fewer queues
        assert set(held_of((await inspector.read_view(running)).bounds)) == {QueueId("other", "g0", 0)}

    Rig().run(scenario)


def test_without_a_leader_followers_tell_what_they_have_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 6)
        inspector, asked = ClusterInspector(rig.router()), options(linearizable="true")
        assert held_of((await inspector.read_view(ViewRequest(asked))).bounds)[QueueId("t", "g0", 0)][1] == 3
        await asyncio.sleep(2)  # virtual: followers hear what is committed
        dead, alive = [rig.master, rig.followers[0]], rig.followers[1]
        for node_id in dead:
            rig.cluster.kill(node_id)
        view = await inspector.read_view(ViewRequest(options()))
        assert held_of(view.bounds) == {QueueId("t", "g0", number): (0, 3) for number in range(2)}
        assert view.unreachable == {}
        with pytest.raises(NotReadyError, match="replica group g0 has no leader now, so where this query has to end is not known"):
            await inspector.read_view(ViewRequest(options(), from_leaders=True))
        with pytest.raises((NotLeaderError, UnreachableError)):
            await inspector.read_view(ViewRequest(asked))
        rig.cluster.kill(alive)
        with pytest.raises(UnreachableError, match="topic t was not found in the replica groups that responded"):
            await inspector.read_view(ViewRequest(options()))
        for node_id in (*dead, alive):
            rig.cluster.start(node_id)
        assert (await inspector.read_view(ViewRequest(asked))).leaderless == set()  # it waits for the election
        led = await inspector.read_view(ViewRequest(options(), from_leaders=True))
        assert held_of(led.bounds)[QueueId("t", "g0", 1)][1] == 3

    Rig().run(scenario)


def test_where_an_available_now_query_ends_is_told_by_who_still_leads() -> None:
    class Replaced(ClusterInspector):
        """Asks a leader that does not know yet of its successor, and of what that one has stored, until it is made to look."""

        knows = False

        async def _ask(self, group: str, method: Any, *rest: Any) -> Any:
            answer = await super()._ask(group, method, *rest)
            if method is methods.QUEUE_OFFSETS and not self.knows:
                for entry in answer.topics:
                    entry.max_offsets = bytes(len(entry.max_offsets))
            return answer

        async def _confirm_leader(self, queue: QueueId, offset: int, deadline_ms: int) -> None:
            await super()._confirm_leader(queue, offset, deadline_ms)
            self.knows = True

    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 6)
        view = await Replaced(rig.router()).read_view(ViewRequest(options(), from_leaders=True))
        assert held_of(view.bounds) == {QueueId("t", "g0", number): (0, 3) for number in range(2)}

    Rig().run(scenario)


def test_a_group_that_is_silent_stops_nobody_who_can_do_without_it() -> None:
    class OneIsDead(ClusterInspector):
        """Knows of a second group, of which nobody answers."""

        async def _topics(self, group: str, wanted: ViewRequest, deadline_ms: int) -> Any:
            if group == "g1":
                raise UnreachableError("g1 is dead")
            return await super()._topics(group, wanted, deadline_ms)

        async def _replica_groups(self, wanted: ViewRequest, deadline_ms: int) -> list[str]:
            return ["g0", "g1"]

    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 2)
        inspector, router = OneIsDead(rig.router()), rig.router()
        assert (await inspector.read_view(ViewRequest(options()))).unreachable == {}  # g0 was told that nobody else has the topic
        assert (await inspector.read_view(ViewRequest(options(linearizable="true")))).unreachable == {}
        both = admin_pb2.TopicSpec(name="t", groups=["g0", "g1"])
        await router.call_leader("g0", methods.UPDATE_TOPIC, both, deadline_ms=router.clock.monotonic_ms() + 5000)
        await asyncio.sleep(1)
        view = await inspector.read_view(ViewRequest(options(failOnDataLoss="false")))
        assert (len(held_of(view.bounds)), list(view.unreachable)) == (2, ["g1"])
        assert len(held_of((await inspector.read_view(ViewRequest(options("t,u"), {"u"}, whole=False))).bounds)) == 2
        assert len(held_of((await inspector.read_view(ViewRequest(options("", topicPattern="t"), whole=False))).bounds)) == 2
        for asked, words in (
            (options("t,u"), "topic u was not found in the replica groups that responded"),
            (options("", topicPattern="t"), "no response from replica groups g1"),
            (options(), "g1 did not respond and may have queues of t .* set failOnDataLoss to false"),
        ):
            with pytest.raises(UnreachableError, match=words):
                await inspector.read_view(ViewRequest(asked))
        with pytest.raises(UnreachableError, match=r"set failOnDataLoss to false .* as an available-now query does when it is new"):
            await inspector.read_view(ViewRequest(options(), from_leaders=True))

    Rig().run(scenario)


def test_a_look_at_one_group_does_not_need_the_others() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        inspector, asked = ClusterInspector(rig.router()), options(linearizable="true")
        assert {queue.group for queue in held_of((await inspector.read_view(ViewRequest(asked))).bounds)} == {"g0", "g1"}
        for node_id in [rig.master_of("g1"), *rig.followers_of("g1")]:
            rig.cluster.kill(node_id)
        with pytest.raises((NotLeaderError, UnreachableError)):
            await inspector.read_view(ViewRequest(asked, {"t"}, whole=False))
        view = await inspector.read_view(ViewRequest(asked, {"t"}, whole=False, groups={"g0"}))
        assert {queue.group for queue in held_of(view.bounds)} == {"g0"}

    Rig(groups=2).run(scenario)


def test_the_lookout_of_a_process_is_kept_and_nobody_there_is_told() -> None:
    asked = parse_read_options({"bootstrap": "127.0.0.1:1", "topic": "t", "readTimeoutMs": "100"})
    assert ClusterInspector.of_this_process(asked) is ClusterInspector.of_this_process(asked)
    assert ClusterInspector.of_this_process(asked) is not ClusterInspector.of_this_process(replace(asked, replica="n1"))
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        cluster_queries.read_cluster_view(asked)
