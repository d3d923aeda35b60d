"""Which backups ``--keep`` removes, and what damaged manifests do to that, to the list and to the choice of a backup."""

from __future__ import annotations

from pathlib import Path

from dledger_cli.backup.manifest import GroupBackup, Manifest, Part, SegmentCopy
from dledger_cli.backup.repository import Repository
from dledger_cli.backup.retention import keep_newest
from tests.unit.cli.backup.backup_rig import CLUSTER, local


def id_of(number: int) -> str:
    return f"20260101T00000000{number}Z-00000000"


def group_backup(name: str, number: int) -> GroupBackup:
    """One part that it shares with nobody."""
    file = f"{name}/log/{0:020d}-{9:020d}-{id_of(number)}"
    part = Part(file=file, pos=0, size_bytes=9, sha256="0" * 64, last_index=number, last_term=1, chain_crc=7)
    return GroupBackup(
        node="n0",
        first_index=1,
        first_pos=0,
        before_term=0,
        before_chain_crc=0,
        last_index=number,
        last_term=1,
        stored_ms=number * 1000,
        configuration="",
        configuration_index=0,
        queue_file_units=1,
        segments=(SegmentCopy(start_pos=0, first_index=1, parts=(part,)),),
        state=(),
    )


def repository_of(folder: Path, *backups: str) -> Repository:
    """One backup a word, oldest first; each letter is a replica group."""
    repository = local(folder)
    repository.make(CLUSTER)
    for number, word in enumerate(backups, 1):
        groups = {name: group_backup(name, number) for name in word}
        for file in (file for group in groups.values() for part in group.parts() for file in [part.file]):
            with repository.create(file) as out:
                out.write(b"123456789")
        created_ms = number * 1000
        repository.add_whole(Manifest(id=id_of(number), cluster=CLUSTER, software="1", created_ms=created_ms, groups=groups))
    return repository


def ids(*numbers: int) -> list[str]:
    return [id_of(number) for number in numbers]


def test_the_newest_of_each_replica_group_stay(tmp_path: Path) -> None:
    repository = repository_of(tmp_path, "ab", "ab", "b", "a", "a", "a")
    assert keep_newest(repository, 2) == ids(1, 4)
    assert repository.ids() == ids(2, 3, 5, 6)
    assert keep_newest(repository, 1) == ids(2, 5), "of b there is a newer one, too"
    assert set(repository.sizes()) == set().union(*(repository.manifest(each).files() for each in ids(3, 6)))
    assert keep_newest(repository, 1) == []
