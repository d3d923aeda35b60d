"""Transactions against real nodes in virtual time: published once or never, whoever dies at whatever step, and ended by the check."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger_client.aio import Message, Transaction, TransactionOutcome, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.transactions.resolver import TransactionResolver
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, TopicNotFoundError, TopicPermissionError
from dledger_wire.frames.frame import decode_frame, encode_frame
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from dledger_wire.rpc import methods
from dledger_wire.status import SysFlag
from store.state import transactions
from store.state.transactions import Outcome
from tests.unit.client.sim_rig import Rig, until

QUICK = "broker: {transactionTimeOut: 500ms, transactionCheckInterval: 400ms, transactionCheckMax: 3}\n"
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def unasked(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"nobody was to be asked about {message}")


class Decisions:
    """What an application would keep in its database: what became of each local transaction."""

    def __init__(self) -> None:
        self.states: dict[bytes, TransactionState] = {}
        self.asked: list[bytes] = []

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.append(message.body)
        return self.states.get(message.body, UNKNOWN)


def open_halves(rig: Rig) -> list[int]:
    node = rig.cluster.hosts[rig.master].node
    assert node is not None
    _, high = node.store.reader.bounds(HALF_TOPIC, 0, for_service=True)
    return list(node.store.transactions.open_from(0, high))


async def fetch_all(rig: Rig, topic: str = "t", queue_id: int = 0) -> list[ReceivedMessage]:
    async with rig.consumer() as consumer:
        return await consumer.fetch(topic, queue_id, 0, 1000)


async def asked_about(decisions: Decisions, body: bytes, times: int = 1) -> None:
    await until(lambda: decisions.asked.count(body) >= times)


def test_a_message_is_seen_when_its_transaction_is_committed_with_all_it_had() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)

        async def pay(message: Message, argument: Any) -> TransactionState:
            assert (message.body, argument) == (b"order", 7)
            assert await fetch_all(rig, queue_id=1) == []
            return COMMIT

        async with rig.transactions(unasked) as producer, rig.consumer() as consumer:
            sent = Message("t", b"order", tags="paid", keys="o-1", properties={"a": "b"}, flag=5)
            result = await producer.send_in_transaction(sent, pay, 7, queue_id=1)
            assert (result.state, result.outcome) == (COMMIT, TransactionOutcome.COMMITTED)
            (got,) = await consumer.fetch("t", 1, 0, wait_ms=1000)
            assert (got.body, got.tags, got.keys, got.flag, got.msg_id) == (b"order", "paid", "o-1", 5, result.msg_id)
            assert got.properties["a"] == "b"
            assert got.properties["PGROUP"] == "tests"
            assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & set(got.properties)
            with pytest.raises(TopicPermissionError):
                await consumer.fetch(HALF_TOPIC, 0, 0)
            lost = await producer.send_in_transaction(Message("t", b"never"), lambda *_: ROLLBACK, queue_id=1)
            assert lost.outcome is TransactionOutcome.ROLLED_BACK
            assert await consumer.fetch("t", 1, 1, wait_ms=2000) == []
            assert open_halves(rig) == []
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        chunk = await node.store.read("t", 1, 0, max_bytes=1 << 20)
        frame = decode_frame(b"".join(chunk.frames))
        half = decode_frame(b"".join((await node.store.read(HALF_TOPIC, 0, 0, max_messages=1, max_bytes=1, for_service=True)).frames))
        assert frame.sys_flag & 0xC == SysFlag.TRANSACTION_COMMIT
        assert frame.prepared_offset == half.physical_offset
        assert encode_frame(half)
        assert half.properties["TRAN_MSG"] == "true"

    Rig(settings=QUICK).run(scenario)


def test_a_large_body_waits_compressed_and_is_seen_whole() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(unasked) as producer:
            transaction = await producer.prepare(Message("t", b"abc" * 4000))
            assert await fetch_all(rig) == []
            await transaction.commit()
        assert [message.body for message in await fetch_all(rig)] == [b"abc" * 4000]

    Rig(settings=QUICK).run(scenario)


def test_only_the_first_end_counts() -> None:
    """docs/reference/semantics, row X2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(unasked) as producer:
            committed, rolled_back = await producer.prepare(Message("t", b"a")), await producer.prepare(Message("t", b"b"))
            ends = [committed.commit(), committed.commit(), committed.rollback(), rolled_back.rollback(), rolled_back.commit()]
            outcomes = await asyncio.gather(*ends)
            assert outcomes == [TransactionOutcome.COMMITTED] * 3 + [TransactionOutcome.ROLLED_BACK] * 2
            assert await committed.rollback() is TransactionOutcome.COMMITTED
            assert await rolled_back.commit() is TransactionOutcome.ROLLED_BACK
            assert [message.body for message in await fetch_all(rig)] == [b"a"]
            await rig.restart(rig.master)
            assert await committed.commit() is TransactionOutcome.COMMITTED
            assert [message.body for message in await fetch_all(rig)] == [b"a"]

    Rig(settings=QUICK).run(scenario)


