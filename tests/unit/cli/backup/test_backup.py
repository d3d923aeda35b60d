"""Taking backups into a repository: what each adds, what interruptions leave, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dledger_client.admin.replica_comparison import Replica
from dledger_offline.backup.check import check_repository
from dledger_offline.backup.manifest import GroupBackup, Manifest, Part, SegmentCopy, StateFile, decode, encode
from dledger_offline.backup.point import end_of
from dledger_offline.backup.repository import Repository, open_repository
from dledger_offline.backup.retention import keep_newest
from dledger_wire.errors import ConfigError, InvalidArgumentError, NotReadyError, StorageDamagedError, StorageFailedError, StorageFullError
from tests.unit.cli.backup.backup_rig import CLUSTER, GROUP, back_up, local, restore, source

NO_RECEIVER = Replica(CLUSTER, GROUP, "n9", "127.0.0.1:9")


def damages(repository: Repository) -> list[str]:
    return [error.message for error in check_repository(repository)]


def test_the_next_backup_adds_only_what_is_new(tmp_path: Path) -> None:
    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "n0") as replica:
            await replica.append(100)
            first, taken = await back_up(repository, replica.replica)
            files = repository.sizes()
            group = first.groups[GROUP]
            assert (group.last_index, group.end_pos) == (replica.log.last.index, replica.log.end_pos)
            assert len(group.segments) > 5
            assert taken.added_bytes == group.size_bytes == sum(files.values())
            await replica.append(3)
            second, taken = await back_up(repository, replica.replica)
            log_bytes = second.groups[GROUP].end_pos - group.end_pos
            state_bytes = sum(file.size_bytes for file in second.groups[GROUP].state)
            assert taken.added_bytes <= log_bytes + state_bytes < 3000
            assert files.items() < repository.sizes().items(), "nothing is written over"
            third, taken = await back_up(repository, replica.replica)
            assert taken.added_bytes == sum(file.size_bytes for file in third.groups[GROUP].state), "no entry is new"
        assert [first.id, second.id, third.id] == repository.ids()
        assert damages(repository) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["memory://{name}", "file://{path}/{name}", "{path}/{name}"])
def test_any_storage_that_fsspec_knows_holds_backups(tmp_path: Path, url: str) -> None:
    async def scenario() -> None:
        repository = open_repository(url.format(path=tmp_path, name="repository"))
        async with source(tmp_path / "n0") as replica:
            await replica.append(30)
            made, _ = await back_up(repository, replica.replica)
        assert repository.manifest(made.id) == made
        assert damages(repository) == []

    asyncio.run(scenario())
    fsspec.filesystem("memory").rm("/repository", recursive=True) if url.startswith("memory") else None


def test_another_replica_goes_on_when_one_does_not_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "n0") as replica:
            await replica.append(30)
            made, _ = await back_up(repository, NO_RECEIVER, replica.replica)
            assert made.groups[GROUP].node == "n0"
            with pytest.raises(NotReadyError, match="replica group g0 was not backed up: n9: "):
                await back_up(repository, NO_RECEIVER)

    asyncio.run(scenario())


def test_a_replica_that_may_lack_something_gives_no_backup(tmp_path: Path) -> None:
    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "n0") as lagging, source(tmp_path / "n1") as replica:
            lagging.is_cut_off = True
            await replica.append(30)
            made, _ = await back_up(repository, lagging.replica, replica.replica)
            assert made.groups[GROUP].last_index == 31
            with pytest.raises(NotReadyError) as refused:
                await back_up(repository, lagging.replica)
            text = "it may lack what the group has committed (read index not confirmed and applied within 10.0 s)"
            assert refused.value.message == f"replica group g0 was not backed up: n0: {text}"
        assert repository.ids() == [made.id]

    asyncio.run(scenario())


def test_a_log_that_does_not_continue_the_backups_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "n0") as replica:
            await replica.append(30)
            await back_up(repository, replica.replica)
        async with source(tmp_path / "other") as other:
            await other.append(5)
            with pytest.raises(NotReadyError, match=r"it has applied entry 6, .* has entries up to 31"):
                await back_up(repository, other.replica)
            await other.append(40, size=200)
            with pytest.raises(NotReadyError, match=r"does not continue entry .* of the newest backup"):
                await back_up(repository, other.replica)
        assert len(repository.ids()) == 1
        with pytest.raises(InvalidArgumentError, match="has backups of cluster old; expected a folder of its own for shop"):
            repository.make("shop")

    asyncio.run(scenario())


def test_another_replica_whose_log_begins_earlier_adds_what_is_before(tmp_path: Path) -> None:
    """Each node deletes old segments by itself, and one that was installed by copy begins where its source did."""

    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "n0") as trimmed, source(tmp_path / "n1") as whole:
            for replica in (trimmed, whole):
                await replica.append(100)
            await trimmed.log.trim(50)
            first, _ = await back_up(repository, trimmed.replica)
            await whole.append(10)
            second, taken = await back_up(repository, whole.replica)
        assert (first.groups[GROUP].first_index, second.groups[GROUP].first_index) == (trimmed.log.first_index, 1)
        log_bytes = [sum(part.size_bytes for part in made.groups[GROUP].parts()) for made in (first, second)]
        state_bytes = sum(file.size_bytes for file in second.groups[GROUP].state)
        assert taken.added_bytes - state_bytes == log_bytes[1] - log_bytes[0], "what lies behind it is shared"
        assert damages(repository) == []
        await restore(repository, second, end_of(second.groups[GROUP]), "n0", tmp_path / "new")

    asyncio.run(scenario())


@pytest.mark.parametrize("left", [None, 0, 100])
@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_part_that_is_gone_or_cut_short_is_read_again(tmp_path: Path, number: int, left: int | None) -> None:
    async def scenario() -> None:
        repository, told = local(tmp_path / "repository"), list[str]()
        async with source(tmp_path / "n0") as replica:
            await replica.append(100)
            first, _ = await back_up(repository, replica.replica)
            part = list(first.groups[GROUP].parts())[number]
            file = tmp_path / "repository" / part.file
            file.unlink() if left is None else os.truncate(file, left)
            await replica.append(5)
            second, taken = await back_up(repository, replica.replica, told=told)
            await replica.append(5)
            await back_up(repository, replica.replica, told=told)
        assert told == [f"{file} is missing or cut short; it is read again, and backups that need that file stay damaged"]
        assert taken.added_bytes < first.groups[GROUP].size_bytes / 2, "the other parts are shared"
        assert part.file not in second.files()
        assert len(damages(repository)) == 1, "of the first backup"
        repository.remove_backup(first.id)
        assert damages(repository) == []

    asyncio.run(scenario())


def test_a_backup_whose_files_did_not_get_there_whole_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "n0") as replica:
            await replica.append(30)
            made, _ = await back_up(repository, replica.replica)
        part = next(made.groups[GROUP].parts())
        os.truncate(tmp_path / "repository" / part.file, 7)
        with pytest.raises(StorageFailedError, match=f"{part.file} has 7 bytes, expected {part.size_bytes}; start the backup again"):
            repository.add_whole(made)

    asyncio.run(scenario())


def test_what_has_no_manifest_is_no_backup_and_goes_with_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "repository"
        repository = local(folder)
        async with source(tmp_path / "n0") as replica:
            await replica.append(30)
            first, _ = await back_up(repository, replica.replica)
            young, old = "20990101T000000000Z-00000000", "20200101T000000000Z-00000000"
            for backup_id in (young, old):
                (folder / GROUP / "log" / f"{0:020d}-{9:020d}-{backup_id}").write_bytes(b"half")
                (folder / GROUP / "state" / backup_id).mkdir()
                (folder / GROUP / "state" / backup_id / "x").write_bytes(b"half")
            (folder / "backups" / f"{young}.json.part").write_bytes(b"half")
            assert repository.ids() == [first.id]
            await replica.append(5)
            second, _ = await back_up(repository, replica.replica)
            await back_up(repository, replica.replica)
        assert keep_newest(repository, 2) == [first.id]
        assert damages(repository) == []
        left = set(repository.sizes())
        assert second.files() < left, "parts that later backups share stay"
        assert {path for path in left if young in path}
        assert not {path for path in left if old in path}
        assert not [path for path in left if "state" in path and first.id in path]

    asyncio.run(scenario())


def test_damage_is_found_with_file_and_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "repository"
        repository = local(folder)
        async with source(tmp_path / "n0") as replica:
            await replica.append(60)
            first, _ = await back_up(repository, replica.replica)
            await replica.append(60)
            second, _ = await back_up(repository, replica.replica)
        parts = list(first.groups[GROUP].parts())
        flipped, gone, state = parts[1], parts[3], second.groups[GROUP].state[0]
        data = bytearray((folder / flipped.file).read_bytes())
        data[200] ^= 1
        (folder / flipped.file).write_bytes(data)
        (folder / gone.file).unlink()
        (folder / state.file).write_bytes(b"{}")
        manifest = folder / "backups" / f"{first.id}.json"
        manifest.write_bytes(manifest.read_bytes()[:-20])
        found = damages(repository)
        assert len(found) == 4
        assert f"{folder}/{state.file} is damaged: 2 bytes, expected {state.size_bytes}" in found
        assert any(text.startswith(f"{folder}/{flipped.file} is damaged: entry") for text in found)
        assert f"{folder}/{gone.file} is missing" in found
        assert found[-1] == f"{manifest} is damaged: its checksum does not match"
        with pytest.raises(StorageDamagedError, match="is damaged"):
            repository.manifest(first.id)

    asyncio.run(scenario())


class FullFileSystem(MemoryFileSystem):
    """Storage without room for more than a small file."""

    protocol = "full"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own way

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if "w" in mode and "/log/" in path:
            file.write = _no_room
        return file


def _no_room(_data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_storage_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        fsspec.register_implementation("full", FullFileSystem, clobber=True)
        repository = open_repository("full://repository")
        async with source(tmp_path / "n0") as replica:
            await replica.append(30)
            with pytest.raises(StorageFullError, match=r"^full://repository/g0/log/.*: no space left; this backup is not complete"):
                await back_up(repository, replica.replica)
        assert repository.ids() == []
        assert repository.sizes() == {}

    asyncio.run(scenario())


def test_storage_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing://x: Protocol not known: nothing; expected a folder, or a URL"):
        open_repository("nothing://x")
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=f"{tmp_path}/file/repository.json: Not a directory"):
        open_repository(str(tmp_path / "file")).make("x")


def test_the_bytes_of_a_manifest_stay_readable() -> None:
    """A manifest of format 1, as it was first written: docs/reference/formats.md."""
    golden = (Path(__file__).parent / "golden" / "manifest.json").read_bytes()
    manifest = decode(golden, "manifest.json")
    part = Part(file="g0/log/0-96-A", pos=0, size_bytes=96, sha256="0" * 64, last_index=2, last_term=1, chain_crc=7)
    configuration = '{"voters":["n0"],"learners":[],"addresses":{"n0":"127.0.0.1:1"},"stores":{}}'
    group = GroupBackup(
        node="n0",
        first_index=1,
        first_pos=0,
        before_term=0,
        before_chain_crc=0,
        last_index=2,
        last_term=1,
        stored_ms=1_700_000_000_000,
        configuration=configuration,
        configuration_index=1,
        queue_file_units=300_000,
        segments=(SegmentCopy(start_pos=0, first_index=1, parts=(part,)),),
        state=(StateFile(path="config/topics.json", file="g0/state/A/config/topics.json", size_bytes=2, sha256="1" * 64),),
    )
    made = Manifest(id="20260131T021500000Z-5f0c2a91", cluster="old", software="0.2.0", created_ms=1_700_000_000_001, groups={"g0": group})
    assert manifest == made
    assert encode(made) == golden


def test_a_manifest_of_a_newer_format_is_refused_by_its_number() -> None:
    text = b'{"format":2}'
    data = json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n" + text + b"\n"
    with pytest.raises(StorageDamagedError, match=r"^s3://b/backups/x.json has format 2, this program reads 1$"):
        decode(data, "s3://b/backups/x.json")
