"""New data folders from a repository: what is in them, as of which time, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.config.cluster_file import ClusterConfig
from broker.process.identity import FolderIdentity, open_identity, write_identity
from dledger.core.types import EntryKind
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.hard_state import newest_of, read_copies
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import ConfigurationFile
from dledger.runtime.env import Disk
from dledger.runtime.real_disk import RealDisk
from dledger.runtime.real_env import real_environment
from dledger_cli.app import app
from dledger_offline.backup import node_folder
from dledger_offline.backup.manifest import Manifest
from dledger_offline.backup.node_folder import NodeFolder, check_empty, check_settings
from dledger_offline.backup.point import Point, backup_for, end_of, point_at
from dledger_offline.backup.repository import Repository
from dledger_offline.files.check import verify
from dledger_offline.recovery.new_members import terms_ahead
from dledger_wire.errors import ConfigError, DataDirectoryError, InvalidArgumentError, StorageDamagedError, StorageFullError
from tests.grpc_network import GrpcNetwork
from tests.unit.cli.backup.backup_rig import GROUP, NEW_FILE, Source, at_ms, back_up, entries_of, local, new_cluster, restore, source

FIRST, SECOND = 60, 50  # commands before the first backup, and between it and the second


@asynccontextmanager
async def two_backups(folder: Path) -> AsyncIterator[tuple[Repository, list[Manifest], Source]]:
    repository = local(folder / "repository")
    async with source(folder / "old") as replica:
        await replica.append(FIRST)
        first, _ = await back_up(repository, replica.replica)
        await replica.append(SECOND)
        second, _ = await back_up(repository, replica.replica)
        yield repository, [first, second], replica


def texts(entries: list[RawEntry]) -> list[int]:
    """The numbers of the commands in entries."""
    bodies = [entry.body_bytes() for entry in entries if entry.kind is EntryKind.NORMAL]
    records = [json.loads(body[16:].rstrip(b"\0")) for body in bodies]
    return [int(record["text"].split()[0]) for record in records if record["kind"] == "note"]


async def promise_of(folder: Path) -> tuple[int, str | None]:
    newest = newest_of(await read_copies(await RealDisk(str(folder)).open("hardstate")))
    assert newest is not None
    return newest.state.term, newest.state.vote


async def configurations_of(folder: Path) -> list[int]:
    """The entries of the configurations that a start goes by: what older ones name is the old cluster, which may still run."""
    log, _ = await Log.open(RealDisk(str(folder)), LogConfig(segment_bytes=64 << 10, fill_window_bytes=0))
    try:
        found = await ConfigurationFile(RealDisk(str(folder))).find_all(log, 0)
    finally:
        await log.close()
    members = {node.address for node in new_cluster().groups[0].nodes}
    assert all(set(configuration.addresses.values()) == members for _, configuration in found)
    return [index for index, _ in found]


def test_all_nodes_get_one_log_and_are_a_cluster_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, (_, second), replica):
            old = await replica.log.read(1, 1 << 20, replica.log.last.index)
            point = end_of(second.groups[GROUP])
            for node_id in ("n0", "n1", "n2"):
                await restore(repository, second, point, node_id, tmp_path / node_id)
        found = {node_id: await entries_of(tmp_path / node_id) for node_id in ("n0", "n1", "n2")}
        logs = [b"".join(b"".join(map(bytes, entry.buffers)) for entry in entries) for entries in found.values()]
        assert logs[0] == logs[1] == logs[2]
        entries = found["n0"]
        assert [entry.chain_crc for entry in entries[: len(old)]] == [entry.chain_crc for entry in old]
        anew = entries[len(old) :]
        lineages = {json.loads((tmp_path / node_id / "lineage.json").read_text())["lineage"] for node_id in found}
        assert len(lineages) == 1
        term = 1 + terms_ahead(lineages.pop())
        assert [(entry.kind, entry.term) for entry in anew] == [(EntryKind.CONFIG, term), (EntryKind.NORMAL, term)]
        configuration = Configuration.decode(anew[0].body_bytes())
        assert configuration.addresses == {"n0": "127.0.0.1:20001", "n1": "127.0.0.1:20002", "n2": "127.0.0.1:20003"}
        for node_id in found:
            identity = json.loads((tmp_path / node_id / "identity.json").read_text())
            assert (identity["cluster"], identity["node_id"]) == ("new", node_id)
            assert identity["store_id"] == configuration.membership.store_of(configuration.members[int(node_id[1])])
            assert await promise_of(tmp_path / node_id) == (term, None)
            assert [finding async for finding in verify(str(tmp_path / node_id), lambda _bytes: None)] == []
        assert json.loads((tmp_path / "n1" / "config" / "topics.json").read_text()) == {"count": FIRST + SECOND}
        assert len({dict(configuration.membership.stores)[member] for member in configuration.members}) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [FIRST - 1, FIRST, FIRST + 1, FIRST + 20, FIRST + SECOND - 2, FIRST + SECOND - 1])
def test_a_time_behind_the_first_backup_is_replayed_from_its_state(tmp_path: Path, number: int) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, manifests, _):
            point = point_at(repository, manifests, manifests[1], GROUP, at_ms(number) + 999)
        assert point.stored_ms == at_ms(number)
        is_end = number == FIRST + SECOND - 1
        assert point.state == manifests[is_end].groups[GROUP]
        await restore(repository, manifests[1], point, "n0", tmp_path / "n0")
        assert texts(await entries_of(tmp_path / "n0")) == list(range(number + 1))
        assert await configurations_of(tmp_path / "n0") == [point.index + 1]
        assert json.loads((tmp_path / "n0" / "config" / "applied.json").read_text().splitlines()[1])["index"] == point.state.last_index

    asyncio.run(scenario())


def test_a_time_before_the_first_backup_replays_a_log_that_has_its_beginning(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, manifests, _):
            point = point_at(repository, manifests, manifests[0], GROUP, at_ms(5))
        assert (point.state, point.stored_ms) == (None, at_ms(5))
        await restore(repository, manifests[0], point, "n0", tmp_path / "n0")
        assert texts(await entries_of(tmp_path / "n0")) == list(range(6))
        assert not (tmp_path / "n0" / "config").exists()
        assert await configurations_of(tmp_path / "n0") == [point.index + 1]
        with pytest.raises(InvalidArgumentError, match=r"the earliest it can give is 2023-11-14T22:13:20.000\+00:00"):
            point_at(repository, manifests, manifests[0], GROUP, at_ms(0) - 1_000_000)

    asyncio.run(scenario())


def test_a_log_without_its_beginning_gives_what_its_states_give(tmp_path: Path) -> None:
    async def scenario() -> None:
        repository = local(tmp_path / "repository")
        async with source(tmp_path / "old") as replica:
            await replica.append(FIRST)
            await replica.log.trim(20)
            assert replica.log.first_index > 1
            first, _ = await back_up(repository, replica.replica)
            await replica.append(SECOND)
            await replica.log.trim(first.groups[GROUP].last_index)
            second, _ = await back_up(repository, replica.replica)
        manifests = [first, second]
        assert second.groups[GROUP].first_index > first.groups[GROUP].first_index
        with pytest.raises(InvalidArgumentError, match=rf"backup {first.id} has nothing of that time; the earliest it can give is 2023-"):
            point_at(repository, manifests, first, GROUP, at_ms(FIRST - 2))
        point = point_at(repository, manifests, second, GROUP, at_ms(FIRST + 3))
        assert point.state == first.groups[GROUP]
        await restore(repository, second, point, "n2", tmp_path / "n2")
        found = texts(await entries_of(tmp_path / "n2"))
        assert found[-1] == FIRST + 3
        assert found == list(range(found[0], FIRST + 4))
        assert [finding async for finding in verify(str(tmp_path / "n2"), lambda _bytes: None)] == []

    asyncio.run(scenario())


def test_a_later_time_than_the_newest_backup_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, manifests, _replica):
            assert backup_for(repository, manifests[:1], manifests[0].created_ms) == manifests[0]
            assert backup_for(repository, manifests, manifests[0].created_ms + 1) == manifests[1]
            began_early = manifests[0].model_copy(update={"created_ms": 0})
            assert backup_for(repository, [began_early, manifests[1]], at_ms(FIRST - 1)) == began_early, "it has something of that time"
            assert backup_for(repository, [began_early, manifests[1]], at_ms(FIRST)) == manifests[1], "the first may miss something"
            with pytest.raises(InvalidArgumentError, match=r"repository: the newest backup was begun at .*, nothing later can be restored"):
                backup_for(repository, manifests, manifests[1].created_ms + 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("ahead", [0, 1], ids=["the first", "both"])
def test_a_backup_that_a_clock_ahead_dated_is_not_taken_for_one_that_has_all_of_a_time(tmp_path: Path, ahead: int) -> None:
    """It says that it was begun later than it was; the one behind it has what it lacks."""

    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, manifests, replica):
            await replica.append(10)
            third, _ = await back_up(repository, replica.replica)
        wrong = at_ms(FIRST + SECOND + 5)
        found = [each.model_copy(update={"created_ms": wrong}) if number <= ahead else each for number, each in enumerate(manifests)]
        assert backup_for(repository, [*found, third], at_ms(FIRST + SECOND - 2)) == found[1]
        assert backup_for(repository, [*found, third], at_ms(FIRST - 2)) == found[0], "it has that time by its messages"
        assert backup_for(repository, [*found, third], wrong) == third
        assert backup_for(repository, found[:1], wrong) == found[0], "nothing shows it"

    asyncio.run(scenario())


def test_damage_in_the_repository_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, (_, second), _replica):
            part = list(second.groups[GROUP].parts())[2]
        file = tmp_path / "repository" / part.file
        whole = file.read_bytes()
        for damage in (whole[:-7], whole[:300] + bytes([whole[300] ^ 4]) + whole[301:], whole + b"x"):
            file.write_bytes(damage)
            with pytest.raises(StorageDamagedError, match=f"^{file} is damaged: "):
                await restore(repository, second, end_of(second.groups[GROUP]), "n0", tmp_path / "n0")
            assert not (tmp_path / "n0").exists()
        file.write_bytes(whole)
        await restore(repository, second, end_of(second.groups[GROUP]), "n0", tmp_path / "n0")
        with pytest.raises(DataDirectoryError, match="n0 is not empty; expected a new folder"):
            check_empty(tmp_path / "n0")

    asyncio.run(scenario())


def test_a_folder_in_use_is_refused_before_the_first_node_is_restored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path):
            pass

    asyncio.run(scenario())
    (tmp_path / "new.yaml").write_text(NEW_FILE)
    (tmp_path / "data" / "n2").mkdir(parents=True)
    (tmp_path / "data" / "n2" / "old").touch()
    options = ["--from", str(tmp_path / "repository"), "--config", str(tmp_path / "new.yaml"), "--data", str(tmp_path / "data")]
    refused = CliRunner().invoke(app, ["restore", *options])
    assert isinstance(refused.exception, DataDirectoryError)
    assert "n2 is not empty" in refused.exception.message
    assert [folder.name for folder in (tmp_path / "data").iterdir()] == ["n2"]


def test_an_interrupted_restore_is_no_data_folder(tmp_path: Path) -> None:
    """``identity.json`` is written last, and no node starts on a folder that has a log without it."""

    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, (_, second), _replica):
            point: Point = end_of(second.groups[GROUP])
        came = 0

        def stop_in_the_middle(size: int) -> None:
            nonlocal came
            came += size
            if came > 10_000:
                assert not (tmp_path / "n0" / "identity.json").exists()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await NodeFolder(repository, point, new_cluster().node("n0"), tmp_path / "n0", stop_in_the_middle).make(second.id)
        assert not (tmp_path / "n0").exists()

    asyncio.run(scenario())


def test_no_node_starts_on_what_a_killed_restore_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is killed; the folder as it is then is a copy of the folder at that moment."""
    moments = 0

    def killed_here() -> None:
        nonlocal moments
        shutil.copytree(tmp_path / "n0", tmp_path / "killed" / f"{moments}")
        moments += 1

    async def before_the_identity(disk: Disk, identity: FolderIdentity) -> None:
        killed_here()
        await write_identity(disk, identity)
        killed_here()

    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, (_, second), _replica):
            point, node = end_of(second.groups[GROUP]), new_cluster().node("n0")
        monkeypatch.setattr(node_folder, "write_identity", before_the_identity)
        await NodeFolder(repository, point, node, tmp_path / "n0", lambda _size: killed_here()).make(second.id)
        assert moments > 10
        for number in range(moments):
            folder = tmp_path / "killed" / f"{number}"
            with pytest.raises(DataDirectoryError, match="a restore has not ended here"):
                await open_identity(real_environment(str(folder), GrpcNetwork()), "new", GROUP, "n0")
            assert "a restore has not ended here" in [finding.text async for finding in verify(str(folder), lambda _bytes: None)]
        assert (await open_identity(real_environment(str(tmp_path / "n0"), GrpcNetwork()), "new", GROUP, "n0")).cluster == "new"

    asyncio.run(scenario())


