"""Push consumers against real nodes in virtual time: sharing, positions, retries, resets, broadcast."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dledger_client import message_fields
from dledger_client.aio import Action, ConsumeContext, Message
from dledger_client.consumer.allocation import MessageQueue, by_config, consistent_hash
from dledger_client.consumer.offset_file import OffsetFile
from dledger_client.consumer.settings import PushOptions
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.errors import BusyError, InvalidArgumentError
from tests.sim.cluster import SMALL_LOG
from tests.unit.client.push_rig import Group, numbers, send
from tests.unit.client.sim_rig import Rig, until


def test_everything_is_consumed_once_and_shared_within_a_second_of_a_join() -> None:
    """docs/reference/semantics, row G2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        group = Group(rig)
        await send(rig, 400, 4)
        await group.start("a")
        await until(lambda: len(group.seen) >= 400)
        assert sorted(group.bodies()) == sorted(numbers(400))
        assert group.share("a") == [0, 1, 2, 3]
        joined_s = rig.cluster.loop.now_s
        await group.start("b")
        await until(lambda: group.shares == {"a": [0, 1], "b": [2, 3]})
        assert rig.cluster.loop.now_s - joined_s < 1.0
        await send(rig, 400, 4, first=400)
        await until(lambda: len(group.seen) >= 800)
        await group.stop()
        assert sorted(group.bodies()) == sorted(numbers(800))

    Rig().run(scenario)


def test_a_leave_and_a_death_are_followed_within_a_second() -> None:
    """docs/reference/semantics, row G2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=6)
        group = Group(rig)
        await group.start("a", "b", "c")
        await until(lambda: group.shares == {"a": [0, 1], "b": [2, 3], "c": [4, 5]})
        left_s = rig.cluster.loop.now_s
        await group.stop("b")
        await until(lambda: group.shares == {"a": [0, 1, 2], "c": [3, 4, 5]})
        assert rig.cluster.loop.now_s - left_s < 1.0
        killed_s = rig.cluster.loop.now_s
        group.kill("a")
        await until(lambda: group.shares == {"c": [0, 1, 2, 3, 4, 5]})
        assert rig.cluster.loop.now_s - killed_s < 1.0
        await group.start("d")
        await until(lambda: len(group.share("d")) == 3)
        died_s = rig.cluster.loop.now_s
        group.kill("d", silent=True)
        await until(lambda: group.shares == {"c": [0, 1, 2, 3, 4, 5]})
        assert rig.cluster.loop.now_s - died_s < 1.7
        await group.stop()

    Rig().run(scenario)


def test_a_planned_handover_gives_no_message_twice() -> None:
    """docs/reference/semantics, row G2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        group = Group(rig)
        group.pause_s = 0.03
        await send(rig, 600, 4)
        await group.start("a")
        await until(lambda: len(group.seen) > 50)
        await group.start("b")
        await until(lambda: len(group.seen) > 250)
        await group.stop("a")
        await until(lambda: len(group.seen) >= 600)
        await group.stop()
        assert sorted(group.bodies()) == sorted(numbers(600))

    Rig().run(scenario)


def test_a_member_that_joins_before_the_others_are_told_who_took_a_queue_gets_no_message_twice() -> None:
    """docs/reference/semantics, row G2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await send(rig, 400, 4)
        group = Group(rig, read_from="follower")
        group.pause_s = 0.01
        leader = rig.cluster.hosts[rig.master].ip
        for source, target in (("10.0.2.1", leader), (leader, "10.0.2.1")):
            rig.cluster.net.link(source, target).extra_s = 0.1  # of the first member, which has read from a follower before others know
        await group.start("a")
        await until(lambda: len(group.seen) > 0)
        await group.start("b")
        await until(lambda: len(set(group.bodies())) >= 400)
        await group.stop()
        assert sorted(group.bodies()) == sorted(numbers(400))

    Rig().run(scenario)


def test_what_was_committed_is_not_consumed_again_and_nothing_is_skipped_after_a_kill() -> None:
    """docs/reference/semantics, row G1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        group.pause_s = 0.02
        await send(rig, 500, 2)
        await group.start("a")
        await asyncio.sleep(0.25)
        group.kill("a")
        await group.start("b")
        await until(lambda: set(group.bodies()) >= set(numbers(500)))
        await group.stop()
        again = Group(rig)
        await again.start("c")
        await asyncio.sleep(2)
        assert again.bodies() == []
        await again.stop()

    Rig().run(scenario)


