"""What a node keeps in memory: bounded, however small entries are and however often links break."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter

from dledger.core.types import EntryKind
from dledger.log.cache import EntryCache
from dledger.log.entry import encode_entry, parse_entries
from dledger_client.aio import Message
from tests.unit.client.sim_rig import Rig

LIMIT_BYTES = 1 << 20
OURS = ("dledger", "store", "broker")
GROWS = {"EntryMeta", "RawEntry", "EntryId", "LeaderChange"}  # with the log, up to bounds of their own


def test_small_entries_do_not_take_more_than_the_cache_may() -> None:
    count = 3000
    raw, pos = [], 0
    for index in range(1, count + 1):
        entry = encode_entry(index, 1, EntryKind.NORMAL, pos, 0, [bytes(100)])
        pos += entry.size_bytes
        raw.append(b"".join(bytes(buffer) for buffer in entry.buffers))
    gc.collect()
    tracemalloc.start()
    try:
        cache = EntryCache(LIMIT_BYTES, 1)
        for data in raw:
            (entry,) = parse_entries(memoryview(bytes(bytearray(data))))
            cache.add(entry)
            cache.evict(entry.index)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.first_index > 1
    assert taken < 1.2 * LIMIT_BYTES


def test_links_that_break_again_and_again_leave_nothing_behind() -> None:
    def kept() -> Counter[str]:
        """Objects of ours by class, and tasks that have not ended: ended ones stay for a while where the simulator noted them."""
        gc.collect()
        found: Counter[str] = Counter()
        for each in gc.get_objects():
            kind = type(each)
            if isinstance(each, asyncio.Task):
                found["Task"] += not each.done()
            elif isinstance(kind.__module__, str) and kind.__module__.startswith(OURS) and kind.__name__ not in GROWS:
                found[kind.__name__] += 1
        return found

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        hosts = [host.ip for host in rig.cluster.hosts.values()]
        before: Counter[str] = Counter()
        async with rig.producer() as producer:
            for number in range(200):
                rig.cluster.net.break_connections(hosts[number % 3], hosts[(number + 1) % 3])
                await asyncio.sleep(0.05)
                if number % 10 == 0:
                    await producer.send(Message("t", b"x"))
                if number == 20:
                    before = kept()
        await asyncio.sleep(1)
        more = {name: count - before[name] for name, count in kept().items() if count - before[name] > 30}
        assert not more

    Rig(1).run(scenario)
