"""Which backups ``--keep`` removes, and what damaged manifests do to that, to the list and to the choice of a backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_offline.backup.manifest import GroupBackup, Manifest, Part, SegmentCopy
from dledger_offline.backup.repository import Repository
from dledger_offline.backup.restore import _manifest, _readable
from dledger_offline.backup.retention import keep_newest
from dledger_offline.backup.take import new_id
from dledger_wire.errors import InvalidArgumentError
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


def damage(folder: Path, number: int) -> Path:
    manifest = folder / "backups" / f"{id_of(number)}.json"
    manifest.write_bytes(manifest.read_bytes()[:-9] + b"damaged}\n")
    return manifest


def test_no_data_file_goes_while_it_is_not_known_what_a_kept_backup_needs(tmp_path: Path) -> None:
    repository = repository_of(tmp_path, "ab", "ab", "ab", "ab")
    damage(tmp_path, 3)
    told: list[str] = []
    assert keep_newest(repository, 1, lambda error: told.append(error.message)) == ids(1, 2, 3), "of each group there is a newer one"
    assert told == []
    repository = repository_of(tmp_path / "other", "ab", "ab", "ab", "a")
    manifest, files = damage(tmp_path / "other", 3), repository.sizes()
    assert keep_newest(repository, 1, lambda error: told.append(error.message)) == ids(1)
    assert told == [f"{manifest} is damaged: its checksum does not match"]
    assert repository.ids() == ids(2, 3, 4), "it does not count, so 2 has the newest of b"
    assert repository.sizes() == files
    manifest.unlink()
    assert keep_newest(repository, 1) == []
    assert set(repository.sizes()) == set().union(*(repository.manifest(each).files() for each in ids(2, 4)))


def test_damaged_backups_alone_are_not_removed(tmp_path: Path) -> None:
    repository = repository_of(tmp_path, "a", "a")
    for number in (1, 2):
        damage(tmp_path, number)
    assert keep_newest(repository, 1) == []


def test_the_list_shows_which_backup_is_damaged(tmp_path: Path) -> None:
    repository_of(tmp_path, "a", "ab", "a")
    text = f"{damage(tmp_path, 2)} is damaged: its checksum does not match"
    shown = CliRunner().invoke(app, ["backup", "--to", str(tmp_path), "--list"])
    assert shown.exit_code == 0
    assert [line.split()[:3:2] for line in shown.stdout.splitlines()[1:]] == [[id_of(1), "a"], [id_of(2), "-"], [id_of(3), "a"]]
    assert f"{id_of(2)}  damaged" in shown.stdout
    assert text in shown.output
    found = json.loads(CliRunner().invoke(app, ["backup", "--to", str(tmp_path), "--list", "--json"]).stdout)
    assert [row["id"] for row in found["backups"]] == ids(1, 3)
    assert found["damaged"] == [{"id": id_of(2), "error": text}]


def test_a_time_is_restored_without_the_damaged_backup(tmp_path: Path) -> None:
    repository = repository_of(tmp_path, "a", "a", "a")
    manifest = damage(tmp_path, 2)
    skipped: list[str] = []
    readable = _readable(repository, skipped.append)
    assert skipped == [f"skipped: {manifest} is damaged: its checksum does not match"]
    assert [each.id for each in readable] == ids(1, 3)
    assert _manifest(repository, readable, {"a"}, "", 2000).id == id_of(3)


def test_a_clock_that_was_ahead_does_not_make_an_old_backup_the_newest(tmp_path: Path) -> None:
    """Else ``--keep 1`` would remove each new backup, and a restore would take the old one."""
    ahead = "20990101T000000999Z-00000000"
    assert id_of(1) < new_id([]) < ahead
    behind = new_id([id_of(1), ahead, id_of(2)])
    assert behind.startswith("20990101T000001000Z-")
    repository = repository_of(tmp_path, "a")
    for backup_id, number in ((ahead, 2), (behind, 3)):
        groups = {"a": group_backup("a", number)}
        for part in groups["a"].parts():
            with repository.create(part.file) as out:
                out.write(b"123456789")
        # What the clock said of each: the one in 2099 was begun when the one behind it was, at the latest.
        created_ms = 4_070_908_800_999 if backup_id == ahead else 9_000
        repository.add_whole(Manifest(id=backup_id, cluster=CLUSTER, software="1", created_ms=created_ms, groups=groups))
    readable = _readable(repository)
    assert [each.created_ms for each in readable] == [1000, 9000, 9000]
    assert _manifest(repository, readable, {"a"}, "", 8000).id == ahead
    with pytest.raises(InvalidArgumentError, match="the newest backup was begun at 1970-01-01T00:00:09"):
        _manifest(repository, readable, {"a"}, "", 9001)
    with pytest.raises(InvalidArgumentError, match=f"backup {ahead} was begun at 1970-01-01T00:00:09"):
        _manifest(repository, readable, {"a"}, ahead, 9001)
    assert keep_newest(repository, 1) == [id_of(1), ahead]
    assert repository.ids() == [behind]


def test_a_backup_of_one_group_is_not_taken_for_one_of_all(tmp_path: Path) -> None:
    repository = repository_of(tmp_path, "ab", "ab", "a")
    readable, all_groups = _readable(repository), {"a", "b", "new"}
    with pytest.raises(InvalidArgumentError) as refused:
        _manifest(repository, [], all_groups, "", 0)
    text = f"the newest backup {id_of(3)} has no replica group b, backup {id_of(2)} has it; expected --backup with the one to restore"
    assert refused.value.message == f"{tmp_path}: {text} (dledger backup --list)"
    assert _manifest(repository, [], {"a", "new"}, "", 0).id == id_of(3), "of a group without any backup nothing is missing"
    assert _manifest(repository, [], all_groups, id_of(3), 0).id == id_of(3), "it is what was asked for"
    assert _manifest(repository, readable, all_groups, "", 1500).id == id_of(2)
    with pytest.raises(InvalidArgumentError, match="nothing later can be restored"):
        _manifest(repository, readable, all_groups, "", 2500)
    assert _manifest(repository, readable, {"a"}, "", 2500).id == id_of(3)