def test_a_failover_moves_no_queue_and_loses_nothing() -> None:
    """docs/reference/semantics, row G1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        group = Group(rig)
        await group.start("a", "b")
        await until(lambda: group.shares == {"a": [0, 1], "b": [2, 3]})
        await send(rig, 100, 4)
        await until(lambda: len(group.seen) == 100)
        rig.cluster.kill(rig.master)
        await send(rig, 100, 4, first=100)
        await until(lambda: len(group.seen) >= 200)
        await asyncio.sleep(2)
        assert group.shares == {"a": [0, 1], "b": [2, 3]}
        assert sorted(group.bodies()) == sorted(numbers(200))
        await group.stop()

    Rig().run(scenario)


@pytest.mark.parametrize("answer", [Action.RECONSUME_LATER, None, "nonsense"])
def test_what_a_listener_does_not_commit_comes_again_under_its_own_topic(answer: object) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        group.answers = [answer]
        await send(rig, 3)
        await group.start("a")
        await until(lambda: len(group.seen) == 4)
        again = group.seen[-1]
        assert (again.body, again.topic) == (group.seen[0].body, "t")
        assert again.at_s - group.seen[0].at_s >= 10  # the third delay level, as upstream
        await group.stop()

    Rig().run(scenario)


def test_a_message_nobody_takes_back_is_tried_again_here_and_never_skipped() -> None:
    """docs/reference/semantics, row G3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        group.answers = [Action.RECONSUME_LATER, Action.RECONSUME_LATER]
        group.pause_s = 0.5
        await send(rig, 1)
        await group.start("a")
        await until(lambda: len(group.seen) == 1)
        for node_id in rig.cluster.hosts:  # nobody is there to send it back to
            rig.cluster.net.cut(group.members["a"].process.host, rig.cluster.hosts[node_id].ip)
        await until(lambda: len(group.seen) == 2)
        assert group.bodies() == [b"0", b"0"]
        rig.cluster.net.heal_all()
        await until(lambda: len(group.seen) == 3)
        await group.stop()

    Rig().run(scenario)


def test_what_was_taken_back_is_not_tried_again_here_with_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, rows B1, G3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, consume_message_batch_max_size=2)
        group.answers = [Action.RECONSUME_LATER, Action.RECONSUME_LATER]
        await send(rig, 1)
        monkeypatch.setattr(message_fields, "PLACE_BYTES", 0)  # other clients leave no room for what a retry adds
        await send(rig, 1, first=1, properties={"p": "x" * 32_700})
        await group.start("a")
        await until(lambda: len(group.seen) >= 5)
        assert group.bodies() == [b"0", b"1", b"1", b"1", b"0"]
        assert [each.attempt for each in group.seen] == [0, 0, 0, 0, 1]
        await group.stop()

    Rig(log=replace(SMALL_LOG, segment_bytes=256 << 10)).run(scenario)


def test_flow_limits_hold_back_reading() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 300, properties={"n": "1"})
        group = Group(rig, pull_threshold_for_queue=20, consume_threads=2, pull_batch_size=8)
        group.pause_s = 0.01
        await group.start("a")
        engine = group.members["a"].consumer._engine
        assert engine is not None
        most = 0
        while len(group.seen) < 300:
            for queue in engine.queues.values():
                most = max(most, queue.process_queue.count if queue.process_queue is not None else 0)
            await asyncio.sleep(0.005)
        assert 8 < most <= 20
        await group.stop()

    Rig().run(scenario)


