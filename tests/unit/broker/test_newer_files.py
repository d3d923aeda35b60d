"""A file of a newer release is refused by name, whichever it is, and nothing of the folder is changed; ``dledger verify`` says the same.

The table is ``dledger_wire/formats.py``: a format without a case here fails.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.node import BrokerNode
from dledger.log.entry import chain_crc_of, parse_entries
from dledger.log.hard_state import COPY_BYTES
from dledger.runtime.real_env import real_environment
from dledger_offline.files import check
from dledger_wire.batches.batch import encode_command
from dledger_wire.checksum import crc32c
from dledger_wire.errors import DataDirectoryError
from dledger_wire.formats import ENTRY, FORMATS, HARD_STATE, KEY_INDEX, RECORD, SECTION, SNAPSHOT, Format, json_version
from dledger_wire.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from store.key_index.manifest import decode_marks
from tests.grpc_network import GrpcNetwork
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, run
from tests.unit.store.test_command_format import Raw
from tests.unit.store.test_store_recovery import fill, settled

__all__ = ["quiet"]

Folder = tuple[ClusterConfig, dict[str, bytes], str]


@pytest.fixture(scope="module")
def stopped() -> Folder:
    """The cluster file, and the folder of a node that stopped in order, file by file."""
    found: dict[str, bytes] = {}
    rig = Rig(7)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 20)
        await settled(rig)
        node_id = rig.followers[0]
        await rig.cluster.stop(node_id)
        found.update({path: content.current.whole() for path, content in rig.cluster.hosts[node_id].disk.names.items()})
        found["id"] = node_id.encode()

    rig.run(scenario)
    node_id = found.pop("id").decode()
    return rig.cluster.config, found, node_id


def newer_json(files: dict[str, bytes], path: str, version: int) -> None:
    """As a newer release would write it: the number first, whatever follows."""
    fields = json.loads(files[path]) if path in files else {}
    key = "format_version" if "format_version" in fields else "format"
    files[path] = json.dumps({key: version, **{name: value for name, value in fields.items() if name != key}}, indent=1).encode()


def newer_hard_state(files: dict[str, bytes], path: str, version: int) -> None:
    data = bytearray(files[path])
    for at in range(0, len(data), COPY_BYTES):
        if any(data[at : at + COPY_BYTES]):
            struct.pack_into(">H", data, at + 4, version)
    files[path] = bytes(data)


def newer_snapshot(files: dict[str, bytes], path: str, version: int) -> None:
    body = files[path].partition(b"\n")[2].removesuffix(b"\n")
    body = re.sub(rb'\A\{"format":\d+', b'{"format":%d' % version, body)
    files[path] = json.dumps({"crc32c": f"{crc32c(body):08x}"}).encode() + b"\n" + body + b"\n"


def newer_section(files: dict[str, bytes], _folder: str, version: int) -> None:
    path = "config/security.json"
    old = crc32c(files[path])
    files[path] = files[path].replace(b'"format":1', b'"format":%d' % version)
    snapshot = files[SNAPSHOT.file].replace(b'"security.json":%d' % old, b'"security.json":%d' % crc32c(files[path]))
    assert snapshot != files[SNAPSHOT.file]
    files[SNAPSHOT.file] = snapshot
    newer_snapshot(files, SNAPSHOT.file, 1)


def newer_entry(files: dict[str, bytes], folder: str, version: int) -> None:
    """The last entry becomes one of a kind that does not exist yet, with the checksums that it would have."""
    path = max(name for name in files if name.startswith(folder))
    data = bytearray(files[path])
    end = len(data.rstrip(b"\0"))
    entries = parse_entries(data[: end + -end % 8], check_body=False)
    before, last = entries[-2], entries[-1]
    at = sum(entry.size_bytes for entry in entries[:-1])
    struct.pack_into(">i", data, at, version)
    struct.pack_into(">I", data, at + 36, chain_crc_of(before.chain_crc, data[at : at + ENTRY_HEADER_SIZE]))
    files[path] = bytes(data)
    units = f"index-units/{path.removeprefix(folder)}"
    unit = bytearray(files[units])
    struct.pack_into(">i", unit, (len(entries) - 1) * INDEX_UNIT_SIZE, version)
    files[units] = bytes(unit)
    assert last.end_pos == before.end_pos + last.size_bytes


SPECIAL: dict[Format, tuple[Callable[[dict[str, bytes], str, int], None], str]] = {
    HARD_STATE: (newer_hard_state, HARD_STATE.file),
    SNAPSHOT: (newer_snapshot, SNAPSHOT.file),
    SECTION: (newer_section, r"config/security\.json"),
    ENTRY: (newer_entry, r"commitlog/\d{20}: entry \d+ at byte \d+"),
}
CASES = [known for known in FORMATS if known not in (RECORD, KEY_INDEX)]


async def start(config: ClusterConfig, node_id: str, folder: Path) -> None:
    await BrokerNode(config.node(node_id), real_environment(str(folder), GrpcNetwork())).open()


async def verify(folder: Path) -> list[str]:
    return [str(finding) async for finding in check.verify(str(folder), lambda _bytes: None)]


@pytest.mark.parametrize("known", CASES, ids=lambda known: known.name.replace(" ", "-"))
def test_a_file_of_a_newer_format_is_refused_by_name(known: Format, stopped: Folder, tmp_path: Path) -> None:
    config, found, node_id = stopped
    files = dict(found)
    change, named = SPECIAL.get(known, (newer_json, re.escape(known.file)))
    change(files, known.file, known.current + 1)
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    text = rf"{re.escape(str(tmp_path))}/{named}: format {known.current + 1}; this build reads {known.reads}: start a newer release"
    with pytest.raises(DataDirectoryError, match=text):
        asyncio.run(verify(tmp_path))
    with pytest.raises(DataDirectoryError, match=text):
        asyncio.run(start(config, node_id, tmp_path))
    changed = {path for path, data in files.items() if (tmp_path / path).read_bytes().rstrip(b"\0") != data.rstrip(b"\0")}
    assert changed <= {"lives.json"}, "a start that fails has counted itself, and nothing else"


def test_the_folder_of_a_stopped_node_is_one_that_verify_takes(stopped: Folder, tmp_path: Path) -> None:
    for path, data in stopped[1].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert asyncio.run(verify(tmp_path)) == []


def test_a_record_of_a_newer_version_stops_the_replica() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        rig.promise()
        record = bytearray(encode_command("void", {}))
        record[8] = RECORD.current + 1
        rig.append(Raw(bytes(record)))
        text = r"entry 1 of the log, at byte 48: record: format 2; this build reads 1: start a newer release"
        with pytest.raises(DataDirectoryError, match=text):
            await rig.commit()
        await rig.log.close()

    run(scenario)


def test_newer_marks_of_the_key_index_are_none_so_that_it_is_rebuilt(stopped: Folder) -> None:
    files = dict(stopped[1])
    assert decode_marks(files[KEY_INDEX.file]) is not None
    newer_snapshot(files, KEY_INDEX.file, KEY_INDEX.current + 1)
    assert decode_marks(files[KEY_INDEX.file]) is None


def test_a_damaged_version_in_a_snapshot_is_damage_and_no_newer_release(stopped: Folder, tmp_path: Path) -> None:
    files = dict(stopped[1])
    files[SNAPSHOT.file] = files[SNAPSHOT.file].replace(b'{"format":1', b'{"format":9')
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert "bad snapshot: not what was written" in asyncio.run(verify(tmp_path))[0]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (b'{"format": 2}', 2),
        (b'{\n "format_version": 1,\n "cluster": "c"\n}', 1),
        (b'{"crc32c": "00ff"}\n{"format":3,"index":1}\n', 3),
        (b'{"stores": {}, "format": 4}', None),
        (b'{"format": "x"}', None),
        (b"", None),
    ],
)
def test_the_version_of_a_json_file_is_its_first_field(text: bytes, version: int | None) -> None:
    assert json_version(text) == version
