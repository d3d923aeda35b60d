"""Topics share what a leader takes on: what is applied is applied in the log's order, so their turns are those of getting into the log."""

from __future__ import annotations

import asyncio

from dledger_client.aio import Message
from store.queues.rebuild import scan_batches
from tests.unit.client.sim_rig import Rig, node_of

WINDOW_BYTES, BATCH_BYTES = 64 << 10, 16 << 10
SETTINGS = f"raft: {{maxUncommittedBytes: {WINDOW_BYTES}}}\n"


def test_a_topic_with_few_messages_has_at_most_a_window_of_others_before_it() -> None:
    """However many connections send to another topic all the time."""

    async def scenario(rig: Rig) -> None:
        await rig.topic("busy", queues=2)
        await rig.topic("quiet", queues=1)
        busy = [rig.producer(batch_bytes=BATCH_BYTES, compress_type="none", send_timeout_ms=60_000) for _ in range(8)]
        for producer in busy:
            for number in range(150):
                producer.send_async(Message("busy", b"x" * 4000), queue_id=number % 2)
        log, sent_at = node_of(rig, rig.master).raft.log, list[int]()
        async with rig.producer() as quiet:
            for _ in range(20):
                sent_at.append(log.end_pos)
                await quiet.send(Message("quiet", b"x"))
                await asyncio.sleep(0.005)
        for producer in busy:
            await producer.close()
        batches = scan_batches(log, log.first_index, log.last.index)
        stored_at = [pos async for pos, batch in batches if batch.topic == "quiet"]
        before = [stored - sent for sent, stored in zip(sent_at, stored_at, strict=True)]
        assert 0 < max(before) <= 2 * WINDOW_BYTES, before

    Rig(settings=SETTINGS).run(scenario)