def test_tags_and_batches() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 10, tags="odd")
        await send(rig, 10, first=10, tags="even")
        group = Group(rig, consume_message_batch_max_size=4)
        group.add("a").consumer.subscribe("t", "even")
        await group.start("a")
        await until(lambda: len(group.seen) == 10)
        assert group.bodies() == numbers(10, 10)
        assert len({each.at_s for each in group.seen}) <= 10
        await group.stop()
        async with rig.consumer("g") as operator:
            assert (await operator.committed("t"))["g0", 0] == 20

    Rig().run(scenario)


def test_a_start_that_failed_is_repeated_and_none_follows_a_shutdown(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 3)
        group = Group(rig, broadcast=True, offset_folder=str(tmp_path))
        consumer = group.add("a").consumer
        other = OffsetFile(str(tmp_path), "10.0.0.1", "g", "a")
        with pytest.raises(BusyError, match="uses the offset file of a"):
            await consumer.start()
        assert not consumer.is_running
        assert consumer._is_left_open  # it has connections: who gives up is warned
        await other.close()
        await asyncio.gather(consumer.start(), consumer.start())
        assert consumer.is_running
        await until(lambda: len(group.seen) == 3)
        await consumer.shutdown()
        with pytest.raises(InvalidArgumentError, match="was shut down"):
            await consumer.start()
        assert group.bodies() == numbers(3)
        assert not consumer._is_left_open

    Rig().run(scenario)


def test_a_strategy_that_fails_now_and_then_stops_nobody() -> None:
    answers: list[object] = [None, [[]], SystemExit(1), ZeroDivisionError()]

    def strategy(client_id: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        answer = answers.pop() if answers else queues
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, allocate_strategy=strategy)
        await group.start("a")
        await until(lambda: group.share("a") == [0, 1])
        await group.stop()
        assert answers == []

    Rig().run(scenario, limit_s=60)


def test_a_strategy_that_fails_each_time_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """It was a traceback every other second."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, allocate_strategy="MACHINE_ROOM_NEARBY")
        await group.start("-a")  # whose room is the empty name
        await asyncio.sleep(60)
        await group.stop()

    Rig().run(scenario)
    (told,) = [record for record in caplog.records if "allocation strategy failed on t" in record.message]
    assert "machine room of -a: empty" in (told.exc_text or "")


def test_a_consumer_that_comes_back_after_another_took_its_client_id_consumes_nothing() -> None:
    """docs/reference/semantics, row G2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        await group.start("a")
        await until(lambda: group.share("a") == [0, 1])
        first = group.members.pop("a")
        for host in rig.cluster.hosts.values():
            rig.cluster.net.cut(first.process.host, host.ip)
            rig.cluster.net.cut(host.ip, first.process.host)
        await asyncio.sleep(2)
        group.add("a").consumer._environment.random.getrandbits(32)  # its session has another id
        await group.start("a")
        await until(lambda: group.share("a") == [0, 1])
        rig.cluster.net.heal_all()
        await asyncio.sleep(5)
        await send(rig, 20, 2)
        await asyncio.sleep(2)
        assert sorted(group.bodies()) == sorted(numbers(20))
        await group.stop()
        await until(lambda: len(first.consumer.assigned()) == 2)  # it is the one of this id again
        await send(rig, 20, 2, first=100)
        await until(lambda: len(first.seen) == 20)
        group.members["a"] = first
        await group.stop()

    Rig().run(scenario)