def test_an_end_is_only_for_whom_it_belongs_to() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(lambda _: UNKNOWN) as producer, rig.admin() as admin:
            half = (await producer.prepare(Message("t", b"a"))).half
            router = producer._core.router
            for group, offset, name in (("other", 0, half.msg_id), ("tests", 0, "0" * 32), ("tests", 9, half.msg_id)):
                with pytest.raises(InvalidArgumentError, match="half message"):
                    await TransactionResolver(router, "g0", group).end(offset, name, COMMIT, 2000)
            with pytest.raises(InvalidArgumentError, match="no delay"):
                await producer.prepare(Message("t", b"late", delay_level=1))
            await admin.create_topic("gone", queues=1)
            homeless = await producer.prepare(Message("gone", b"x"))
            await admin.delete_topic("gone")
            with pytest.raises(TopicNotFoundError):
                await homeless.commit()
            assert open_halves(rig) == [0, 1]

    Rig(settings="broker: {transactionCheckInterval: 1h}\n").run(scenario)


def test_a_transaction_of_a_deleted_topic_is_not_published_in_one_made_again() -> None:
    """docs/reference/semantics, rows T2 and X5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        decisions = Decisions()
        async with rig.transactions(decisions.check) as producer, rig.admin() as admin:
            old = await producer.prepare(Message("t", b"old"))
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
            new = await producer.prepare(Message("t", b"new"))
            with pytest.raises(TopicNotFoundError, match="deleted and recreated since"):
                await old.commit()
            assert await new.commit() is TransactionOutcome.COMMITTED
            await until(lambda: open_halves(rig) == [])
        assert [message.body for message in await fetch_all(rig)] == [b"new"]
        assert [message.body for message in await fetch_all(rig, CHECK_MAX_TIME_TOPIC)] == [b"old"]

    Rig(settings=QUICK).run(scenario)


def test_a_producer_that_died_is_answered_for_by_another_of_its_group() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        decisions = Decisions()
        decisions.states = {b"yes": COMMIT, b"no": ROLLBACK, b"later": UNKNOWN}
        async with rig.transactions(unasked) as dying:
            for body in (b"yes", b"no", b"later"):
                await dying.prepare(Message("t", body))
        async with rig.transactions(decisions.check):
            await asked_about(decisions, b"later", 2)
            decisions.states[b"later"] = COMMIT
            await until(lambda: open_halves(rig) == [])
        assert [message.body for message in await fetch_all(rig)] == [b"yes", b"later"]
        assert decisions.asked == [b"yes", b"no", b"later", b"later", b"later"]

    Rig(settings=QUICK).run(scenario)


def test_what_nobody_knows_of_is_asked_about_so_often_and_then_parked() -> None:
    """docs/reference/semantics, row X3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        decisions = Decisions()
        async with rig.transactions(decisions.check) as producer:
            start = rig.cluster.loop.now_s
            transaction = await producer.prepare(Message("t", b"orphan", keys="o-9"))
            await asked_about(decisions, b"orphan")
            assert 0.5 <= rig.cluster.loop.now_s - start < 0.8
            old = rig.master
            rig.cluster.kill(old)
            await until(lambda: rig.cluster.master() is not None)
            rig.cluster.start(old)
            await until(lambda: open_halves(rig) == [])
            assert 2 <= decisions.asked.count(b"orphan") <= 3  # also across masters; a round counts when nobody attends yet, too
            assert await transaction.commit() is TransactionOutcome.PARKED
        (parked,) = await fetch_all(rig, CHECK_MAX_TIME_TOPIC)
        assert (parked.body, parked.keys, parked.msg_id) == (b"orphan", "o-9", transaction.half.msg_id)
        assert parked.properties["REAL_TOPIC"] == "t"
        assert parked.properties["TRANSACTION_CHECK_TIMES"] == "3"
        assert await fetch_all(rig) == []

    Rig(settings=QUICK).run(scenario)


