"""What stands on a disk: the files of a data folder as whoever opens it finds them, damaged, or forged with a right checksum."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

from broker.membership.spare_binding import read_binding
from broker.process.identity import open_identity
from dledger.core.types import EntryKind, HardState, NodeId
from dledger.log.entry import encode_entry
from dledger.log.hard_state import COPY_BYTES, FILE_BYTES, HardStateFile, Record, decode_record, encode_record
from dledger.log.index_units import EntryPlace, encode_units
from dledger.log.log import Log
from dledger.log.start import LogStart, encode_log_start, load_log_start
from dledger.log.verify import verify_log
from dledger.membership.boot_history import record_boot
from dledger.membership.lineage import read_lineage
from dledger.membership.peer_stores import PeerStores
from dledger.replica.unsynced import UnsyncedMark
from dledger.runtime.env import Environment
from dledger.snapshot import install
from dledger_wire.checksum import crc32c
from dledger_wire.clock import Clock
from dledger_wire.rpc.transport import Network
from store.durability.snapshots import Snapshots
from store.key_index.manifest import read_marks
from tests.fuzz.target import JSON_WORDS, Target
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import TINY

_loop = asyncio.new_event_loop()
_ID = NodeId("n0")


def run(what: Coroutine[Any, Any, object]) -> None:
    _loop.run_until_complete(what)


def _env(disk: CrashDisk) -> Environment:
    return Environment(cast(Clock, None), random.Random(1), disk, cast(Network, None))


def _with_head(data: bytes) -> bytes:
    """A first line with the checksum of the rest, as snapshots and index marks have it."""
    return json.dumps({"crc32c": f"{crc32c(data):08x}"}).encode() + b"\n" + data + b"\n"


def _log_start(data: bytes) -> bytes:
    """With the checksum that its values have."""
    try:
        record = json.loads(data)
        record["crc32c"] = crc32c(json.dumps(record["start"], sort_keys=True).encode())
        return json.dumps(record).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return data


def _install(data: bytes) -> bytes:
    text = data.decode(errors="replace")
    return json.dumps({"install": text, "crc32c": crc32c(text.encode())}).encode()


# name of the file -> (how it gets its checksum, who reads it)
_READERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[CrashDisk], Coroutine[Any, Any, object]]]] = {
    "identity.json": (bytes, lambda disk: open_identity(_env(disk), "shop", "g0", "n0")),
    "spare.json": (bytes, read_binding),
    "lives.json": (bytes, lambda disk: record_boot(disk, random.Random(1), 0)),
    "lineage.json": (bytes, read_lineage),
    "peers.json": (bytes, lambda disk: PeerStores(disk, _ID).load()),
    "unsynced.json": (bytes, lambda disk: UnsyncedMark(_env(disk), [], sync_flush=False).load()),
    "logstart.json": (_log_start, load_log_start),
    "install.json": (_install, lambda disk: install.finish(disk, "configuration.json")),
    "config/applied.json": (_with_head, lambda disk: Snapshots(disk).load()),
    "config/keyIndex.json": (_with_head, read_marks),
}
_NAMES = list(_READERS)


def small_file(data: bytes) -> None:
    """One byte chooses the file."""
    if data:
        name = _NAMES[data[0] % len(_NAMES)]
        sealed, read = _READERS[name]
        run(read(CrashDisk({_PATHS.get(name, name): sealed(data[1:])})))


def hard_state(data: bytes) -> None:
    """Up to four blocks, the checksum of each made right when its record has room for it."""
    blocks = [data[at : at + COPY_BYTES] for at in range(0, min(len(data), FILE_BYTES), COPY_BYTES)]
    for block in blocks:
        record = decode_record(_mended(block))
        if record is not None:
            assert decode_record(encode_record(record)) == record
    content = b"".join(_mended(block).ljust(COPY_BYTES, b"\0") for block in blocks)
    run(HardStateFile.open(CrashDisk({"hardstate": content.ljust(FILE_BYTES, b"\0")}), log_is_empty=False))


def _mended(block: bytes) -> bytes:
    if len(block) < 28:
        return block
    length = struct.unpack_from(">H", block, 6)[0]
    end = 24 + (0 if length == 0xFFFF else length)
    return block[:end] + struct.pack(">I", crc32c(block[:end])) + block[end + 4 :]


def log_folder(data: bytes) -> None:
    """The newest segment and its index units behind a length: opened, read, and checked offline."""
    size = int.from_bytes(data[:2], "big")
    disk = _log_disk(data[2 : 2 + size], data[2 + size :])
    run(_opened_and_read(disk))


async def _opened_and_read(disk: CrashDisk) -> None:
    findings = [finding async for finding in verify_log(disk, piece_bytes=256)]
    assert all(str(finding) for finding in findings)
    log, _report = await Log.open(disk, TINY)
    try:
        index = log.first_index
        while index <= log.last.index:
            index = (await log.read(index, 600, log.last.index))[-1].index + 1
    finally:
        await log.close()


def _log_disk(segment: bytes, units: bytes) -> CrashDisk:
    promise = encode_record(Record(1, HardState(9))).ljust(COPY_BYTES, b"\0")
    name = "0" * 20
    return CrashDisk({"hardstate": bytes(2 * COPY_BYTES) + 2 * promise, f"commitlog/{name}": segment, f"index-units/{name}": units})


def _good_log() -> bytes:
    pos, chain, entries, places = 0, 0, [], []
    for index in range(1, 6):
        entry = encode_entry(index, 1, EntryKind.NORMAL, pos, chain, (b"entry %d" % index * index,))
        entries.append(b"".join(entry.buffers))
        places.append(EntryPlace(index, 1, pos, entry.size_bytes, EntryKind.NORMAL))
        pos, chain = entry.end_pos, entry.chain_crc
    segment = b"".join(entries).ljust(TINY.segment_bytes, b"\0")
    return len(segment).to_bytes(2, "big") + segment + encode_units(places)


def _small(name: str, content: object) -> bytes:
    return bytes([_NAMES.index(name)]) + (content if isinstance(content, bytes) else json.dumps(content).encode())


def _good_small() -> Iterator[bytes]:
    identity = {
        "format_version": 1,
        "cluster": "shop",
        "group": "g0",
        "node_id": "n0",
        "store_id": "0" * 32,
        "feature_level": 0,
        "release": "",
    }
    applied = {"format": 1, "index": 1, "term": 1, "endPos": 9, "storeTimestamp": 1, "messages": 0, "files": {}, "queueFileUnits": 9}
    yield _small("identity.json", identity)
    yield _small("spare.json", {"group": "g0", "voters": [["n0", "10.0.0.1:9"]]})
    yield _small("lives.json", {"starts": 2, "drawn": [1, 2], "secret": "0" * 32})
    yield _small("lineage.json", {"lineage": "0" * 32, "term": 65536})
    yield _small("peers.json", {"stores": {"n1": "0" * 32}, "lives": {"n1": [1, 2]}, "keys": {"n1": "0" * 32}})
    yield _small("unsynced.json", {"boot": "", "suspect": False})
    yield _small("logstart.json", encode_log_start(LogStart(7, 4096, 1, 5)))
    start = {"first_index": 1, "first_pos": 0, "before_term": 0, "before_chain_crc": 0}
    yield _small("install.json", {"start": start, "segments": [0], "files": [["config/a.json", 0], ["b", -1]], "configuration": ""})
    yield _small("config/applied.json", applied | {"queues": [["t", 0, 0, 1, 0, 9, []]], "producers": []})
    mark = {name: 0 for name in ("first_index", "begin_pos", "skip", "count", "used_slots", "begin_ms", "end_ms", "end_pos", "crc")}
    marks = {"format": 1, "slots": 11, "entries": 40, "index": 1, "term": 1, "storeTimestamp": 1, "resume": [0, 0]}
    yield _small("config/keyIndex.json", marks | {"files": [mark | {"name": "20260101000000000"}]})


_PATHS = {"install.json": install.INSTALL_PATH}  # beside those that stand where they are called
_WORDS = [*JSON_WORDS, b"../"]

TARGETS = [
    Target("small-file", small_file, list(_good_small()), _WORDS),
    Target(
        "hard-state",
        hard_state,
        [encode_record(Record(1, HardState(3, NodeId("n1")))).ljust(COPY_BYTES, b"\0") * 4],
        [b"DLHS", b"\xff\xff"],
    ),
    Target("log-folder", log_folder, [_good_log()], [b"\xff\xff\xff\xff", bytes(8), b"\x7f\xff\xff\xff"]),
]
