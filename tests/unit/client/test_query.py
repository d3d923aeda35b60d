"""Finding messages and telling what became of them, against real nodes in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.admin.message_trace import (
    CONSUMED_STATE,
    DELAYED,
    HALF,
    HAS_NOT,
    HOLDS,
    MESSAGE,
    SENT_BACK,
    SILENT,
    WAITING,
    ConsumerState,
    Trace,
)
from dledger_client.admin.message_trace import DEAD_LETTER as DEAD_COPY
from dledger_client.admin.message_trace import RETRY as RETRY_COPY
from dledger_client.admin.send_back import DEAD_LETTER
from dledger_client.aio import Message, ReceivedMessage, TransactionState
from dledger_client.cluster.router import Router
from dledger_wire._pb import query_pb2
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError, TopicNotFoundError
from dledger_wire.rpc import methods
from tests.unit.broker.test_send_back import DEAD, GROUP, RETRY, back, send
from tests.unit.client.sim_rig import Rig, until

QUERY = methods.QUERY_MESSAGES.path


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_by_key_id_time_and_offset() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        await rig.topic("u")
        async with rig.producer() as producer, rig.admin() as admin:
            sent = []
            for number in range(6):
                message = Message("t", b"%d" % number, tags="a", keys=["all", f"k{number}", "größe"])
                sent.append(await producer.send(message, queue_id=number % 2))
                await asyncio.sleep(1)
            other = await producer.send(Message("u", b"other", keys="all"), queue_id=0)
            found = await admin.query_by_key("t", "all")
            assert found.complete
            assert bodies(found.messages) == [b"5", b"4", b"3", b"2", b"1", b"0"]
            assert bodies((await admin.query_by_key("t", "all", max_messages=2)).messages) == [b"5", b"4"]
            (one,) = (await admin.query_by_key("t", "k3")).messages
            assert (one.msg_id, one.queue_id, one.queue_offset) == (sent[3].msg_id, 1, 1)
            assert len((await admin.query_by_key("t", "größe")).messages) == 6
            spaced = Message("t", b"odd", keys="订单\u3000A1 tab\there")
            await producer.send(spaced, queue_id=0)
            for key in ("订单\u3000A1", "tab\there"):
                assert bodies((await admin.query_by_key("t", key)).messages) == [b"odd"]
            times = [message.store_timestamp for message in found.messages][::-1]
            inside = await admin.query_by_key("t", "all", begin_ms=times[1], end_ms=times[4] - 1)
            assert bodies(inside.messages) == [b"3", b"2", b"1"]
            assert bodies((await admin.query_by_time("t", times[2], times[4])).messages) == [b"2", b"3", b"4"]
            assert bodies((await admin.query_by_time("t", times[4], max_messages=1)).messages) == [b"4"]
            for wanted in (sent[2].msg_id, found.messages[3].offset_msg_id, found.messages[3].offset_msg_id.lower()):
                assert bodies((await admin.query_by_id(wanted)).messages) == [b"2"]
                assert bodies((await admin.query_by_id(wanted, "t")).messages) == [b"2"]
                assert bodies((await admin.query_by_id(wanted, "u")).messages) == []
            assert bodies((await admin.query_by_id(other.msg_id)).messages) == [b"other"]
            at = await admin.query_by_offset("t", 1, 2)
            assert at is not None
            assert at.body == b"5"
            assert await admin.query_by_offset("t", 1, 3) is None

    Rig().run(scenario)


def test_places_come_without_their_messages_when_only_they_are_wanted() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number, keys="k"), queue_id=0)
        router = rig.router()
        await router.all_groups(router.clock.monotonic_ms() + 5000)
        answers = []
        for places_only in (False, True):
            request = query_pb2.QueryMessagesRequest(topic="t", key="k", places_only=places_only)
            deadline_ms = router.clock.monotonic_ms() + 5000
            answers.append(await router.call_leader("g0", methods.QUERY_MESSAGES, request, deadline_ms=deadline_ms))
        whole, bare = answers
        assert [found.queue_offset for found in bare.messages] == [2, 1, 0]
        assert bare.messages == whole.messages
        assert (len(whole.payload), len(bare.payload)) == (sum(found.size for found in whole.messages), 0)
        await router.close()

    Rig().run(scenario)


def test_what_cannot_be_is_refused_by_name() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            with pytest.raises(TopicNotFoundError):
                await admin.query_by_key("nothing", "k")
            with pytest.raises(OffsetOutOfRangeError):
                await admin.query_by_offset("t", 0, 7)
            for wrong in (
                admin.query_by_key("t", ""),
                admin.query_by_key("t", "two words"),
                admin.query_by_key("t", "k", begin_ms=-1),
                admin.query_by_key("t", "k", max_messages=0),
                admin.query_by_id(""),
                admin.trace(topic="t"),
                admin.trace(key="k"),
                admin.trace(topic="t", key="k", msg_id="m"),
            ):
                with pytest.raises(InvalidArgumentError):
                    await wrong
            assert (await admin.query_by_id("F" * 32)).messages == []
            assert (await admin.query_by_id("no hex")).messages == []
        router = rig.router()
        for request in (b"", b"\xff", query_pb2.QueryMessagesRequest(key="k").SerializeToString()):
            with pytest.raises(InvalidArgumentError):
                await router.channel(rig.cluster.hosts[rig.master].address).call(QUERY, request, timeout_s=1)
        await router.close()

    Rig().run(scenario)


def test_large_answers_come_in_pieces_and_any_replica_serves() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.admin() as admin:
            for number in range(40):
                producer.send_async(Message("t", b"%d" % number + bytes(400_000), keys="k"), queue_id=0)
            await producer.flush()
            found = await admin.query_by_key("t", "k", max_messages=35)
            assert [message.queue_offset for message in found.messages] == list(range(39, 4, -1))
            rig.cluster.kill(rig.master)
            again = await admin.query_by_key("t", "k", max_messages=3)
            assert [message.queue_offset for message in again.messages] == [39, 38, 37]

    Rig().run(scenario)


async def traced(rig: Rig, msg_id: str) -> Trace:
    async with rig.admin() as admin:
        return await admin.trace(msg_id=msg_id)


def test_a_trace_tells_replicas_groups_retries_and_dead_letters() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        ids = await send(rig, 3)
        async with rig.consumer("audit") as audit:
            await audit.commit({("t", 0): 1})
        trace = await traced(rig, ids[1])
        assert trace.complete
        (copy,) = trace.copies
        assert (copy.kind, copy.consumer_group, copy.message.body) == (MESSAGE, "", b"1")
        assert {(replica.node_id, replica.state) for replica in copy.replicas} == {(node_id, HOLDS) for node_id in rig.cluster.hosts}
        assert copy.consumers == [ConsumerState("audit", WAITING, 1)]
        # One attempt more, then none.
        await back(rig, [1])
        kinds = [(copy.kind, copy.consumer_group) for copy in (await traced(rig, ids[1])).copies]
        assert kinds == [(MESSAGE, ""), (DELAYED, GROUP)]
        async with rig.consumer() as consumer:
            assert len(await consumer.fetch(RETRY, 0, 0, wait_ms=20_000)) == 1
        await back(rig, [0], RETRY, level=DEAD_LETTER)
        copies = (await traced(rig, ids[1])).copies
        assert [copy.kind for copy in copies] == [MESSAGE, DELAYED, RETRY_COPY, DEAD_COPY]
        assert [copy.consumer_group for copy in copies] == ["", GROUP, GROUP, GROUP]
        assert [copy.message.topic for copy in copies[2:]] == [RETRY, DEAD]
        assert {copy.message.properties["ORIGIN_MESSAGE_ID"] for copy in copies[1:]} == {copies[0].message.offset_msg_id}
        # The group commits what it sent back; the other one follows later.
        master = rig.cluster.hosts[rig.master].node
        assert master is not None
        now_ms = master.store.time.now_ms  # the group's, which no single clock makes
        async with rig.consumer(GROUP) as consumer, rig.consumer("audit") as audit:
            first_ms = now_ms()
            await consumer.commit({("t", 0): 2})
            await asyncio.sleep(5)
            second_ms = now_ms()
            await audit.commit({("t", 0): 3})
        by_group = {each.group: each for each in (await traced(rig, ids[1])).copies[0].consumers}
        assert (by_group[GROUP].state, by_group["audit"].state) == (CONSUMED_STATE, CONSUMED_STATE)
        assert (by_group[GROUP].after_ms, by_group[GROUP].committed) == (0, 2)
        assert first_ms - 100 <= by_group[GROUP].by_ms <= first_ms + 100
        assert by_group["audit"].after_ms < second_ms <= by_group["audit"].by_ms + 100
        async with rig.admin() as admin:
            by_key = await admin.trace(topic="t", key="k1")
            assert [copy.message.offset_msg_id for copy in by_key.copies] == [copy.message.offset_msg_id for copy in copies]

    Rig().run(scenario)


def test_a_trace_by_key_finds_what_consumers_do_not_see_yet() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("other")
        master = rig.cluster.hosts[rig.master].node
        assert master is not None
        due_ms = master.store.time.now_ms() + 3_600_000
        async with rig.producer() as producer, rig.admin() as admin, rig.transactions(lambda _: TransactionState.UNKNOWN) as transactions:
            for topic in ("t", "other"):
                await producer.send(Message(topic, b"level", keys="k", delay_level=18))
            await producer.send(Message("t", b"timed", keys="k", deliver_at_ms=due_ms))
            transaction = await transactions.prepare(Message("t", b"open", keys="k"))
            await asyncio.sleep(2)  # the index follows
            copies = (await admin.trace(topic="t", key="k")).copies
            assert [(copy.kind, copy.message.body) for copy in copies] == [(DELAYED, b"level"), (DELAYED, b"timed"), (HALF, b"open")]
            await transaction.commit()
            await asyncio.sleep(2)
            copies = (await admin.trace(topic="t", key="k")).copies
            assert [copy.kind for copy in copies] == [DELAYED, DELAYED, HALF, MESSAGE]
            newest = (await admin.trace(topic="t", key="k", max_messages=1)).copies
            assert [copy.kind for copy in newest] == [HALF, MESSAGE]

    Rig().run(scenario)


def test_a_trace_tells_what_was_sent_back_and_which_replica_is_behind_or_silent() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        silent, behind = rig.followers
        rig.cluster.kill(silent)
        ids = await send(rig, 2)
        async with rig.consumer(GROUP) as consumer:
            await consumer.commit({("t", 0): 0})
        await back(rig, [1])
        states = {replica.node_id: replica.state for replica in (await traced(rig, ids[1])).copies[0].replicas}
        assert states == {silent: SILENT, behind: HOLDS, rig.master: HOLDS}
        (consumer_state,) = (await traced(rig, ids[1])).copies[0].consumers
        assert (consumer_state.group, consumer_state.state) == (GROUP, SENT_BACK)
        rig.cluster.start(silent)
        await until(lambda: (node := rig.cluster.hosts[silent].node) is not None and node.store.applied_index > 0)
        states = {replica.node_id: replica.state for replica in (await traced(rig, ids[1])).copies[0].replicas}
        assert states[silent] in (HOLDS, HAS_NOT)

    Rig().run(scenario)


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_every_replica_finds_every_message_whoever_died_meanwhile(seed: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        draw = rig.cluster.random
        ids: list[str] = []
        async with rig.producer(send_timeout_ms=30_000) as producer:
            for _ in range(4):
                sent = [producer.send_async(Message("t", bytes(50), keys=["k", f"k{number % 7}"]), queue_id=0) for number in range(300)]
                victim = draw.choice(sorted(rig.cluster.hosts))
                await asyncio.sleep(draw.random() * 0.2)
                rig.cluster.kill(victim)
                await asyncio.sleep(draw.random())
                rig.cluster.start(victim)
                await producer.flush()
                ids += [future.result().msg_id for future in sent]
                await asyncio.sleep(draw.random() * 6)  # some of it becomes durable in between
        await until(lambda: len(set(_applied(rig))) == 1)
        router = rig.router()
        for host in rig.cluster.hosts.values():
            for msg_id in draw.sample(ids, 100):
                request = query_pb2.QueryMessagesRequest(topic="t", unique_id=msg_id).SerializeToString()
                answer = await router.channel(host.address).call(QUERY, request, timeout_s=5)
                reply = query_pb2.QueryMessagesResponse.FromString(answer)
                assert (reply.complete, len(reply.messages)) == (True, 1)
            assert await _all_with(router, host.address, "k") == list(range(1199, -1, -1))
        await router.close()

    Rig(seed).run(scenario)


def _applied(rig: Rig) -> list[int]:
    nodes = [host.node for host in rig.cluster.running() if host.node is not None and host.node.is_open]
    return [node.store.applied_index for node in nodes] if len(nodes) == 3 else [0, 1]


async def _all_with(router: Router, address: str, key: str) -> list[int]:
    """Queue offsets of all messages with a key, as one replica finds them."""
    offsets: list[int] = []
    request = query_pb2.QueryMessagesRequest(topic="t", key=key, max_messages=500)
    while True:
        reply = query_pb2.QueryMessagesResponse.FromString(
            await router.channel(address).call(QUERY, request.SerializeToString(), timeout_s=5)
        )
        offsets += [message.queue_offset for message in reply.messages]
        if not reply.before_pos:
            return offsets
        request.before_pos = reply.before_pos
