"""Importing a RocketMQ store into a cluster: what arrives, once, whatever ends the import in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dledger_client.fetch.records import ReceivedMessage
from dledger_offline.rocketmq import importing
from dledger_offline.rocketmq.folder import StoreFolder
from dledger_offline.rocketmq.importing import Import, Imported
from dledger_offline.rocketmq.progress import Progress
from dledger_offline.rocketmq.survey import survey
from dledger_wire.errors import (
    ConfigError,
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    StorageDamagedError,
)
from dledger_wire.status import Perm
from tests.unit.cli.rocketmq.old_store import BORN_MS, HALF, IPV4, IPV6, OP, STORED_MS, OldStore, unique_id
from tests.unit.client.sim_rig import Rig

TOPICS = {"orders": (3, 6), "closed": (1, 4), "%RETRY%audit": (1, 6), "%DLQ%audit": (1, 6), "%RETRY%idle": (1, 6)}
Scenario = Callable[[Rig], Awaitable[None]]


def filled(root: Path, count: int = 60) -> OldStore:
    store = OldStore(root, topics=dict(TOPICS))
    for number in range(count):
        store.put("orders", number % 2, b"order %d" % number, unique=unique_id(number), keys=f"o-{number} all", tags="paid", flag=number)
    return store


async def run_import(rig: Rig, root: Path, **options: Any) -> Imported:
    folder = StoreFolder(root)
    found, judge = survey(folder)
    async with rig.admin() as admin:
        name = (await admin.describe_cluster()).name
        progress = Progress.opened(root.with_name("state.json"), name, options.pop("replica_group", "g0"))
        router = rig.router()
        try:
            return await Import(admin, router, folder, found, judge, progress, 20_000, **options).run()
        finally:
            await router.close()


async def stored(rig: Rig, topic: str, queue_id: int = 0, replica_group: str = "g0") -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with rig.consumer() as reader, rig.admin() as admin:
        ends = {(each.replica_group, each.queue_id): each.max_offset for each in await admin.topic_offsets(topic)}
        end = ends[replica_group, queue_id]
        async for chunk in reader.read_chunks(topic, queue_id, 0, end, replica_group=replica_group):
            found += chunk.messages()
    return found


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [bytes(message.body) for message in messages]


def test_everything_arrives_that_a_message_has(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 0)
    store.put(
        "orders", 2, b"first", unique=unique_id(1), keys="o-1 c-1", tags="paid", flag=-7, region="eu", reconsume_times=2, MSG_REGION="x"
    )
    store.put("orders", 2, b"wide", unique="F" * 56, hosts=(IPV6, IPV6), sys_flag=0x8)
    store.put("orders", 2, b"narrow", hosts=(IPV4, IPV6))
    store.put(HALF, 0, b"open", REAL_TOPIC="orders")
    store.put(OP, 0, b"7", tags="d")
    store.put("closed", 0, b"kept")
    store.groups = {"audit": {"retryMaxTimes": 5, "retryQueueNums": 2, "consumeEnable": False}}
    store.write()

    async def scenario(rig: Rig) -> None:
        done = await run_import(rig, tmp_path / "store")
        assert (done.messages, done.delayed) == (4, 0)
        first, wide, narrow = await stored(rig, "orders", 2)
        assert (bytes(first.body), first.tags, first.keys, first.flag, first.reconsume_times) == (b"first", "paid", "o-1 c-1", -7, 2)
        assert first.properties == {"UNIQ_KEY": unique_id(1), "KEYS": "o-1 c-1", "TAGS": "paid", "region": "eu", "MSG_REGION": "x"}
        assert (first.born_timestamp, first.born_host, first.msg_id) == (BORN_MS, "10.0.0.7:4711", unique_id(1))
        assert (bytes(wide.body), wide.born_host, wide.msg_id) == (b"wide", "[1:203:405:607:809:a0b:c0d:e0f]:4711", "F" * 56)
        assert (bytes(narrow.body), narrow.born_host) == (b"narrow", "10.0.0.7:4711")
        async with rig.admin() as admin:
            topics = {each.topic: (each.read_queues, each.write_queues, each.perm) for each in await admin.list_topics()}
            assert topics == {"orders": (3, 3, 6), "closed": (1, 1, 4)}
            (settings,) = await admin.group_settings("audit")
            assert (settings.retry_max_times, settings.retry_queue_nums, settings.consume_enable) == (5, 2, False)
            (by_key,) = await admin.query_by_key("orders", "c-1")
            assert bytes(by_key.body) == b"first"

    Rig().run(scenario)


class _Killed(Exception):
    pass


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, where: str) -> None:
    """End the import in its ``step``-th step: before messages are stored, or after that, before the state file says so."""
    monkeypatch.setattr(importing, "STEP_BYTES", 1000)
    seen = 0

    def killing(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == step:
                raise _Killed
            return original(*arguments)

        return call

    if where == "before":
        monkeypatch.setattr(Import, "_stored", killing(Import._stored))
    else:
        monkeypatch.setattr(Progress, "save", killing(Progress.save))


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("step", [1, 2, 5, 8, 11])
def test_an_import_that_was_killed_goes_on_and_doubles_nothing(tmp_path: Path, step: int, where: str) -> None:
    store = filled(tmp_path / "store")
    for number in range(20):
        store.delayed("orders", 2, b"late %d" % number, level=18, due_ms=BORN_MS + number, unique=unique_id(100 + number))
    store.write()

    async def scenario(rig: Rig) -> None:
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, step, where)
            with pytest.raises(_Killed):
                await run_import(rig, tmp_path / "store")
        await run_import(rig, tmp_path / "store")
        again = await run_import(rig, tmp_path / "store")
        assert (again.messages, again.delayed) == (0, 0)
        for queue_id in (0, 1):
            assert bodies(await stored(rig, "orders", queue_id)) == [b"order %d" % number for number in range(queue_id, 60, 2)]
        async with rig.admin() as admin:

            async def delivered() -> int:
                return {each.queue_id: each.max_offset for each in await admin.topic_offsets("orders")}[2]

            while await delivered() < 20:  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.05)
        assert sorted(bodies(await stored(rig, "orders", 2))) == sorted(b"late %d" % number for number in range(20))

    Rig().run(scenario)


def test_what_waits_is_delivered_when_it_is_due(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        now_ms = rig.around()["clock"].wall_ms()
        store = filled(tmp_path / "store", 2)
        store.stored_ms, store.delays = now_ms, {3: 1}
        store.delayed("orders", 0, b"delivered", level=3, due_ms=1, unique=unique_id(1))
        store.delayed("orders", 1, b"overdue", level=3, due_ms=now_ms - 5000, unique="0" * 24 + unique_id(2))
        store.delayed("%RETRY%audit", 0, b"again", level=3, due_ms=now_ms + 20_000, unique=unique_id(3))
        store.timers_read_ms = now_ms
        store.timed("orders", 2, b"timed", due_ms=now_ms + 40_000, unique=unique_id(4), TIMER_DELAY_SEC="40", region="eu")
        store.write()
        done = await run_import(rig, tmp_path / "store")
        assert (done.messages, done.delayed) == (2, 3)
        async with rig.admin() as admin:

            async def messages_of(topic: str) -> int:
                return sum(each.messages for each in await admin.topic_offsets(topic))

            async def wait_for(topic: str, count: int) -> int:
                while await messages_of(topic) < count:  # noqa: ASYNC110 - virtual time costs nothing
                    await asyncio.sleep(0.05)
                return rig.around()["clock"].wall_ms() - now_ms

            await wait_for("orders", 3)
            assert await wait_for("%RETRY%audit", 1) >= 15_000  # the clocks of the nodes differ
            assert await wait_for("orders", 4) >= 35_000
        overdue = (await stored(rig, "orders", 1))[-1]
        assert (bytes(overdue.body), overdue.msg_id, overdue.tags) == (b"overdue", unique_id(2), "late")
        (timed,) = await stored(rig, "orders", 2)
        assert timed.properties == {"UNIQ_KEY": unique_id(4), "region": "eu"}

    Rig().run(scenario)


def test_groups_go_on_where_they_were(tmp_path: Path) -> None:
    store = OldStore(tmp_path / "store", topics=TOPICS | {"%RETRY%new": (1, 6)})
    store.put("%RETRY%new", 0, b"never read", RETRY_TOPIC="orders")
    for number in range(10):
        store.put("orders", 0, b"order %d" % number)
        store.put("%RETRY%audit", 0, b"again %d" % number, RETRY_TOPIC="orders")
        store.put("%DLQ%audit", 0, b"dead %d" % number, RETRY_TOPIC="orders")
    store.offsets = {
        "orders@audit": {0: 4, 1: 0},
        "orders@ahead": {0: 99},
        "%RETRY%audit@audit": {0: 7},
        "gone@audit": {0: 3},
        "orders@TOOLS_CONSUMER": {0: 1},
    }
    store.write()

    async def scenario(rig: Rig) -> None:
        done = (await run_import(rig, tmp_path / "store")).groups
        assert (done.groups, done.offsets, done.kept) == (4, 5, 0)
        async with rig.admin() as admin:
            positions = {each.key[::2]: each.offset for each in (await admin.describe_group("audit")).queues if each.offset is not None}
            assert positions == {("orders", 0): 4, ("orders", 1): 0, ("%RETRY%audit", 0): 0}
            assert {each.offset for each in (await admin.describe_group("ahead")).queues} == {10, None}
            assert [each.offset for each in (await admin.describe_group("new")).queues] == [0]
            (letters,) = await admin.dead_letters("audit")
            assert (letters.waiting, letters.readable) == (10, False)
            await admin.reset_offsets("audit", "orders", {0: 6})
        assert bodies(await stored(rig, "%RETRY%audit")) == [b"again 7", b"again 8", b"again 9"]
        again = (await run_import(rig, tmp_path / "store")).groups
        assert (again.offsets, again.kept) == (0, 5)

    Rig().run(scenario)


def test_a_newer_copy_adds_what_is_new(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 10)
    store.delayed("orders", 2, b"delivered meanwhile", level=3, due_ms=1, unique=unique_id(90))
    store.write()

    async def scenario(rig: Rig) -> None:
        first = await run_import(rig, tmp_path / "store", only_messages=True)
        async with rig.producer() as producer:
            await producer.send_many("orders", [b"of a producer that moved"], queue_id=0)
        store.put("orders", 2, b"delivered meanwhile")
        store.put("orders", 0, b"new")
        store.delays = {3: 1}
        store.offsets = {"orders@before": {0: 3}, "orders@behind": {0: 6, 1: 5}}
        store.write()
        second = await run_import(rig, tmp_path / "store")
        assert (first.messages, first.delayed, second.messages, second.delayed) == (10, 0, 2, 0)
        assert bodies(await stored(rig, "orders", 0))[4:] == [b"order 8", b"of a producer that moved", b"new"]
        async with rig.admin() as admin:
            for name, offset in (("before", 3), ("behind", 5)):  # it would pass the other producer's message otherwise
                queues = {each.queue_id: each.offset for each in (await admin.describe_group(name)).queues}
                assert queues[0] == offset

    Rig().run(scenario)


def test_delayed_messages_of_two_copies_are_not_sent(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 2)
    store.delayed("orders", 0, b"late", level=18, due_ms=STORED_MS + 1000, unique=unique_id(9))
    store.put("orders", 0, b"one that says that this is later", unique=unique_id(3))
    store.write()

    async def scenario(rig: Rig) -> None:
        await run_import(rig, tmp_path / "store")
        store.put("orders", 0, b"more")
        store.write()
        with pytest.raises(ConfigError, match="delayed messages of an earlier copy were sent already"):
            await run_import(rig, tmp_path / "store")
        done = await run_import(rig, tmp_path / "store", only_messages=True)
        assert done.messages == 1

    Rig().run(scenario)


def test_what_is_damaged_can_be_left_out(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 4)
    at = store.put("orders", 0, b"damaged")
    store.put("orders", 0, b"behind it")
    store.offsets = {"orders@audit": {0: 4}}
    root = store.write()
    file = root / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[at + 88] ^= 1
    file.write_bytes(data)

    async def scenario(rig: Rig) -> None:
        assert (await run_import(rig, root)).messages == 5
        assert bodies(await stored(rig, "orders", 0)) == [b"order 0", b"order 2", b"behind it"]
        async with rig.admin() as admin:
            assert {each.offset for each in (await admin.describe_group("audit")).queues} == {3, None}

    Rig().run(scenario)


def refused(root: Path, prepare: Scenario, kind: type[DledgerError], text: str) -> None:
    async def scenario(rig: Rig) -> None:
        await prepare(rig)
        with pytest.raises(kind, match=text):
            await run_import(rig, root)

    Rig().run(scenario)


def test_a_topic_with_messages_is_not_mixed_with_old_ones(tmp_path: Path) -> None:
    async def prepare(rig: Rig) -> None:
        await rig.topic("orders", 3)
        async with rig.producer() as producer:
            await producer.send_many("orders", [b"x"], queue_id=1)

    refused(filled(tmp_path / "store").write(), prepare, InvalidArgumentError, "topic orders has messages already: 1 in queue 1 of g0")


def test_a_topic_with_fewer_queues_is_refused(tmp_path: Path) -> None:
    async def prepare(rig: Rig) -> None:
        await rig.topic("orders", 2)

    text = "topic orders has 2 queues in g0, the old broker has 3: dledger topic update orders --queues 3"
    refused(filled(tmp_path / "store").write(), prepare, InvalidArgumentError, text)


def test_a_topic_that_takes_no_messages_is_refused(tmp_path: Path) -> None:
    async def prepare(rig: Rig) -> None:
        await rig.topic("orders", 3, perm=int(Perm.READ))

    refused(filled(tmp_path / "store").write(), prepare, InvalidArgumentError, "topic orders has permission 4, expected 6")


def test_a_body_that_the_cluster_does_not_take_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 1)
    store.put("orders", 0, b"x" * 12_000)

    async def scenario(rig: Rig) -> None:
        with pytest.raises(MessageTooLargeError, match="the store has a body of 12000 bytes"):
            await run_import(rig, tmp_path / "store")

    store.write()
    Rig(store="maxMessageSize: 10000").run(scenario)


def test_another_store_is_no_newer_copy(tmp_path: Path) -> None:
    async def prepare(rig: Rig) -> None:
        await run_import(rig, filled(tmp_path / "store").write())
        other = OldStore(tmp_path / "store")
        for number in range(60):
            other.put("orders", number % 2, b"other %d" % number, unique=unique_id(number), keys=f"o-{number} all", tags="paid")
        other.write()

    refused(tmp_path / "store", prepare, ConfigError, "not the store that .*state.json is about, or an older copy of it")


def test_a_topic_that_was_deleted_meanwhile_is_not_filled_from_the_middle(tmp_path: Path) -> None:
    async def prepare(rig: Rig) -> None:
        await run_import(rig, filled(tmp_path / "store").write())
        async with rig.admin() as admin:
            await admin.delete_topic("orders")

    text = "orders/0: .*state.json says that 30 messages are stored, up to offset 30; the cluster knows of 0, and the queue ends at 0"
    refused(tmp_path / "store", prepare, OutOfOrderSequenceError, text)


def test_an_import_goes_on_although_the_cluster_forgot_what_it_counted(tmp_path: Path) -> None:
    """As it does of a producer that was silent for a week."""
    store, state = filled(tmp_path / "store", 10), tmp_path / "state.json"
    store.write()

    def forget() -> None:
        progress = Progress.load(state)
        assert progress is not None
        progress.producer_id = f"another-{progress.producer_id}"  # of which it counted nothing
        progress.save()

    async def scenario(rig: Rig) -> None:
        await run_import(rig, tmp_path / "store", only_messages=True)
        for number in (10, 12):
            forget()
            store.put("orders", 0, b"order %d" % number, unique=unique_id(number))
            store.write()
            await run_import(rig, tmp_path / "store", only_messages=True)
        assert bodies(await stored(rig, "orders", 0)) == [b"order %d" % number for number in range(0, 14, 2)]
        assert bodies(await stored(rig, "orders", 1)) == [b"order %d" % number for number in range(1, 10, 2)]

    Rig().run(scenario)


def test_a_state_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for text in ("{", "[]", '{"format": 1}', '{"format":2,"producer_id":"i","cluster":"c","replica_group":"g"}'):
        path.write_text(text)
        with pytest.raises(StorageDamagedError, match="no state of an import"):
            Progress.load(path)
    Progress(path, "one", "g0").save()
    assert Progress.opened(path, "one", "g0").producer_id.startswith("import-rocketmq-")
    with pytest.raises(ConfigError, match="into replica group g0 of cluster one, not into g1 of one; expected another --state"):
        Progress.opened(path, "one", "g1")
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StorageDamagedError, match="format 2 of an import, expected 1"):
        Progress.load(path)


def test_two_brokers_fill_two_replica_groups(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store = OldStore(tmp_path / name / "store")
        store.put("orders", 1, name.encode())
        store.write()

    async def scenario(rig: Rig) -> None:
        for name, group in (("a", "g0"), ("b", "g1")):
            await run_import(rig, tmp_path / name / "store", replica_group=group)
        for name, group in (("a", "g0"), ("b", "g1")):
            assert bodies(await stored(rig, "orders", 1, group)) == [name.encode()]
        async with rig.admin() as admin:
            assert [(each.replica_group, each.write_queues) for each in await admin.describe_topic("orders")] == [("g0", 2), ("g1", 2)]

    Rig(groups=2).run(scenario)