def test_settings_have_two_names() -> None:
    options = PushOptions.of(
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "messageModel": "BROADCASTING",
            "consumeThreadMin": 5,
            "consumeThreadMax": 9,
            "pullThresholdSizeForQueue": 3,
            "max_reconsume_times": 4,
        }
    )
    assert (options.consume_from_where, options.broadcast, options.consume_threads) == ("last", True, 9)
    assert (options.pull_threshold_size_for_queue, options.max_reconsume_times) == (3 << 20, 4)
    with pytest.raises(TypeError, match="no setting 'consumeThreads'"):
        PushOptions.of({"consumeThreads": 1})
    with pytest.raises(InvalidArgumentError, match="broadcast is given twice"):
        PushOptions.of({"broadcast": True, "messageModel": "CLUSTERING"})
    with pytest.raises(InvalidArgumentError, match="expected CONSUME_FROM_FIRST_OFFSET or"):
        PushOptions.of({"consumeFromWhere": "first"})


def test_mistakes_are_told_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        for options in ({"consume_threads": 0}, {"consume_from_where": "middle"}, {"allocate_strategy": "BY_WEATHER"}):
            with pytest.raises(InvalidArgumentError):
                Group(rig, **options).add("a")
        consumer = Group(rig).add("a").consumer
        consumer.listener = None
        with pytest.raises(InvalidArgumentError, match="needs a listener"):
            await consumer.start()

    Rig().run(scenario)


def test_a_master_that_stands_still_is_left_for_its_successor() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        await group.start("a")
        await until(lambda: group.share("a") == [0, 1])
        await send(rig, 10, 2)
        await until(lambda: len(group.seen) == 10)
        process = rig.cluster.hosts[rig.master].process
        assert process is not None
        rig.cluster.loop.pause(process)
        paused_s = rig.cluster.loop.now_s
        await send(rig, 10, 2, first=10)
        await until(lambda: len(group.seen) == 20)
        assert rig.cluster.loop.now_s - paused_s < 3.5
        rig.cluster.loop.resume(process)
        await group.stop()

    Rig().run(scenario)


@pytest.mark.parametrize("strategy", ["AVG_BY_CIRCLE", "CONSISTENT_HASH", "CONFIG"])
def test_members_share_by_the_strategy_they_are_given(strategy: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=8)
        group = Group(rig)
        every = [MessageQueue("t", "g0", number) for number in range(8)]
        for name, preset in (("a", every[:3]), ("b", every[3:])):
            chosen = by_config(preset) if strategy == "CONFIG" else strategy
            await group.start(name, allocate_strategy=chosen)
        golden = {
            "AVG_BY_CIRCLE": {"a": [0, 2, 4, 6], "b": [1, 3, 5, 7]},
            "CONFIG": {"a": [0, 1, 2], "b": [3, 4, 5, 6, 7]},
            "CONSISTENT_HASH": {name: [queue.queue_id for queue in consistent_hash()(name, every, ["a", "b"])] for name in ("a", "b")},
        }[strategy]
        await until(lambda: group.shares == golden)
        await group.stop()

    Rig().run(scenario)


def test_sql_filters_and_positions_behind_what_they_leave_out() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for number in range(20):
                await producer.send(Message("t", b"%d" % number, properties={"n": str(number)}))
        group = Group(rig)
        group.add("a").consumer.subscribe("t", sql="n BETWEEN 5 AND 8")
        await group.start("a")
        await until(lambda: len(group.seen) == 4)
        await group.stop()
        assert sorted(group.bodies()) == numbers(4, 5)
        async with rig.consumer("g") as operator:
            assert (await operator.committed("t"))["g0", 0] == 20

    Rig().run(scenario)


def test_a_listener_may_take_part_of_a_batch_and_give_the_rest_up() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 4)
        group = Group(rig, consume_message_batch_max_size=4)
        consumer = group.add("a").consumer
        given: list[list[bytes]] = []

        def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
            given.append([message.body for message in messages])
            context.ack_index, context.delay_level = 1, -1
            return Action.COMMIT

        consumer.listener = listener
        await group.start("a")
        await until(lambda: bool(given))
        await asyncio.sleep(2)
        assert given == [numbers(4)]
        async with rig.admin() as admin:
            (letters,) = await admin.dead_letters("g")
            assert letters.max_offset - letters.min_offset == 2
        await group.stop()

    Rig().run(scenario)


