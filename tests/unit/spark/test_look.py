"""Looks at a cluster in virtual time: whose word counts, what it costs, and what a look gives while nobody leads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dledger_client import Message
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, TopicNotFoundError, UnreachableError
from pyspark_dledger.options.model import ReadOptions, parse_read_options
from pyspark_dledger.planning import cluster_queries as cluster
from pyspark_dledger.planning import cluster_view as look
from pyspark_dledger.planning.cluster_view import Lookout, Wanted
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


class Counting(Lookout):
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
        lookout = Counting(rig.router())
        view = await lookout.look(Wanted(options(",".join(names))))
        assert lookout.asked == 2
        assert {(queue.topic, queue.queue_id): held.max_offset for queue, held in view.bounds.items()} == {
            (name, queue): 2 - queue for name in names for queue in range(2)
        }
        assert set(view.incarnations) == set(names)
        assert all(not held.by_time for held in view.bounds.values())

        timed = options("t0,t1", startingOffsetsByTimestamp='{"t0":{"0":1}}', endingTimestamp="2100-01-01")
        view = await lookout.look(Wanted(timed))
        end_ms = timed.end.timestamp_ms
        assert view.bounds[QueueId("t0", "g0", 0)].by_time == {1: 0, end_ms: 2}
        assert view.bounds[QueueId("t1", "g0", 0)].by_time == {end_ms: 2}
        view = await lookout.look(Wanted(timed, start_times=False))
        assert view.bounds[QueueId("t0", "g0", 0)].by_time == {end_ms: 2}

        for name, size in (("NAMES_A_REQUEST", 7), ("QUEUES_A_REQUEST", 9)):
            monkeypatch.setattr(look, name, size)
        lookout.asked = 0
        assert len((await lookout.look(Wanted(options(",".join(names))))).bounds) == 40
        assert lookout.asked == 3 + 5

    Rig().run(scenario)


def test_a_pattern_finds_topics_and_mistakes_are_told() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, "orders-a", 1)
        await fill(rig, "other", 1)
        lookout = Lookout(rig.router())
        assert set((await lookout.look(Wanted(options("", topicPattern="orders-.*")))).incarnations) == {"orders-a"}
        for asked, kind, words in (
            (options("", topicPattern="x.*"), TopicNotFoundError, "no topic matches"),
            (options("other,nowhere"), TopicNotFoundError, "topic nowhere does not exist"),
            (options("other", queues="9"), InvalidArgumentError, "none of the queues is one of the topics"),
        ):
            with pytest.raises(kind, match=words):
                await lookout.look(Wanted(asked))
        assert set((await lookout.look(Wanted(options("other,nowhere"), {"nowhere"}))).incarnations) == {"other"}

    Rig().run(scenario)


def test_without_a_leader_followers_tell_what_they_have_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 6)
        lookout, asked = Lookout(rig.router()), options(linearizable="true")
        assert (await lookout.look(Wanted(asked))).bounds[QueueId("t", "g0", 0)].max_offset == 3
        await asyncio.sleep(2)  # virtual: followers hear what is committed
        dead, alive = [rig.master, rig.followers[0]], rig.followers[1]
        for node_id in dead:
            rig.cluster.kill(node_id)
        view = await lookout.look(Wanted(options()))
        assert {queue.queue_id: held.max_offset for queue, held in view.bounds.items()} == {0: 3, 1: 3}
        assert view.silent == {}
        with pytest.raises((NotLeaderError, UnreachableError)):
            await lookout.look(Wanted(asked))
        rig.cluster.kill(alive)
        with pytest.raises(UnreachableError, match="topic t is in no replica group that answers"):
            await lookout.look(Wanted(options()))
        for node_id in (*dead, alive):
            rig.cluster.start(node_id)
        assert (await lookout.look(Wanted(options()))).bounds[QueueId("t", "g0", 1)].max_offset == 3

    Rig().run(scenario)


def test_a_group_that_is_silent_stops_nobody_who_can_do_without_it() -> None:
    class OneIsDead(Lookout):
        """Knows of a second group, of which nobody answers."""

        async def _group(self, group: str, wanted: Wanted, deadline_ms: int) -> Any:
            if group == "g1":
                return UnreachableError("g1 is dead")
            return await super()._group(group, wanted, deadline_ms)

        async def _look_once(self, wanted: Wanted, deadline_ms: int) -> Any:
            self._router.groups["g1"] = self._router.groups["g0"]
            return await super()._look_once(wanted, deadline_ms)

    async def scenario(rig: Rig) -> None:
        await fill(rig, "t", 2)
        lookout = OneIsDead(rig.router())
        view = await lookout.look(Wanted(options(failOnDataLoss="false")))
        assert (len(view.bounds), list(view.silent)) == (2, ["g1"])
        assert len((await lookout.look(Wanted(options("t,u"), {"u"}, whole=False))).bounds) == 2
        assert len((await lookout.look(Wanted(options("", topicPattern="t"), whole=False))).bounds) == 2
        for asked, words in (
            (options("t,u"), "topic u is in no replica group that answers"),
            (options("", topicPattern="t"), "not known of g1"),
            (options(), "g1 may have queues of t and does not answer .* set failOnDataLoss to false"),
        ):
            with pytest.raises(UnreachableError, match=words):
                await lookout.look(Wanted(asked))

    Rig().run(scenario)


def test_the_lookout_of_a_process_is_kept_and_nobody_there_is_told() -> None:
    asked = parse_read_options({"bootstrap": "127.0.0.1:1", "topic": "t", "readTimeoutMs": "100"})
    assert Lookout.of_this_process(asked) is Lookout.of_this_process(asked)
    assert Lookout.of_this_process(asked) is not Lookout.of_this_process(replace(asked, replica="n1"))
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        cluster.describe(asked)
