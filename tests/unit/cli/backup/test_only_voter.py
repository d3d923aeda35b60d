"""A survivor's folder becomes that of the only voter: what is written, what may come in between, and folders that are refused."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from dledger.core.types import EntryKind
from dledger.log.entry import RawEntry
from dledger.membership.configuration import Configuration
from dledger_offline.backup.point import end_of
from dledger_offline.recovery import only_voter
from dledger_offline.recovery.new_members import terms_ahead
from dledger_offline.recovery.only_voter import check_others_wait, look_at, make_only_voter
from dledger_wire.errors import ConfigError, DataDirectoryError, DledgerError, StorageDamagedError
from tests.unit.cli.backup.backup_rig import GROUP, NEW_FILE, back_up, entries_of, local, new_cluster, restore, source


async def made_folder(tmp_path: Path, node_id: str = "n0") -> Path:
    """The folder of a node of a group of three; n0, n1 and n2 have the same log."""
    repository, folder = local(tmp_path / "repository"), tmp_path / node_id
    async with source(tmp_path / "old") as replica:
        await replica.append(40)
        manifest, _ = await back_up(repository, replica.replica)
    await restore(repository, manifest, end_of(manifest.groups[GROUP]), node_id, folder)
    return folder


def store_id_of(folder: Path) -> str:
    return str(json.loads((folder / "identity.json").read_text())["store_id"])


def lineage_of(folder: Path) -> str:
    return str(json.loads((folder / "lineage.json").read_text())["lineage"])


def chains(entries: list[RawEntry]) -> list[int]:
    return [entry.chain_crc for entry in entries]


def test_the_log_stays_and_a_configuration_with_one_voter_comes_behind_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = await made_folder(tmp_path)
        before, old_store, old_lineage = await entries_of(folder), store_id_of(folder), lineage_of(folder)
        (folder / "unsynced.json").write_text("{}")
        found = await look_at(new_cluster(), "n0", folder)
        assert (found.last.index, found.last.term, found.others) == (before[-1].index, before[-1].term, ("n1", "n2"))
        last = await make_only_voter(found)
        entries = await entries_of(folder)
        assert chains(entries[: len(before)]) == chains(before)
        anew = entries[len(before) :]
        term = before[-1].term + terms_ahead(lineage_of(folder))
        assert lineage_of(folder) != old_lineage
        assert [(entry.kind, entry.term) for entry in anew] == [(EntryKind.CONFIG, term), (EntryKind.NORMAL, term)]
        assert (last.index, last.term) == (anew[-1].index, term)
        configuration = Configuration.decode(anew[0].body_bytes())
        assert (configuration.members, configuration.addresses) == (("n0",), {"n0": "127.0.0.1:20001"})
        assert old_store != store_id_of(folder) == configuration.membership.store_of(configuration.members[0])
        assert not (folder / "unsynced.json").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["begin_lineage", "append_members", "write_identity"])
def test_one_that_was_interrupted_is_given_again(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class PowerLostError(Exception):
        pass

    async def lost(*_arguments: object, **_named: object) -> None:
        raise PowerLostError

    async def scenario() -> None:
        folder = await made_folder(tmp_path)
        found = await look_at(new_cluster(), "n0", folder)
        with monkeypatch.context() as patch:
            patch.setattr(only_voter, step, lost)
            with pytest.raises(PowerLostError):
                await make_only_voter(found)
        found = await look_at(new_cluster(), "n0", folder)
        await make_only_voter(found)
        newest = [entry for entry in await entries_of(folder) if entry.kind is EntryKind.CONFIG][-1]
        membership = Configuration.decode(newest.body_bytes()).membership
        assert membership.voters == ("n0",)
        assert membership.store_of(membership.voters[0]) == store_id_of(folder)

    asyncio.run(scenario())


def test_a_file_with_which_empty_nodes_would_begin_a_group_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = await made_folder(tmp_path)
        found = await look_at(new_cluster(), "n0", folder)
        with pytest.raises(ConfigError, match=r"new.yaml: with empty folders n1, n2 would begin a replica group g0 of their own: give"):
            check_others_wait(new_cluster(), found)
        marked = NEW_FILE.replace("20002", "20002, spare: true").replace("20003", "20003, spare: true")
        check_others_wait(ClusterConfig.parse(marked, "new.yaml"), found)
        elsewhere = ClusterConfig.parse(NEW_FILE.replace("name: g0", "name: g1"), "new.yaml")
        check_others_wait(elsewhere, found)  # as of a spare node whose group the file does not name

    asyncio.run(scenario())


def test_a_survivor_among_the_spare_nodes_is_to_be_listed_as_a_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = await made_folder(tmp_path)
        found = await look_at(new_cluster(), "n0", folder)
        text = NEW_FILE.replace("id: n0, address: 127.0.0.1:20001", "id: n9, address: 127.0.0.1:20009")
        spares = ClusterConfig.parse(text + 'spares: [{id: n0, address: "127.0.0.1:20001"}]\n', "new.yaml")
        with pytest.raises(ConfigError, match=r"list n0 among its nodes, not in spares, give every node of it but n0 spare: true"):
            check_others_wait(spares, found)

    asyncio.run(scenario())


def refusal(tmp_path: Path, node_id: str, folder: Path) -> DledgerError:
    with pytest.raises(DledgerError) as refused:
        asyncio.run(look_at(new_cluster(), node_id, folder))
    return refused.value


def test_a_folder_that_is_not_the_nodes_is_refused(tmp_path: Path) -> None:
    folder = asyncio.run(made_folder(tmp_path))
    (tmp_path / "n1").mkdir()
    for node_id, place, what in (
        ("n2", tmp_path / "n2", "no such folder"),
        ("n1", tmp_path / "n1", "is not the folder of a node"),
        ("n1", folder, "belongs to node n0"),
    ):
        error = refusal(tmp_path, node_id, place)
        assert isinstance(error, DataDirectoryError)
        assert what in error.message
    assert isinstance(refusal(tmp_path, "n9", folder), ConfigError)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_folder_is_refused_as_the_node_could_not_read_it_any_more(tmp_path: Path) -> None:
    folder = asyncio.run(made_folder(tmp_path))
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    error = refusal(tmp_path, "n0", folder)
    assert "belongs to user nobody" in error.message


def test_damage_that_only_another_node_could_repair_is_refused(tmp_path: Path) -> None:
    folder = asyncio.run(made_folder(tmp_path))
    first = min((folder / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    data[200] ^= 1
    first.write_bytes(data)
    error = refusal(tmp_path, "n0", folder)
    assert isinstance(error, StorageDamagedError)
    assert "no other node can repair it" in error.message