def test_a_group_whose_transactions_nobody_ends_leaves_room_for_others_and_goes_on_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_OPEN_OF_GROUP", 4)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        held: list[Transaction] = []
        async with (
            rig.transactions(lambda _: UNKNOWN, "careless", send_timeout_ms=3000) as careless,
            rig.transactions(unasked, "shop") as shop,
        ):

            async def begin_more() -> None:
                while len(held) < 100:
                    held.append(await careless.prepare(Message("t", b"forgotten")))
                    await asyncio.sleep(0.1)

            for _ in range(2):
                with pytest.raises(DledgerError, match="4 transactions of producer group careless are open"):
                    await begin_more()
                await shop.send_in_transaction(Message("t", b"paid"), lambda *_: COMMIT)
                await rig.restart(rig.master)  # the next one has to learn whose they are
            for transaction in held:
                await transaction.rollback()
            await careless.prepare(Message("t", b"and on"))

    Rig(settings=QUICK.replace("transactionCheckMax: 3", "transactionCheckMax: 1000")).run(scenario)


def test_without_anybody_to_ask_it_ends_all_the_same() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(unasked) as producer:
            await producer.prepare(Message("t", b"orphan"))
        await until(lambda: open_halves(rig) == [])
        assert [message.body for message in await fetch_all(rig, CHECK_MAX_TIME_TOPIC)] == [b"orphan"]

    Rig(settings=QUICK).run(scenario)


@pytest.mark.parametrize("answer", [ZeroDivisionError(), asyncio.CancelledError(), None, "commit"])
def test_a_listener_that_fails_is_asked_again_and_a_local_transaction_that_raises_leaves_it_open(answer: object) -> None:
    """docs/reference/semantics, rows X3 and X4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        asked: list[bytes] = []

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.body)
            if len(asked) > 1:
                return COMMIT
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[return-value]

        def breaks(_message: Message, _argument: Any) -> TransactionState:
            raise LookupError("no money")

        async with rig.transactions(check) as producer:
            with pytest.raises(LookupError):
                await producer.send_in_transaction(Message("t", b"x"), breaks)
            await until(lambda: open_halves(rig) == [])
        assert asked == [b"x", b"x"]
        assert [message.body for message in await fetch_all(rig)] == [b"x"]

    Rig(settings=QUICK).run(scenario)


async def strike_between(rig: Rig, victim: str, work: Callable[[], Awaitable[Any]], step: int) -> None:
    """Kill the node a little after ``work`` began; wherever that is in its steps."""

    async def strike() -> None:
        await asyncio.sleep(step * 0.0006)
        rig.cluster.kill(victim)

    striking = asyncio.ensure_future(strike())
    try:
        await work()
    finally:
        await striking


@pytest.mark.parametrize("step", range(24))
def test_a_master_killed_at_any_step_leaves_each_published_once_or_never(step: int) -> None:
    """docs/reference/semantics, row X1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        decisions = Decisions()
        decisions.states = {b"%d" % number: ROLLBACK if number % 3 == 0 else COMMIT for number in range(12)}

        async with rig.transactions(decisions.check, send_timeout_ms=4000) as producer:

            async def transact(number: int) -> None:
                body = b"%d" % number
                await producer.send_in_transaction(Message("t", body), lambda *_: decisions.states[body])

            async def work() -> None:
                await asyncio.gather(*(transact(number) for number in range(12)))

            victim = rig.master
            await strike_between(rig, victim, work, step)
            rig.cluster.start(victim)
            await until(lambda: rig.cluster.master() is not None)
            await until(lambda: open_halves(rig) == [])
        bodies = [message.body for message in await fetch_all(rig)]
        assert sorted(bodies, key=int) == sorted({b"%d" % number for number in range(12) if number % 3}, key=int)
        nodes = [host.node for host in rig.cluster.hosts.values() if host.node is not None]
        await until(lambda: len({node.store.applied_index for node in nodes}) == 1)
        states = {str(node.store.transactions.dump()) for node in nodes}
        assert len(states) == 1

    Rig(step + 100, settings=QUICK).run(scenario)


