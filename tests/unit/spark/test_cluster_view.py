"""Looks at a cluster in virtual time: whose word counts, what it costs, and what a look gives while nobody leads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dledger_client import Message
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, TopicNotFoundError, UnreachableError
from dledger_wire.rpc import methods
from pyspark_dledger.options.model import ReadOptions, parse_read_options
from pyspark_dledger.planning import cluster_queries
from pyspark_dledger.planning import cluster_view as look
from pyspark_dledger.planning.cluster_view import ClusterInspector, ViewRequest
from pyspark_dledger.planning.partitions import QueueId
from tests.unit.client.sim_rig import Rig


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
        assert {(queue.topic, queue.queue_id): held.max_offset for queue, held in view.bounds.items()} == {
            (name, queue): 2 - queue for name in names for queue in range(2)
        }
        assert set(view.topic_epochs) == set(names)
        assert all(not held.by_time for held in view.bounds.values())

        timed = options("t0,t1", startingOffsetsByTimestamp='{"t0":{"0":1}}', endingTimestamp="2100-01-01")
        view = await inspector.read_view(ViewRequest(timed))
        end_ms = timed.end.timestamp_ms
        assert view.bounds[QueueId("t0", "g0", 0)].by_time == {1: 0, end_ms: 2}
        assert view.bounds[QueueId("t1", "g0", 0)].by_time == {end_ms: 2}
        view = await inspector.read_view(ViewRequest(timed, start_times=False))
        assert view.bounds[QueueId("t0", "g0", 0)].by_time == {end_ms: 2}

        for name, size in (("NAMES_A_REQUEST", 7), ("QUEUES_A_REQUEST", 9)):
            monkeypatch.setattr(look, name, size)
        inspector.asked = 0
        assert len((await inspector.read_view(ViewRequest(options(",".join(names))))).bounds) == 40
        assert inspector.asked == 3 + 5

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
            (options("other", queues="9"), InvalidArgumentError, "the topics have none of these queues"),
        ):
            with pytest.raises(kind, match=words):
                await inspector.read_view(ViewRequest(asked))
        assert set((await inspector.read_view(ViewRequest(options("other,nowhere"), {"nowhere"}))).topic_epochs) == {"other"}

    Rig().run(scenario)


def test_without_a_leader_followers_tell_what_they_have_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 6)
        inspector, asked = ClusterInspector(rig.router()), options(linearizable="true")
        assert (await inspector.read_view(ViewRequest(asked))).bounds[QueueId("t", "g0", 0)].max_offset == 3
        await asyncio.sleep(2)  # virtual: followers hear what is committed
        dead, alive = [rig.master, rig.followers[0]], rig.followers[1]
        for node_id in dead:
            rig.cluster.kill(node_id)
        view = await inspector.read_view(ViewRequest(options()))
        assert {queue.queue_id: held.max_offset for queue, held in view.bounds.items()} == {0: 3, 1: 3}
        assert view.unreachable == {}
        with pytest.raises((NotLeaderError, UnreachableError)):
            await inspector.read_view(ViewRequest(asked))
        rig.cluster.kill(alive)
        with pytest.raises(UnreachableError, match="topic t was not found in the replica groups that responded"):
            await inspector.read_view(ViewRequest(options()))
        for node_id in (*dead, alive):
            rig.cluster.start(node_id)
        assert (await inspector.read_view(ViewRequest(options()))).bounds[QueueId("t", "g0", 1)].max_offset == 3

    Rig().run(scenario)


def test_a_group_that_is_silent_stops_nobody_who_can_do_without_it() -> None:
    class OneIsDead(ClusterInspector):
        """Knows of a second group, of which nobody answers."""

        async def _group(self, group: str, wanted: ViewRequest, deadline_ms: int) -> Any:
            if group == "g1":
                return UnreachableError("g1 is dead")
            return await super()._group(group, wanted, deadline_ms)

        async def _replica_groups(self, wanted: ViewRequest, deadline_ms: int) -> list[str]:
            return ["g0", "g1"]

    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 2)
        inspector, router = OneIsDead(rig.router()), rig.router()
        assert (await inspector.read_view(ViewRequest(options()))).unreachable == {}  # g0 was told that nobody else has the topic
        both = admin_pb2.TopicSpec(name="t", groups=["g0", "g1"])
        await router.call_leader("g0", methods.UPDATE_TOPIC, both, deadline_ms=router.clock.monotonic_ms() + 5000)
        await asyncio.sleep(1)
        view = await inspector.read_view(ViewRequest(options(failOnDataLoss="false")))
        assert (len(view.bounds), list(view.unreachable)) == (2, ["g1"])
        assert len((await inspector.read_view(ViewRequest(options("t,u"), {"u"}, whole=False))).bounds) == 2
        assert len((await inspector.read_view(ViewRequest(options("", topicPattern="t"), whole=False))).bounds) == 2
        for asked, words in (
            (options("t,u"), "topic u was not found in the replica groups that responded"),
            (options("", topicPattern="t"), "no response from replica groups g1"),
            (options(), "g1 did not respond and may have queues of t .* set failOnDataLoss to false"),
        ):
            with pytest.raises(UnreachableError, match=words):
                await inspector.read_view(ViewRequest(asked))

    Rig().run(scenario)


def test_the_lookout_of_a_process_is_kept_and_nobody_there_is_told() -> None:
    asked = parse_read_options({"bootstrap": "127.0.0.1:1", "topic": "t", "readTimeoutMs": "100"})
    assert ClusterInspector.of_this_process(asked) is ClusterInspector.of_this_process(asked)
    assert ClusterInspector.of_this_process(asked) is not ClusterInspector.of_this_process(replace(asked, replica="n1"))
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        cluster_queries.read_cluster_view(asked)
