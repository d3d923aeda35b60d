"""Payloads of a produce request that are refused whole: what they hold is not a producer's to send."""

from __future__ import annotations

import pytest

from dledger_wire.batches.batch import encode_command
from dledger_wire.errors import CorruptBatchError
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run


def test_a_producer_cannot_send_a_command() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t")
        command = encode_command("delete_topic", {"name": "t"})
        for payload in (command, batch_of("t", 0, [b"a"]) + command):
            with pytest.raises(CorruptBatchError, match="holds message batches only"):
                rig.store.prepare(payload)
        await rig.close()

    run(scenario)


def test_a_payload_without_a_batch_is_refused() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("t")
        with pytest.raises(CorruptBatchError, match="without a batch"):
            rig.store.prepare(b"")
        await rig.close()

    run(scenario)
