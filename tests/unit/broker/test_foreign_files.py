"""Files in a data folder that are nobody's: left as they are, and describe_foreign by name."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from broker.api.diagnostics import FOLDERS
from broker.process.foreign_files import describe_foreign, foreign_files
from dledger.log.report import DamageKind
from dledger.runtime.real_disk import RealDisk
from dledger_offline.files.check import verify
from tests.sim.disk_content import Content, Pending
from tests.unit.client.sim_rig import Rig
from tests.unit.store.test_store_recovery import assert_whole, fill, settled

FOREIGN = [
    "notes.txt",
    "commitlog/backup.tar",
    "index-units/x",
    "config/README",
    "consumequeue/old.tgz",
    "consumequeue/t/0/copy of 00000000000000000000",
    "consumequeue/t/queue-zero/",
]


def put(names: dict[str, Content]) -> None:
    content = Content()
    content.do(Pending(0, b"mine"))
    names |= {(path + "file" if path.endswith("/") else path): content for path in FOREIGN}


def test_a_node_starts_beside_foreign_files_and_leaves_them(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 30)
        await settled(rig)
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        rig.cluster.kill(victim)
        for names in (host.disk.names, host.disk.durable_names):
            put(names)
        before = {path for path in host.disk.names if host.disk.names[path].current.size == 4}
        with caplog.at_level(logging.WARNING, "broker.node"):
            rig.cluster.start(victim)
            await settled(rig)
        assert caplog.text.count("not files of a node") == 1
        assert "left alone: notes.txt, commitlog/backup.tar, index-units/x, config/README, consumequeue/old.tgz and 1 more" in caplog.text
        await assert_whole(rig, victim, 30)
        await fill(rig, 30, 40)
        await settled(rig)
        await assert_whole(rig, victim, 40)
        assert before <= set(host.disk.names)

    Rig().run(scenario)


def test_a_folder_without_foreign_files_is_not_talked_about(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 10)
        await settled(rig)
        for node_id in list(rig.cluster.hosts):
            rig.cluster.kill(node_id)
            rig.cluster.start(node_id)
        await settled(rig)
        assert "not files of a node" not in caplog.text

    with caplog.at_level(logging.WARNING):
        Rig().run(scenario)


def test_verify_names_every_foreign_file_once(tmp_path: Path) -> None:
    for path in FOREIGN:
        file = tmp_path / (path + "file" if path.endswith("/") else path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"mine")

    async def check() -> None:
        disk = RealDisk(str(tmp_path))
        assert await foreign_files(disk, thorough=True) == FOREIGN
        assert await foreign_files(disk, thorough=False) == FOREIGN[:5] + FOREIGN[6:]
        assert describe_foreign(disk, ["a", "b"]).endswith("not files of a node, left alone: a, b")
        findings = [finding async for finding in verify(str(tmp_path), lambda _bytes: None)]
        remarks = [finding.file for finding in findings if finding.kind is DamageKind.FOREIGN_FILE]
        assert remarks == [disk.local_path(path) for path in FOREIGN]
        assert not any(finding.is_damage for finding in findings if finding.kind is DamageKind.FOREIGN_FILE)

    asyncio.run(check())
    assert all((tmp_path / path).exists() for path in FOREIGN)


@pytest.mark.parametrize("name", ["identity.json", "lives.json", "peers.json"])
def test_verify_finds_damage_in_what_a_node_reads_of_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")

    async def check() -> list[str]:
        return [str(finding) async for finding in verify(str(tmp_path), lambda _bytes: None) if finding.is_damage]

    (found,) = asyncio.run(check())
    assert found.startswith(f"{tmp_path / name}: byte 0: bad file of the node: ")


def test_what_a_node_writes_is_its_own() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 30)
        await settled(rig)
        host = rig.cluster.hosts[rig.master]
        assert host.node is not None
        assert await foreign_files(host.node._env.disk, thorough=True) == []

    Rig().run(scenario)


def test_folders_of_the_audit_log_and_of_state_are_a_nodes_own(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    assert asyncio.run(foreign_files(RealDisk(str(tmp_path)), thorough=True)) == []
