"""Pages of messages over the queues of a topic: every message once and in order, read at followers, whatever is missing is said."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from dledger_client.aio import Admin, DledgerError, Listed, Message, QueueRange
from dledger_console.data import browse, search
from dledger_console.data.browse import MessagePage, Start
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError, UnreachableError
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_topics_over_groups import kill_group


async def fill(rig: Rig, count: int, *, queues: int = 4, body: bytes = b"%d") -> None:
    await rig.topic("t", queues=queues)
    async with rig.producer() as producer:
        for number in range(count):
            message = Message("t", body % number, keys=f"k{number}", tags="odd" if number % 2 else "even", properties={"n": str(number)})
            await producer.send(message, queue_key=str(number % 7))
            await asyncio.sleep(0.01)
    await asyncio.sleep(1)


LARGE = 8_000


async def pages(admin: Admin, start: Start, rows: int) -> list[MessagePage]:
    found = [await browse.page(admin, "t", start, rows=rows)]
    while (following := found[-1].next) is not None:
        found.append(await browse.page(admin, "t", following, rows=rows))
    return found


def numbers(found: list[MessagePage]) -> list[int]:
    return [int(row.preview) for each in found for row in each.rows]


@pytest.mark.parametrize(("queues", "groups"), [(1, 1), (4, 1), (12, 2)])
def test_pages_hold_every_message_once_in_the_order_they_were_stored(queues: int, groups: int) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 60, queues=queues)
        async with rig.admin(read_from="follower") as admin:
            forwards = await pages(admin, await browse.oldest(admin, "t"), 7)
            assert sorted(numbers(forwards)) == list(range(60))
            assert all(len(page.rows) == 7 for page in forwards[:-1])
            times = [row.stored_ms for page in forwards for row in page.rows]  # the clocks of two replica groups differ
            assert times == sorted(times)
            assert groups > 1 or numbers(forwards) == list(range(60))
            backwards = await pages(admin, await browse.newest(admin, "t"), 11)
            assert numbers(backwards) == numbers(forwards)[::-1]
            masters = {rig.master_of(group) for group in rig.cluster.groups}
            assert not masters & {replica for page in forwards + backwards for replica in page.replicas}
            third = forwards[0].rows[3]
            since = await browse.page(admin, "t", await browse.at_time(admin, "t", third.stored_ms), rows=5)
            assert numbers([since]) == numbers(forwards)[3:8]
            queue = third.queue
            own = await browse.page(admin, "t", browse.at_offset(queue, third.offset), rows=3)
            assert [row.queue for row in own.rows] == [queue] * len(own.rows)
            assert own.rows[0].msg_id == third.msg_id

    Rig(groups=groups).run(scenario)


def test_large_bodies_are_read_in_parts_and_not_kept() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 12, queues=2, body=b"%d" + b" " * 400_000)
        async with rig.admin(read_from="follower") as admin:
            for start in (await browse.newest(admin, "t"), await browse.oldest(admin, "t")):
                found = await browse.page(admin, "t", start, rows=50)
                assert sorted(int(row.preview.split()[0]) for row in found.rows) == list(range(12))
                assert all(row.size_bytes > 400_000 and len(row.preview) <= 120 for row in found.rows)

    Rig().run(scenario)


def test_a_topic_without_messages_and_one_that_does_not_exist() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        async with rig.admin(read_from="follower") as admin:
            found = await browse.page(admin, "t", await browse.newest(admin, "t"))
            assert (list(found.rows), found.next, list(found.notes)) == ([], None, [])
            with pytest.raises(TopicNotFoundError):
                await browse.newest(admin, "nowhere")
            with pytest.raises(TopicNotFoundError):
                await browse.newest(admin, "t", ("g0", 9))

    Rig().run(scenario)


def test_a_dead_replica_group_is_named_and_the_others_are_shown() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 20, queues=4)
        async with rig.admin(read_from="follower") as admin:
            start = await browse.newest(admin, "t")
            kill_group(rig, "g1")
            found = await browse.page(admin, "t", start)
            assert list(found.unanswered) == ["g1"]
            assert {row.replica_group for row in found.rows} == {"g0"}
            assert list((await browse.newest(admin, "t")).unanswered) == ["g1"]

    Rig(groups=2).run(scenario)


def test_a_replica_group_that_is_silent_for_one_page_is_gone_on_with_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a filter; and one that was silent at the start is named on every page."""

    async def scenario(rig: Rig) -> None:
        await fill(rig, 20, queues=4)
        async with rig.admin(read_from="follower") as admin:
            ask = admin.offsets_of_topics

            async def without_g1(*given: Any, **named: Any) -> dict[str, Listed[QueueRange]]:
                found = await ask(*given, **named)
                silent: dict[str, DledgerError] = {"g1": UnreachableError("silent")}
                return {name: Listed([each for each in of if each.replica_group != "g1"], silent) for name, of in found.items()}

            first = await browse.page(admin, "t", await browse.oldest(admin, "t"), rows=4)
            filtered = await search.by_filter(admin, "t", await browse.oldest(admin, "t"), sql="n >= 0", rows=2)
            assert first.next is not None
            assert filtered.next is not None
            with monkeypatch.context() as patch:
                patch.setattr(admin, "offsets_of_topics", without_g1)
                second = await browse.page(admin, "t", first.next, rows=50)
                more = await search.by_filter(admin, "t", filtered.next, sql="n >= 0", rows=50)
                late = await browse.oldest(admin, "t")
            assert (list(second.unanswered), list(more.unanswered), more.complete) == (["g1"], ["g1"], False)
            assert second.next is not None
            assert more.next is not None
            rest = await pages(admin, second.next, 50)
            assert sorted(numbers([first, second, *rest])) == list(range(20))
            last = await search.by_filter(admin, "t", more.next, sql="n >= 0", rows=50)
            assert sorted(int(row.preview) for found in (filtered, more, last) for row in found.rows) == list(range(20))
            assert all(list(page.unanswered) == ["g1"] for page in await pages(admin, late, 3))

    Rig(groups=2).run(scenario)


