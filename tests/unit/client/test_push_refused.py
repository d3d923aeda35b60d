"""A push consumer that may not read its topic, or whose topic does not exist, or whose group differs, warns once for each reason; so does
a producer of transactions that may not answer checks.

One whose filter has a mistake does not start."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dledger_client.admin.security import AccessRule
from dledger_client.aio import Action, Message, PushConsumer, TransactionProducer, TransactionState
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.status import Perm
from tests.sim.spread.users import EVERYWHERE_S, create_users
from tests.unit.client.push_rig import Group, here, send
from tests.unit.client.sim_rig import Rig, until

USER = "mallory"
READS_GROUP = AccessRule(USER, "allow", "group", "*", "read")
LONG_S = 70.0  # routes are looked up some times


@pytest.mark.parametrize("sees", [False, True])
def test_a_topic_that_may_not_be_read_is_warned_of_once(sees: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig, [USER])
        await rig.topic()
        rules = [READS_GROUP] + [AccessRule(USER, "allow", "topic", "t", "describe")] * sees
        async with rig.admin() as admin:
            await admin.change_rules(added=rules)
        await asyncio.sleep(EVERYWHERE_S)
        seen: list[bytes] = []
        process, _ = rig.cluster.new_client("10.0.3.1")
        network = rig.cluster.net.of(process, rig.cluster.security.of_user(USER))
        with use_environment(**rig.around() | {"network": network}, run_in_thread=here):
            consumer = PushConsumer(rig.cluster.bootstrap, "g")
        consumer.subscribe("t")
        consumer.set_listener(lambda messages, _: seen.extend(each.body for each in messages) or Action.COMMIT)
        async with consumer:
            await asyncio.sleep(LONG_S)
            warned = [record for record in caplog.records if "may not read topic t" in record.message]
            assert [record.levelname for record in warned] == ["WARNING"]
            async with rig.admin() as admin:
                await admin.change_rules(added=[AccessRule(USER, "allow", "topic", "t", "read")])
            async with rig.producer() as producer:
                await producer.send(Message("t", b"m"))
            await until(lambda: seen == [b"m"])

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig(secured=True).run(scenario)


@pytest.mark.parametrize("right", ["topic", "group"])
def test_a_right_that_is_taken_from_a_running_consumer_is_warned_of_once_a_queue(right: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was a line a second for each queue."""

    async def scenario(rig: Rig) -> None:
        await create_users(rig, [USER])
        await rig.topic(queues=2)
        rules = {"topic": AccessRule(USER, "allow", "topic", "t", "read"), "group": READS_GROUP}
        async with rig.admin() as admin:
            await admin.change_rules(added=list(rules.values()))
        await asyncio.sleep(EVERYWHERE_S)
        seen: list[bytes] = []
        process, _ = rig.cluster.new_client("10.0.3.1")
        network = rig.cluster.net.of(process, rig.cluster.security.of_user(USER))
        with use_environment(**rig.around() | {"network": network}, run_in_thread=here):
            consumer = PushConsumer(rig.cluster.bootstrap, "g")
        consumer.subscribe("t")
        consumer.set_listener(lambda messages, _: seen.extend(each.body for each in messages) or Action.COMMIT)
        async with consumer, rig.admin() as admin, rig.producer() as producer:
            for body in (b"first", b"second"):
                await producer.send(Message("t", body))
                await until(lambda body=body: body in seen)
                caplog.clear()
                await admin.change_rules(removed=[rules[right]])
                await asyncio.sleep(LONG_S)
                said = [record.message for record in caplog.records if f"may not read {right}" in record.message]
                assert sorted(line for line in said if "queueId" in line) == sorted({line for line in said if "queueId" in line})
                assert 0 < len(said) <= 2 + 3
                await admin.change_rules(added=[rules[right]])

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig(secured=True).run(scenario)


def test_a_right_that_answers_to_transaction_checks_need_is_missed_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig, [USER])
        await rig.topic()
        process, _ = rig.cluster.new_client("10.0.3.1")
        network = rig.cluster.net.of(process, rig.cluster.security.of_user(USER))
        with use_environment(**rig.around() | {"network": network}):
            producer = TransactionProducer(rig.cluster.bootstrap, "g", lambda _: TransactionState.COMMIT)
        async with producer:
            await asyncio.sleep(LONG_S)

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig(secured=True).run(scenario)
    said = [record.message for record in caplog.records if "may not write group g" in record.message]
    assert said == ["transaction checks of g0: user mallory may not write group g"]


def test_members_that_want_different_messages_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each skips in its queues what only the other wants, so the group loses it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        filters = {"a": "paid||created", "b": "created || paid", "c": "late"}
        for name, expression in filters.items():
            group.add(name).consumer.subscribe("t", expression)
        await group.start("a", "b")
        await asyncio.sleep(LONG_S)
        assert not caplog.records, "the same tags in another order"
        await group.start("c")
        await asyncio.sleep(LONG_S)
        texts = [record.message for record in caplog.records]
        assert len(texts) == len(filters) + 1, "once each, but for the two spellings that c sees"
        assert sum("wants 'late' of topic t" in text for text in texts) == 2
        assert all("all members need the same filter" in text for text in texts)
        caplog.clear()
        await group.stop("c")
        await group.start("d", orderly=True)
        await asyncio.sleep(LONG_S)
        assert sum("is orderly, this one is not" in record.message for record in caplog.records) == 2
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)


