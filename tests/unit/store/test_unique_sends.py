"""Sends of clients without a producer id that come twice: recognised by their UNIQ_KEY, and stored once."""

from __future__ import annotations

import pytest

from dledger_wire.errors import NotReadyError
from dledger_wire.status import Perm
from store.append import unique_sends
from store.commands.topics import DeleteTopic, UpdateTopic
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StepClock, StoreRig, batch_of, run

KEY = "7F000001000012345678000000000001"


def sent(body: bytes, queue_id: int = 0, key: str = KEY) -> bytes:
    return batch_of("t", queue_id, [body], unique=[key], recognised=True)


def test_a_send_that_comes_again_gets_the_first_answer_from_whichever_queue_it_names() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 2)
        (other,) = await rig.send(sent(b"other", 1, KEY[:-1] + "2"))
        (first,) = await rig.send(sent(b"a", 1))
        (again,) = await rig.send(sent(b"a", 0))
        assert (other.duplicate, first.duplicate, again.duplicate) == (False, False, True)
        assert (again.queue_id, again.first_queue_offset, again.physical_offset) == (1, 1, first.physical_offset)
        assert [frame.body for frame in await rig.read_all(("t", 1))] == [b"other", b"a"]
        assert await rig.read_all(("t", 0)) == []
        await rig.close()

    run(scenario)


def test_one_that_comes_while_the_first_is_not_committed_waits_for_it_and_is_not_stored() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        first, again = rig.store.prepare(sent(b"a")), None
        rig.append(first)
        again = rig.store.prepare(sent(b"a"))
        assert 0 < again.size_bytes < first.size_bytes  # a void: its answer comes behind the first one in the log
        rig.append(again)
        await rig.commit()
        assert again.outcomes[0].duplicate
        assert again.outcomes[0].physical_offset == first.outcomes[0].physical_offset
        assert [frame.body for frame in await rig.read_all(("t", 0))] == [b"a"]
        await rig.close()

    run(scenario)


def test_both_prepared_before_either_is_placed_are_stored_once() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        first, again = rig.store.prepare(sent(b"a")), rig.store.prepare(sent(b"a"))
        rig.append(first)
        rig.append(again)
        await rig.commit()
        assert [each.outcomes[0].duplicate for each in (first, again)] == [False, True]
        assert len(await rig.read_all(("t", 0))) == 1
        await rig.close()

    run(scenario)


def test_a_new_leader_knows_what_was_applied_and_nothing_that_was_not() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        await rig.send(sent(b"a"))
        lost = rig.store.prepare(sent(b"b", key=KEY[:-1] + "2"))
        rig.append(lost)
        waiting = rig.store.prepare(sent(b"b", key=KEY[:-1] + "2"))
        rig.store.resign()
        rig.store.become_master(1)
        (again,) = rig.store.prepare(sent(b"a")).outcomes
        assert again.duplicate
        rig.append(waiting)
        assert isinstance(waiting.outcomes[0].error, NotReadyError)
        assert rig.store.prepare(sent(b"b", key=KEY[:-1] + "2")).size_bytes >= lost.size_bytes
        await rig.close()

    run(scenario)


def test_a_stored_send_is_recognised_when_its_queue_takes_no_more() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        await rig.send(sent(b"a"))
        await rig.command(UpdateTopic(name="t", perm=int(Perm.READ)))
        (again,) = await rig.send(sent(b"a"))
        assert (again.error, again.duplicate) == (None, True)
        await rig.close()

    run(scenario)


def test_keys_are_forgotten_after_a_while_with_their_topic_and_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_sends, "MAX_KNOWN", 2)

    async def scenario() -> None:
        clock = StepClock()
        rig = await StoreRig.open(CrashDisk(), clock=clock)
        await rig.topic("t", 1)
        keys = [f"{KEY[:-1]}{number}" for number in range(3)]
        for key in keys:
            await rig.send(sent(b"a", key=key))
        known = [rig.store.prepare(sent(b"a", key=key)).outcomes[0].duplicate for key in keys]
        assert known == [False, True, True]
        await rig.command(DeleteTopic(name="t"))
        await rig.topic("t", 1)
        (stored,) = await rig.send(sent(b"a", key=keys[2]))
        assert not stored.duplicate
        await rig.close()

    run(scenario)


def test_batches_without_a_key_or_without_the_flag_are_all_stored() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        for batch in (batch_of("t", 0, [b"a"], recognised=True), batch_of("t", 0, [b"a"], unique=[KEY])):
            for _ in range(2):
                (outcome,) = await rig.send(batch)
                assert not outcome.duplicate
        assert len(await rig.read_all(("t", 0))) == 4
        await rig.close()

    run(scenario)
