"""Topics that change while they are used: made at a producer's wish, and made smaller without leaving a message behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.api import topics as topic_service
from broker.context import ServiceContext
from broker.delivery import waiting_for_topic
from dledger_client.aio import Message, TransactionState
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError, UnsafeShrinkError
from dledger_wire.names import TRACE_TOPIC
from dledger_wire.rpc import methods
from dledger_wire.status import Perm
from store.state.topics import Topic
from tests.unit.client.sim_rig import Rig


def test_queues_go_in_two_steps_and_only_when_they_are_read() -> None:
    """docs/reference/semantics, row T1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer, rig.admin() as admin, rig.consumer(group="a") as one, rig.consumer(group="b") as other:
            for number in range(8):
                await producer.send(Message("t", b"%d" % number), queue_id=number % 4)
            with pytest.raises(UnsafeShrinkError, match="queues 2 to 3 still take messages; first --write-queues 2, then"):
                await admin.update_topic("t", read_queues=2, write_queues=2)
            with pytest.raises(UnsafeShrinkError, match="would be written to and not read"):
                await admin.update_topic("t", read_queues=2)
            with pytest.raises(UnsafeShrinkError, match="queues 4 to 7 would be written to and not read"):
                await admin.update_topic("t", write_queues=8)
            assert (await admin.update_topic("t", write_queues=2)).read_queues == 4
            with pytest.raises(UnsafeShrinkError, match="queue 2 holds 2 messages, and no consumer group reads this topic"):
                await admin.update_topic("t", read_queues=2)
            await one.commit({("t", queue_id): 2 for queue_id in range(4)})
            await other.commit({("t", 3): 1})
            with pytest.raises(UnsafeShrinkError, match="group b has not read 2 messages of queue 2"):
                await admin.update_topic("t", read_queues=2)
            await other.commit({("t", 2): 2})
            rig.cluster.kill(rig.master)
            with pytest.raises(UnsafeShrinkError, match="group b has not read 1 messages of queue 3"):
                await admin.update_topic("t", read_queues=2)
            await other.commit({("t", 3): 2})
            done = await admin.update_topic("t", read_queues=2)
            assert (done.read_queues, done.write_queues) == (2, 2)
            grown = await admin.update_topic("t", read_queues=8, write_queues=8)
            assert (grown.read_queues, grown.write_queues) == (8, 8)
            assert (await producer.send(Message("t", b"again"), queue_key=lambda count: 3 % count)).queue_offset >= 2
            assert (await admin.update_topic("t", read_queues=1, write_queues=1, force=True)).read_queues == 1

    Rig().run(scenario)


def test_queues_that_nobody_would_read_are_not_created_and_show_where_they_are_forced() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.producer() as producer, rig.admin() as admin, rig.consumer(group="audit") as consumer:
            with pytest.raises(InvalidArgumentError, match="topic wq: queues 2 to 5 would be written to and not read; expected at least 6"):
                await admin.create_topic("wq", read_queues=2, write_queues=6)
            router = rig.router()
            for repeated in (False, True):  # a client that does not look
                spec = admin_pb2.TopicSpec(name="wq", read_queues=2, write_queues=6, if_not_exists=repeated)
                with pytest.raises(InvalidArgumentError, match="queues 2 to 5 would be written to and not read"):
                    await router.call_leader("g0", methods.CREATE_TOPIC, spec, deadline_ms=router.clock.monotonic_ms() + 5000)
            assert (await admin.create_topic("t", read_queues=4, write_queues=2)).read_queues == 4
            await admin.update_topic("t", read_queues=1, write_queues=3, force=True)
            for queue in range(3):
                await producer.send(Message("t", b"x"), queue_id=queue)
            await consumer.commit({("t", 0): 1})
            ranges = await admin.topic_offsets("t")
            assert [(each.messages, each.readable) for each in ranges] == [(1, True), (1, False), (1, False)]
            described = await admin.describe_group("audit")
            assert [(each.lag, each.readable) for each in described.queues] == [(0, True), (1, False), (1, False)]
            (listed,) = await admin.describe_groups()
            assert (listed, listed.lag) == (described, 2)

    Rig().run(scenario)


def test_topics_are_made_for_producers_only_where_that_is_allowed() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.producer(defaultTopicQueueNums=3) as producer, rig.admin() as admin:
            for _ in range(2):
                assert (await producer.send(Message("new", b"x"))).queue_offset >= 0
            assert (await admin.describe_topic("new"))[0].write_queues == 3
            with pytest.raises(InvalidArgumentError, match="belongs to the system"):
                await producer.send(Message("rmq_sys_mine", b"x"))
            await producer.send(Message(TRACE_TOPIC, b"as RocketMQ's clients do"))
        async with rig.producer(createTopicKey="") as careful:
            with pytest.raises(TopicNotFoundError):
                await careful.send(Message("newer", b"x"))
        async with rig.producer(createTopicKey="other") as wrong:
            with pytest.raises(InvalidArgumentError, match="expected TBW102"):
                await wrong.send(Message("newer", b"x"))

    async def forbidden(rig: Rig) -> None:
        async with rig.producer() as producer:
            with pytest.raises(TopicNotFoundError, match="topic new does not exist in cluster sim"):
                await producer.send(Message("new", b"x"))

    Rig(settings="broker: {autoCreateTopicEnable: true}\n").run(scenario)
    Rig().run(forbidden)