def test_a_group_that_may_not_consume_is_warned_of_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """It was once a second for each queue, for as long as somebody had switched the group off."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        await group.start("a")
        for count in (1, 2):
            async with rig.admin() as admin:
                await admin.update_group("g", consume_enable=False)
                await asyncio.sleep(LONG_S)
                await admin.update_group("g", consume_enable=True)
            assert sum("may not consume" in record.message for record in caplog.records) == count
            group.seen.clear()
            await send(rig, 1)
            await until(lambda: bool(group.seen))
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_member_that_stood_still_says_so(orderly: bool, caplog: pytest.LogCaptureFixture) -> None:
    """An orderly listener that blocks the event loop for longer than its locks hold gets the same messages for ever."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=orderly)
        await group.start("a")
        await rig.restart(rig.master)  # an election is no stand-still
        await asyncio.sleep(LONG_S)
        assert not [record for record in caplog.records if "stood still" in record.message]
        for _ in range(3):  # told of once a minute
            rig.cluster.loop.pause(group.members["a"].process)
            await asyncio.sleep(2)
            rig.cluster.loop.resume(group.members["a"].process)
            await asyncio.sleep(5)
        (told,) = [record.message for record in caplog.records if "stood still" in record.message]
        assert "blocks the event loop" in told
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)


def test_a_group_of_producers_that_may_not_be_used_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig, [USER])
        process, _ = rig.cluster.new_client("10.0.3.1")
        network = rig.cluster.net.of(process, rig.cluster.security.of_user(USER))
        with use_environment(**rig.around() | {"network": network}, run_in_thread=here):
            producer = TransactionProducer(rig.cluster.bootstrap, "payments", lambda _: TransactionState.COMMIT)
        async with producer:
            await asyncio.sleep(LONG_S)
        assert len([record for record in caplog.records if "may not write group payments" in record.message]) == 1

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig(secured=True).run(scenario)


def test_a_topic_that_does_not_exist_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        with use_environment(**rig.around(), run_in_thread=here):
            consumer = PushConsumer(rig.cluster.bootstrap, "g")
        consumer.subscribe("missing")
        consumer.set_listener(lambda _, __: Action.COMMIT)
        async with consumer:
            await asyncio.sleep(LONG_S)

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)
    assert [record.levelname for record in caplog.records if "topic missing does not exist" in record.message] == ["WARNING"]


def test_dead_letters_that_are_not_open_are_warned_of_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        failing = Group(rig, max_reconsume_times=0)
        failing.answers = [None]
        await failing.start("a")
        handler = Group(rig, topic="%DLQ%g", name="handler", subnet="10.0.3")
        await handler.start("b")
        await send(rig, 1)
        await until(lambda: any("%DLQ%g is not readable" in record.message for record in caplog.records))
        await asyncio.sleep(LONG_S)
        assert handler.seen == []
        async with rig.admin() as admin:
            await admin.open_dead_letters("g")
            await until(lambda: len(handler.seen) == 1)
        await handler.stop()
        await failing.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)
    (said,) = [record.message for record in caplog.records if "is not readable" in record.message]
    assert said == "consumer group handler: topic %DLQ%g is not readable; open it: dledger dlq open g, or Admin.open_dead_letters"


def test_a_topic_that_is_not_readable_is_warned_of_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(perm=int(Perm.WRITE))
        group = Group(rig)
        await group.start("a")
        await until(lambda: any("is not readable" in record.message for record in caplog.records))
        await group.stop()

    with caplog.at_level(logging.WARNING, "dledger_client"):
        Rig().run(scenario)
    assert "topic t is not readable; open it: dledger topic update t --perm 6" in caplog.text


def test_a_mistake_in_an_sql_filter_is_told_at_the_start() -> None:
    """It was a warning in the log, again and again, and the listener got nothing."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        consumer = group.add("a").consumer
        for topic in ("t", "nowhere-yet"):
            consumer.subscribe(topic, sql="n BETWEEN 5 AND")
            with pytest.raises(InvalidArgumentError, match=rf"topic {topic}: filter: column 16: the expression ends too early"):
                await consumer.start()
            assert not consumer.is_running
            consumer.subscribe(topic, sql="n BETWEEN 5 AND 8")
        await group.start("a")
        async with rig.producer() as producer:
            await producer.send(Message("t", b"6", properties={"n": "6"}))
        await until(lambda: group.bodies() == [b"6"])
        await group.stop()

    Rig().run(scenario)


def test_a_consumer_with_an_sql_filter_starts_while_no_node_can_judge_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for node_id in rig.followers:
            rig.cluster.kill(node_id)
        await until(lambda: rig.cluster.master("g0") is None)
        group = Group(rig)
        group.add("a").consumer.subscribe("t", sql="n = 6")
        began_s = rig.cluster.loop.now_s
        await group.members["a"].consumer.start()
        assert group.members["a"].consumer.is_running
        assert rig.cluster.loop.now_s - began_s < 6

    Rig().run(scenario)


def test_the_filters_of_many_topics_wait_for_silent_nodes_as_long_as_that_of_one() -> None:
    async def scenario(rig: Rig) -> None:
        waited_s = []
        for topics in (1, 6):
            with use_environment(**rig.around(), run_in_thread=here):
                consumer = PushConsumer(rig.cluster.bootstrap, "g", lambda *_: Action.COMMIT)
            for number in range(topics):
                consumer.subscribe(f"t{number}", sql="a = 1")
            await consumer._router.reach(consumer._router.clock.monotonic_ms() + 5_000)
            processes = [host.process for host in rig.cluster.hosts.values() if host.process is not None]
            for process in processes:
                rig.cluster.loop.pause(process)
            began_s = rig.cluster.loop.now_s
            await consumer.start()
            waited_s.append(rig.cluster.loop.now_s - began_s)
            for process in processes:
                rig.cluster.loop.resume(process)
            await consumer.shutdown()
        one_s, many_s = waited_s
        assert 0 < one_s <= many_s < 2 * one_s

    Rig().run(scenario)
