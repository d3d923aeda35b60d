"""What pages tell of topics, consumer groups, dead letters and open transactions, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dledger_client.admin.send_back import DEAD_LETTER
from dledger_client.aio import Admin, DeadLetters, Message, TransactionState
from dledger_console.data import browse, dead_letters, groups, topics, waiting
from dledger_console.history.groups import lag_by_topic
from dledger_console.pages.dead_letters import RunningRedrives
from dledger_console.web.sessions import SessionTable
from dledger_wire.errors import InvalidArgumentError, TopicPermissionError
from tests.unit.broker.test_send_back import DEAD, GROUP, RETRY, back, send
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_topics_over_groups import kill_group


def test_topics_with_what_they_hold_and_those_of_groups_apart() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        await rig.topic("closed", perm=2)
        await send(rig, 3)
        await back(rig, [0], level=DEAD_LETTER)
        async with rig.admin(read_from="follower") as admin:
            found = await topics.list_topics(admin)
            assert [row.topic for row in found if topics.kind_of(row.topic) == topics.NORMAL] == ["closed", "t"]
            kinds = {row.topic: topics.kind_of(row.topic) for row in found}
            assert kinds[DEAD] == topics.DEAD_LETTERS
            row = next(row for row in found if row.topic == "t")
            assert (row.read_queues, row.write_queues, topics.perm_text(row.perm)) == (4, 4, "read, write")
            held = await topics.ranges(admin, [row.topic for row in found])
            assert topics.messages_in(held["t"]) == 3
            assert held["closed"] == []  # nobody may read it
            oldest = await topics.oldest_ms(admin, "t", held["t"])
            first = (await browse.page(admin, "t", await browse.oldest(admin, "t"))).rows[0]
            assert oldest == {("g0", 0): first.stored_ms}

    Rig().run(scenario)


def test_the_group_that_lags_comes_first_and_a_reset_says_what_it_does() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        await send(rig, 10)
        async with rig.admin(read_from="follower") as admin:
            for name, offset in (("ahead", 10), ("behind", 4)):
                async with rig.consumer(name) as consumer:
                    await consumer.commit({("t", 0): offset})
            found = await groups.list_groups(admin)
            assert [(row.progress.name, row.progress.lag, row.progress.state().text) for row in found] == [
                ("behind", 6, "no member reads it"),
                ("ahead", 0, "has read everything"),
            ]
            described = await admin.describe_group("behind")
            (progress,) = await admin.group_progress([described])
            queues = groups.queue_rows(replace(progress, at_ms=(await stored_at(rig, 4)) + 5_000))
            assert [(row.lag.queue_id, row.lag.lag, row.behind_ms, row.owner) for row in queues] == [(0, 6, 5_000, ""), (1, 0, 0, "")]
            assert lag_by_topic(described) == {"t": 6}
            plan = await groups.plan_reset(admin, "behind", "t", "first")
            assert (plan.repeated, plan.skipped, plan.text) == (4, 0, "4 messages are read again")
            assert (await admin.describe_group("behind")).lag == 6
            assert (await groups.plan_reset(admin, "behind", "t", "last")).text == "6 stored messages are skipped"
            assert (await groups.reset(admin, "behind", "t", await stored_at(rig, 8))).skipped == 4
            await asyncio.sleep(1)  # lists come from followers
            assert (await admin.describe_group("behind")).lag == 2

    Rig().run(scenario)


async def stored_at(rig: Rig, offset: int) -> int:
    async with rig.consumer() as consumer:
        (message,) = await consumer.fetch("t", 0, offset, 1)
    return message.store_timestamp


def test_lists_go_on_without_a_dead_replica_group_and_name_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        async with rig.consumer("reader") as consumer:
            await consumer.commit({("t", 0): 0}, replica_group="g0")
        kill_group(rig, "g1")
        async with rig.admin(read_from="follower") as admin:
            for unanswered in (
                (await topics.list_topics(admin)).unanswered,
                (await groups.list_groups(admin)).unanswered,
                (await dead_letters.list_letters(admin)).unanswered,
                (await waiting.open_transactions(admin)).unanswered,
            ):
                assert list(unanswered) == ["g1"]

    Rig(groups=2).run(scenario)


def test_dead_letters_are_looked_at_once_they_are_open_and_sent_again_at_a_rate() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 30)
        await back(rig, list(range(30)), level=DEAD_LETTER)
        async with rig.admin(read_from="follower") as admin:
            (row,) = await dead_letters.list_letters(admin)
            assert (row.consumer_group, row.stored, row.waiting, row.readable) == (GROUP, 30, 30, False)
            with pytest.raises(TopicPermissionError):
                await dead_letters.look(admin, row.parts[0])
            await admin.open_dead_letters(GROUP)
            await asyncio.sleep(1)
            (row,) = await dead_letters.list_letters(admin, GROUP)
            letters = (await dead_letters.look(admin, row.parts[0], rows=10)).rows
            assert [letter.preview for letter in letters] == [str(number) for number in range(10)]
            assert dead_letters.upto(row.parts[0], letters[2].offset) == 3
            redrive = dead_letters.Redrive(admin, row.parts, count=3)
            await redrive.run()
            assert (redrive.sent, redrive.text) == (3, "3 of 3 dead letters were sent again")
            started = rig.cluster.loop.now_s
            (row,) = await dead_letters.list_letters(admin, GROUP, at_leader=True)
            slow = dead_letters.Redrive(admin, row.parts, rate=5)
            running = asyncio.ensure_future(slow.run(lambda: slow.stop() if slow.sent >= 10 else None))
            await running
            assert 1.5 < rig.cluster.loop.now_s - started < 3.5
            assert 10 <= slow.sent <= 12
            assert slow.text == f"{slow.sent} of 27 dead letters were sent again; stopped"
            (row,) = await dead_letters.list_letters(admin, GROUP, at_leader=True)
            assert row.waiting == 27 - slow.sent
            rest = dead_letters.Redrive(admin, row.parts, to_group=True)
            await rest.run()
            await asyncio.sleep(1)
            assert topics.messages_in((await topics.ranges(admin, [RETRY]))[RETRY]) == rest.sent == row.waiting
            with pytest.raises(InvalidArgumentError):
                dead_letters.Redrive(admin, row.parts, rate=-1)

    Rig().run(scenario)


def test_a_slow_redrive_stops_at_once_and_no_other_begins_meanwhile() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 5)
        await back(rig, list(range(5)), level=DEAD_LETTER)
        async with rig.admin() as admin:
            (row,) = await dead_letters.list_letters(admin)
            running, session = RunningRedrives(), SessionTable(1e9).make("u", admin)
            slow = dead_letters.Redrive(admin, row.parts, rate=0.1)
            task = running.start(session, GROUP, slow)
            with pytest.raises(InvalidArgumentError, match="already"):
                running.start(session, GROUP, dead_letters.Redrive(admin, row.parts))
            await until(lambda: slow.sent == 1)
            began_s = rig.cluster.loop.now_s
            slow.stop()
            await task
            assert rig.cluster.loop.now_s - began_s < 0.5
            assert not running.is_running(GROUP)

    Rig().run(scenario)


def test_a_redrive_that_fails_says_why() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 2)
        await back(rig, [0, 1], level=DEAD_LETTER)
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            (row,) = await dead_letters.list_letters(admin)
            redrive = dead_letters.Redrive(admin, row.parts)
            await redrive.run()
            assert redrive.done
            assert redrive.text.startswith(
                "0 of 2 dead letters were sent again, then: dead letter 0 of g came from topic 't', which does not"
            )

    Rig().run(scenario)


def test_a_redrive_that_fails_by_a_fault_of_ours_says_so_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Admin):
        async def redrive(self, *_: object, **__: object) -> int:
            raise ZeroDivisionError

    async def work() -> None:
        part = DeadLetters("g", "g0", "%DLQ%g", 6, 0, 2, 0)
        redrive = dead_letters.Redrive(Broken("127.0.0.1:1"), [part])
        await redrive.run()
        assert redrive.done
        assert redrive.text == "0 of 2 dead letters were sent again, then: it failed: ZeroDivisionError; the console's log says why"
        assert "dead letters could not be sent again" in caplog.text

    asyncio.run(work())


def test_a_redrive_goes_on_when_its_session_ends_and_a_later_one_sees_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    class Slow(Admin):
        async def redrive(self, *_: object, **__: object) -> int:
            go_on.clear()
            await go_on.wait()
            return 1

    async def work() -> None:
        table = SessionTable(60.0)
        secret = await table.open("u", Slow("127.0.0.1:1"))
        session = table.find(secret)
        assert session is not None
        part = DeadLetters("g", "g0", "%DLQ%g", 6, 0, 2, 0)
        redrive = dead_letters.Redrive(session.admin, [part])
        running = session.keep_for_user("redrives", RunningRedrives).start(session, "g", redrive)
        await asyncio.sleep(0)
        await table.close(secret)
        while not redrive.done:
            go_on.set()
            await asyncio.sleep(0)
        await running
        assert redrive.sent == 2
        assert "u: g: 2 of 2 dead letters were sent again" in caplog.text
        later = table.find(await table.open("u", Admin("127.0.0.1:1")))
        assert later is not None
        assert later.keep_for_user("redrives", RunningRedrives).of_group["g"] is redrive
        await table.end()

    go_on = asyncio.Event()
    asyncio.run(work())


def test_open_transactions_the_oldest_first() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(lambda _: TransactionState.UNKNOWN) as producer, rig.admin() as admin:
            for number in range(3):
                await producer.prepare(Message("t", b"%d" % number))
                await asyncio.sleep(0.1)
            found = await waiting.open_transactions(admin)
            assert (found.open, len(found.rows), found.parked) == (3, 3, 0)
            assert [row.stored_ms for row in found.rows] == sorted(row.stored_ms for row in found.rows)
            assert found.producers == {"tests": 1}
            assert (await waiting.open_transactions(admin, "others")).rows == []

    Rig().run(scenario)