def test_state_survives_its_snapshot() -> None:
    from store.commands.transactions import CountTransactionChecks, EndTransactions
    from store.state.state_machine import CommandContext, ReplicatedState
    from store.state.transactions import Transactions

    state = Transactions()
    context = CommandContext(1, 1, 0, 77)
    machine = ReplicatedState([state])
    machine.apply(CountTransactionChecks(runs=((3, 6),)), context)
    machine.apply(EndTransactions(committed=((0, 2), (5, 6)), rolled_back=((2, 3),), parked=((8, 9),)), context)
    machine.apply(EndTransactions(rolled_back=((0, 1),)), context)  # a log that says so twice is counted once
    loaded = Transactions()
    loaded.load(state.dump())
    for each in (state, loaded):
        assert [each.outcome(offset) for offset in (0, 1, 2, 3, 5, 8)] == [
            Outcome.COMMITTED,
            Outcome.COMMITTED,
            Outcome.ROLLED_BACK,
            Outcome.OPEN,
            Outcome.COMMITTED,
            Outcome.PARKED,
        ]
        assert list(each.open_from(0, 10)) == [3, 4, 6, 7, 9]
        assert each.open_count(10) == 5
        assert each.checks(4) == (1, 77)
        assert each.checks(5) == (0, 0)
    assert loaded.dump() == state.dump()


def test_checks_are_answered_where_the_topics_are_and_nowhere_else() -> None:
    """A producer's connections do not grow with the replica groups of topics that it does not use."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(replica_group="g1")
        decisions = Decisions()
        decisions.states[b"paid"] = COMMIT

        async def attending() -> list[str]:
            """The groups whose masters have a stream of a producer."""
            found = []
            for group in ("g0", "g1", "g2"):
                channel = rig.around()["network"].connect(rig.cluster.hosts[rig.master_of(group)].address)
                told = await methods.DESCRIBE_TRANSACTIONS.call(channel, transaction_pb2.DescribeTransactionsRequest(), timeout_s=5)
                await channel.close()
                found += [group] if told.attending else []
            return found

        async def until_attending(*groups: str) -> None:
            while await attending() != [*groups]:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)

        async with rig.transactions(decisions.check) as first:
            await until_attending("g0", "g1", "g2")
            await first.prepare(Message("t", b"paid"))
        await until_attending()
        async with rig.transactions(decisions.check, check_topics=["t"]):
            await asked_about(decisions, b"paid")
            await asyncio.sleep(20)
            assert await attending() == ["g1"]
        with pytest.raises(InvalidArgumentError, match="check_topics 't': expected a list of topics"):
            rig.transactions(decisions.check, check_topics="t")

    Rig(83, groups=3, settings=QUICK).run(scenario)


def test_checks_are_answered_in_a_replica_group_that_was_added_later() -> None:
    async def scenario(rig: Rig) -> None:
        decisions = Decisions()
        decisions.states[b"paid"] = COMMIT
        async with rig.transactions(decisions.check):
            await asyncio.sleep(1)
            for node_id in rig.cluster.add_group().node_ids:
                rig.cluster.start(node_id)
            await until(lambda: rig.is_group_up("g1"))
            await rig.topic(replica_group="g1")
            async with rig.transactions(unasked) as dying:
                await dying.prepare(Message("t", b"paid"))
            while not await fetch_all(rig):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            assert decisions.asked[:1] == [b"paid"]

    Rig(84, settings=QUICK.replace("CheckMax: 3", "CheckMax: 50")).run(scenario, limit_s=60)
