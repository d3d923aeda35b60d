"""Batches that are sent again because their answer was lost: known for what they are, whatever became of their queue since."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_wire.batches.batch import Sequence64
from dledger_wire.errors import ProducerFencedError
from dledger_wire.status import Perm
from store.commands.producers import InitProducer
from store.commands.topics import UpdateTopic
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run


@pytest.mark.parametrize("change", [{"perm": int(Perm.READ)}, {"write_queues": 1}])
def test_a_stored_batch_is_recognised_when_its_queue_takes_no_more(change: dict[str, Any]) -> None:
    """docs/reference/semantics, row P7: a refusal says that nothing is stored, and the producer would store it elsewhere."""

    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 2)
        await rig.command(InitProducer(producer_id=0))
        first = batch_of("t", 1, [b"a", b"b"], sequence=Sequence64(1, 0, 0))
        await rig.send(first)
        await rig.command(UpdateTopic(name="t", **change))
        (again,) = await rig.send(first)
        assert (again.error, again.duplicate, again.first_queue_offset) == (None, True, 0)
        (fresh,) = await rig.send(batch_of("t", 1, [b"c"], sequence=Sequence64(1, 0, 2)))
        assert fresh.error is not None

    run(scenario)


def test_a_stable_id_of_digits_fences_no_producer_with_an_id_of_that_number() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t", 1)
        made = await rig.command(InitProducer())
        rig.append(rig.store.command(InitProducer(stable_id=str(made.producer_id))))
        (stored,) = await rig.send(batch_of("t", 0, [b"a"], sequence=Sequence64(made.producer_id, 0, 0)))
        assert stored.error is None
        rig.append(rig.store.command(InitProducer(producer_id=made.producer_id)))
        (fenced,) = await rig.send(batch_of("t", 0, [b"b"], sequence=Sequence64(made.producer_id, 0, 1)))
        assert isinstance(fenced.error, ProducerFencedError)
        await rig.close()

    run(scenario)