@pytest.mark.parametrize("ends_at", ["n0", "n1"])
def test_nodes_that_a_restore_did_not_come_to_do_not_start_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_at: str) -> None:
    """Two empty nodes of three would be a group of their own, without a message."""
    data, killed = tmp_path / "data", tmp_path / "killed"
    make = NodeFolder.make

    async def ended(folder: NodeFolder, backup_id: str) -> Configuration:
        if folder._folder.name != ends_at:
            return await make(folder, backup_id)
        shutil.copytree(data, killed)  # as a kill leaves it
        folder._progress = no_space
        return await make(folder, backup_id)

    def no_space(_size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def refuse_to_start(folder: Path, *names: str) -> None:
        for name in names:
            with pytest.raises(DataDirectoryError, match="a restore has not ended here"):
                await open_identity(real_environment(str(folder / name), GrpcNetwork()), "new", GROUP, name)

    async def scenario() -> None:
        async with two_backups(tmp_path):
            pass

    asyncio.run(scenario())
    (tmp_path / "new.yaml").write_text(NEW_FILE)
    monkeypatch.setattr(NodeFolder, "make", ended)
    options = ["--from", str(tmp_path / "repository"), "--config", str(tmp_path / "new.yaml"), "--data", str(data)]
    result = CliRunner().invoke(app, ["restore", *options])
    assert isinstance(result.exception, StorageFullError)
    if ends_at == "n0":
        asyncio.run(refuse_to_start(killed, "n0", "n1", "n2"))
        assert list(data.iterdir()) == [], "nothing is left"
        return
    asyncio.run(refuse_to_start(killed, "n1", "n2"))
    asyncio.run(refuse_to_start(data, "n1", "n2"))
    assert "n0 is restored, n1, n2 are not: remove the folders of these, and repeat the command with --backup " in result.stderr
    monkeypatch.undo()
    for name in ("n1", "n2"):
        shutil.rmtree(data / name)
        assert CliRunner().invoke(app, ["restore", *options, "--id", name]).exit_code == 0


@pytest.mark.parametrize("secured", [True, False])
def test_folders_of_a_secured_cluster_are_for_their_owner_alone(tmp_path: Path, secured: bool) -> None:
    """They have all messages and what checks passwords, and the nodes may be started much later."""

    async def scenario() -> None:
        async with two_backups(tmp_path):
            pass

    asyncio.run(scenario())
    (tmp_path / "new.yaml").write_text(NEW_FILE + ("security: {cluster_secret_file: secret}\n" if secured else ""))
    options = ["--from", str(tmp_path / "repository"), "--config", str(tmp_path / "new.yaml"), "--data", str(tmp_path / "data")]
    before = os.umask(0o022)
    try:
        assert CliRunner().invoke(app, ["restore", *options]).exit_code == 0
    finally:
        os.umask(before)
    made = list((tmp_path / "data").rglob("*"))
    assert len(made) > 30
    assert {stat.S_IMODE(each.stat().st_mode) & 0o077 for each in made} == ({0} if secured else {0o044, 0o055})


def test_nodes_of_different_points_are_different_folders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (repository, manifests, _):
            points = [end_of(manifest.groups[GROUP]) for manifest in manifests]
            for number, (manifest, point) in enumerate(zip(manifests, points, strict=True)):
                await restore(repository, manifest, point, "n0", tmp_path / f"{number}" / "n0")
        identities = [json.loads((tmp_path / f"{number}" / "n0" / "identity.json").read_text()) for number in range(2)]
        assert identities[0]["store_id"] != identities[1]["store_id"]
        lineages = {(tmp_path / f"{number}" / "n0" / "lineage.json").read_text() for number in range(2)}
        assert len(lineages) == 2

    asyncio.run(scenario())


def test_settings_that_could_not_read_the_state_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_backups(tmp_path) as (_, (_, second), _replica):
            point = end_of(second.groups[GROUP])
        other = ClusterConfig.parse(NEW_FILE.replace("store: {", "store: {mappedFileSizeConsumeQueue: 4000, "), "new.yaml")
        with pytest.raises(ConfigError, match="mappedFileSizeConsumeQueue: the backup has files of 6000000 bytes"):
            check_settings(other.node("n0"), point)
        text = NEW_FILE.replace("\nstore", "\n      - {id: n3, address: 127.0.0.1:20004, spare: true}\nstore")
        spare = ClusterConfig.parse(text, "new.yaml")
        with pytest.raises(ConfigError, match="node n3 is spare"):
            check_settings(spare.node("n3"), point)

    asyncio.run(scenario())