def test_messages_are_found_by_key_id_filter_and_tag() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 40)
        async with rig.admin(read_from="follower") as admin:
            (row,) = (await search.by_key(admin, "t", " k7 ")).rows
            assert row.preview == "7"
            assert [each.preview for each in (await search.by_id(admin, row.msg_id)).rows] == ["7"]
            assert list((await search.by_id(admin, "0" * 32)).rows) == []
            start = await browse.oldest(admin, "t")
            found = await search.by_filter(admin, "t", start, sql="n >= 30")
            assert sorted(int(each.preview) for each in found.rows) == list(range(30, 40))
            assert (found.complete, found.next, found.read) == (True, None, 40)
            first = await search.by_filter(admin, "t", start, tags="odd", rows=15)
            assert len(first.rows) == 15
            assert first.next is not None
            rest = await search.by_filter(admin, "t", first.next, tags="odd", rows=15)
            assert sorted(int(each.preview) for each in [*first.rows, *rest.rows]) == list(range(1, 40, 2))
            with pytest.raises(InvalidArgumentError):
                await search.by_filter(admin, "t", start, sql="n >=")

    Rig().run(scenario)


def test_a_filter_stops_when_its_time_is_over_and_goes_on_from_there() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 40)
        async with rig.admin(read_from="follower") as admin:
            times = iter([0.0, 0.0, *[100.0] * 100])
            first = await search.by_filter(admin, "t", await browse.oldest(admin, "t"), sql="n >= 0", clock=lambda: next(times))
            assert not first.complete
            assert first.next is not None
            assert 0 < len(first.rows) < 40
            rest = await search.by_filter(admin, "t", first.next, sql="n >= 0")
            assert sorted(int(each.preview) for each in [*first.rows, *rest.rows]) == list(range(40))

    Rig().run(scenario)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_page_of_large_messages_ends_before_it_has_read_too_much(monkeypatch: pytest.MonkeyPatch, newest_first: bool) -> None:
    monkeypatch.setattr(browse, "PAGE_BYTES", 5 * LARGE)
    monkeypatch.setattr(browse, "FETCH_BYTES", LARGE)

    async def scenario(rig: Rig) -> None:
        noise = random.Random(7).randbytes(LARGE).replace(b"%", b"")  # a body that compression does not make small
        await fill(rig, 24, queues=2, body=b"%d " + noise)
        async with rig.admin(read_from="follower") as admin:
            start = await (browse.newest if newest_first else browse.oldest)(admin, "t")
            found = await pages(admin, start, 50)
            order = [int(row.preview.split()[0]) for each in found for row in each.rows]
            assert order == sorted(range(24), reverse=newest_first), "none is left out where a page ends"
            assert all(each.rows for each in found)
            assert max(len(each.rows) for each in found[:-1]) <= 24, "eight of each queue may be read before their size is known"
            assert len(found) > 1
            assert found[0].notes == ["the page ends early: its messages are large"]

    Rig().run(scenario)