def test_a_deletion_that_names_a_topic_spares_the_one_made_anew() -> None:
    """Also when that happens while the leader looks whether the topic is still the one that is meant, and its log is busy."""

    async def scenario(rig: Rig) -> None:
        await rig.topic("busy")
        async with rig.admin() as admin, rig.producer() as producer:
            ask = admin._calls.ask_leader

            async def later(after_s: float, method: Any, **spec: Any) -> admin_pb2.TopicReply:
                await asyncio.sleep(after_s)
                answer = await ask("g0", method, admin_pb2.TopicSpec(name="t", group="g0", **spec))
                assert isinstance(answer, admin_pb2.TopicReply)
                return answer

            deleted = 0
            for number in range(30, 60):
                await later(0, methods.CREATE_TOPIC, write_queues=1, if_not_exists=True)
                (old,) = await admin.describe_topic("t")
                gone, *_ = await asyncio.gather(
                    later(0.001, methods.DELETE_TOPIC, incarnation=old.topic_epoch),
                    later(0.001 + number / 20_000, methods.DELETE_TOPIC),
                    later(0.00101 + number / 20_000, methods.CREATE_TOPIC, write_queues=2),
                    *(producer.send(Message("busy", b"x")) for _ in range(3)),
                    return_exceptions=True,
                )
                deleted += isinstance(gone, admin_pb2.TopicReply)
                assert not isinstance(gone, admin_pb2.TopicReply) or gone.write_queues == 1, "the one made anew was deleted"
                await later(0, methods.CREATE_TOPIC, write_queues=1, if_not_exists=True)
                with pytest.raises(TopicNotFoundError, match="was deleted and created again meanwhile; nothing was deleted"):
                    await later(0, methods.DELETE_TOPIC, incarnation=old.topic_epoch)
                await admin.delete_topic("t")
            assert deleted

    Rig().run(scenario)


def test_a_topic_for_which_messages_wait_is_not_taken_for_an_empty_one_but_those_of_one_before_do_not_count() -> None:
    """docs/reference/semantics, row T4: a creation that fails halfway deletes what it made, unless messages are in it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer, rig.transactions(lambda _: TransactionState.UNKNOWN) as transacting:

            async def delete_if(only_if: str) -> None:
                await admin._calls.ask_leader("g0", methods.DELETE_TOPIC, admin_pb2.TopicSpec(name="t", group="g0", only_if=only_if))

            await producer.send(Message("t", b"later", delay_level=18))
            await transacting.prepare(Message("t", b"open"))
            with pytest.raises(UnsafeShrinkError, match="1 delayed messages are not delivered yet; 1 transactions are open"):
                await delete_if("empty")
            await admin.delete_topic("t")
            for only_if in ("empty", "drained"):
                await rig.topic(perm=int(Perm.READ))
                await delete_if(only_if)

    Rig().run(scenario)


def test_a_topic_made_anew_is_named_as_the_reason_and_not_what_waits_for_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer:
            (old,) = await admin.describe_topic("t")
            await admin.delete_topic("t")
            await rig.topic()
            await producer.send(Message("t", b"later", delay_level=18))
            await admin.update_topic("t", perm=int(Perm.READ))
            request = admin_pb2.TopicSpec(name="t", group="g0", only_if="drained", incarnation=old.topic_epoch)
            with pytest.raises(TopicNotFoundError, match="was deleted and created again meanwhile; nothing was deleted"):
                await admin._calls.ask_leader("g0", methods.DELETE_TOPIC, request)

    Rig().run(scenario)


def test_what_waits_for_other_topics_since_before_a_topic_was_made_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row T4: a creation that fails halfway deletes what it made, however much waits in the replica group."""
    monkeypatch.setattr(waiting_for_topic, "MAX_SCANNED", 3)

    async def scenario(rig: Rig) -> None:
        await rig.topic("other")
        async with rig.admin() as admin, rig.producer() as producer, rig.transactions(lambda _: TransactionState.UNKNOWN) as transacting:
            later_ms = rig.around()["clock"].wall_ms() + 3_600_000
            for number in range(5):
                await producer.send(Message("other", b"%d" % number, delay_level=18))
                await producer.send(Message("other", b"%d" % number, deliver_at_ms=later_ms))
                await transacting.prepare(Message("other", b"%d" % number))
            await rig.topic()
            await producer.send(Message("t", b"later", delay_level=18))
            request = admin_pb2.TopicSpec(name="t", group="g0", only_if="empty")
            with pytest.raises(UnsafeShrinkError, match="1 delayed messages are not delivered yet"):
                await admin._calls.ask_leader("g0", methods.DELETE_TOPIC, request)
            await admin.delete_topic("t")
            await rig.topic()
            await admin._calls.ask_leader("g0", methods.DELETE_TOPIC, request)

    Rig().run(scenario)


def test_nothing_is_taken_for_a_topic_between_the_look_at_what_waits_for_it_and_its_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        looked, look = asyncio.Event(), waiting_for_topic.waiting_for

        async def slow(context: ServiceContext, topic: Topic) -> str:
            found = await look(context, topic)
            looked.set()
            await asyncio.sleep(1)
            return found

        monkeypatch.setattr(topic_service, "waiting_for", slow)
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer:
            request = admin_pb2.TopicSpec(name="t", group="g0", only_if="empty")
            deletion = asyncio.ensure_future(admin._calls.ask_leader("g0", methods.DELETE_TOPIC, request))
            await looked.wait()
            with pytest.raises(TopicNotFoundError):
                await producer.send(Message("t", b"later", delay_level=1))
            await deletion

    Rig().run(scenario)