def test_a_shutdown_that_is_cancelled_goes_on_and_another_waits_for_its_end() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 2, queues=2)
        group = Group(rig)
        group.pause_s = 3.0
        await group.start("a")
        await until(lambda: len(group.seen) == 2)
        consumer = group.members["a"].consumer
        stopped_s = rig.cluster.loop.now_s
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.shutdown(), 0.3)
        assert not consumer.is_running
        await consumer.shutdown()
        assert 2.5 < rig.cluster.loop.now_s - stopped_s < 3.5
        await consumer.shutdown()
        async with rig.consumer("g") as operator:
            assert await operator.committed("t") == {("g0", 0): 1, ("g0", 1): 1}
        group.pause_s = 0.0
        await group.start("b")
        await send(rig, 2, queues=2, first=2)
        await until(lambda: len(group.members["b"].seen) == 2)
        await group.stop("b")

    Rig().run(scenario)


def test_a_listener_may_shut_its_consumer_down_and_go_on() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 1)
        group = Group(rig)
        consumer = group.add("a", await_termination_ms=500).consumer
        ended: list[bool] = []

        async def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
            await consumer.shutdown()
            ended.append(consumer.is_running)
            return Action.COMMIT

        consumer.set_listener(listener)
        await group.start("a")
        await until(lambda: ended == [False])

    Rig().run(scenario)


def test_a_shutdown_waits_for_listeners_at_work_and_commits_what_they_did() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 3)
        group = Group(rig)
        group.pause_s = 3.0
        await group.start("a")
        await until(lambda: len(group.seen) == 3)
        stopped_s = rig.cluster.loop.now_s
        await group.stop()
        assert 2.5 < rig.cluster.loop.now_s - stopped_s < 3.5
        async with rig.consumer("g") as operator:
            assert (await operator.committed("t"))["g0", 0] == 3

    Rig().run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_paused_consumer_begins_no_call_and_goes_on_where_it_was(orderly: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig, orderly=orderly, consume_threads=2, consume_message_batch_max_size=4)
        group.pause_s = 0.05
        await send(rig, 200, 2)
        await group.start("a")
        consumer = group.members["a"].consumer
        await until(lambda: len(group.seen) > 40)
        consumer.pause()
        consumer.pause()
        begun = len(group.seen)
        await send(rig, 200, 2, first=200)
        await asyncio.sleep(5.0)
        assert len(group.seen) == begun, "what runs goes on to its end, and nothing else begins"
        assert all(seen.refused is False for seen in group.seen)
        assert group.share("a") == [0, 1]
        consumer.resume()
        await until(lambda: len(group.seen) >= 400)
        await group.stop()
        assert sorted(group.bodies()) == sorted(numbers(400))
        if orderly:
            for queue_id in (0, 1):
                bodies = [int(seen.body) for seen in group.seen if seen.queue_id == queue_id]
                assert bodies == sorted(bodies)

    Rig().run(scenario)


def test_what_a_paused_consumer_has_is_given_to_the_member_that_gets_its_queues() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        group.answers = [Action.RECONSUME_LATER]
        await send(rig, 100, 2)
        await group.start("a")
        await until(lambda: len(group.seen) > 20)
        group.members["a"].consumer.pause()
        await asyncio.sleep(1.0)
        await group.start("b")
        await until(lambda: group.shares == {"a": [0], "b": [1]})
        await group.stop("a")
        await until(lambda: group.shares == {"b": [0, 1]})
        await until(lambda: {seen.body for seen in group.seen if seen.refused is False} == set(numbers(100)))
        assert len(group.seen) == 101
        await group.stop()

    Rig().run(scenario)


def test_only_a_running_consumer_is_paused() -> None:
    async def scenario(rig: Rig) -> None:
        group = Group(rig)
        member = group.add("a")
        for call in (member.consumer.pause, member.consumer.resume):
            with pytest.raises(InvalidArgumentError, match="the consumer is not started"):
                call()
        await member.consumer.shutdown()

    Rig().run(scenario)
