"""Store hosts as they are: IPv4 and IPv6 nodes, beside IPv4 and IPv6 clients, in batches of every shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dledger.log.verify import verify_log
from dledger_client.fetch.records import Chunk
from dledger_wire.batches.batch import Sequence64, encode_batch
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.java_hash import java_hash, key_hash
from store.commands.producers import InitProducer
from store.offline.verify import verify_store
from store.queues.fetch_filter import FetchFilter
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import TINY, StoreRig, run

HOSTS = {"127.0.0.1:7000": 0, "[2001:db8::a]:7000": 0x20, "broker-1.example:7000": 0}


def record(born_host: str, bodies: list[bytes], sequence: Sequence64 | None) -> bytes:
    ids = [f"{number:032X}" for number in range(len(bodies))]
    frames = [
        encode_frame(Frame(0, 0, 0, body, "t", {"UNIQ_KEY": unique, "TAGS": "x", "KEYS": "k"}, born_timestamp=7, born_host=born_host))
        for body, unique in zip(bodies, ids, strict=True)
    ]
    return encode_batch(
        "t",
        0,
        b"".join(frames),
        np.array([len(frame) for frame in frames], np.uint32),
        np.full(len(bodies), java_hash("x"), np.int32),
        np.array([key_hash("t", unique) for unique in ids], np.int32),
        key_owners=np.arange(len(bodies), dtype=np.uint32),
        key_hashes=np.full(len(bodies), key_hash("t", "k"), np.int32),
        sequence=sequence,
    )


@pytest.mark.parametrize("born_host", ["10.9.8.7:5", "[fe80::1]:5"])
@pytest.mark.parametrize(("store_host", "flag"), HOSTS.items())
def test_what_is_stored_names_its_node(store_host: str, flag: int, born_host: str) -> None:
    bodies = [[b"one"], [b"%d" % number * (number % 5) for number in range(14)], [b"same"] * 12]

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, replace(TINY, store_host=store_host))
        await rig.topic("t", 1)
        await rig.command(InitProducer(producer_id=0))
        first = 0
        for batch in bodies:
            data = record(born_host, batch, Sequence64(1, 0, first))
            outcomes = [(await rig.send(data))[0] for _ in range(2)]  # sent twice, stored once
            assert [outcome.error for outcome in outcomes] == [None, None]
            assert [outcome.duplicate for outcome in outcomes] == [False, True]
            first += len(batch)
        frames = await rig.read_all(("t", 0))
        assert [frame.body for frame in frames] == [body for batch in bodies for body in batch]
        stored_as = store_host if not store_host.startswith("broker") else "0.0.0.0:7000"
        assert {(frame.born_host, frame.store_host, frame.sys_flag & 0x20) for frame in frames} == {(born_host, stored_as, flag)}
        assert [frame.queue_offset for frame in frames] == list(range(first))
        assert {frame.properties["KEYS"] for frame in frames} == {"k"}
        chosen = await rig.store.read("t", 0, 0, max_bytes=10**6, fetch_filter=FetchFilter(np.array([java_hash("x")])))
        sizes = np.frombuffer(chosen.sizes, ">u4")
        chunk = Chunk("t", "g0", 0, "n0", np.arange(chosen.count), sizes, b"".join(chosen.frames))
        ids = [message.offset_msg_id for message in chunk.messages()]
        assert {len(found) for found in ids} == {56 if flag else 32}
        assert await rig.store.reader.offset_for_time("t", 0, frames[5].store_timestamp) <= 5
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []
        assert [finding async for finding in verify_log(disk, on_progress=lambda _bytes: None)] == []
        bare = {path: bytes(file.current) for path, file in disk.files.items() if not path.startswith(("config/", "consumequeue/"))}
        again = await StoreRig.open(CrashDisk(bare))
        assert await again.read_all(("t", 0)) == frames
        await again.close()

    run(scenario)
