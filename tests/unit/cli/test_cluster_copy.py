"""The copy of a cluster file in a data folder: who may read it, and where its relative paths begin."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local.cluster_edit import moved, replace_file, with_groups
from dledger_cli.local.cluster_steps import GroupStarter, forget_local_group
from dledger_cli.local.folder_lock import one_at_a_time
from dledger_wire.errors import AddressInUseError, DataDirectoryError
from tests.full_disk import full_disk
from tests.waiting import wait_until

PLAIN = "cluster: c\ngroups: []\n"
SECURED = PLAIN + "security: {users: {required: true}}\n"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nodes_are_stopped_also_when_the_disk_is_full(tmp_path: Path) -> None:
    """The lock is what counts; whose it is is only told."""
    with full_disk(), one_at_a_time(tmp_path):
        pass


def test_a_file_that_cannot_be_written_is_named_and_stays(tmp_path: Path) -> None:
    file = file_of(tmp_path, "cluster.yaml", PLAIN, 0o644)
    with full_disk(), pytest.raises(DataDirectoryError, match=f"^{file} cannot be written: "):
        replace_file(file, PLAIN + "# more\n")
    assert file.read_text() == PLAIN
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def file_of(folder: Path, name: str, text: str, mode: int) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("text", "given", "expected"), [(PLAIN, 0o644, 0o644), (PLAIN, 0o600, 0o600), (PLAIN, 0o440, 0o640), (SECURED, 0o644, 0o600)]
)
def test_a_copy_can_be_read_by_nobody_else_than_its_source(tmp_path: Path, text: str, given: int, expected: int) -> None:
    source, copy = file_of(tmp_path, "source.yaml", text, given), tmp_path / "cluster.yaml"
    file_of(tmp_path, "cluster.yaml.new", "left by a command that was killed", 0o666)
    replace_file(copy, text, source)
    assert (copy.read_text(), mode(copy)) == (text, expected)
    replace_file(copy, text + "# changed\n", source)
    assert mode(copy) == expected
    replace_file(copy, text)
    assert mode(copy) == expected, "without a source it is the file that is there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml", "source.yaml"]


def test_a_copy_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    copy = file_of(tmp_path, "cluster.yaml", SECURED, 0o644)
    replace_file(copy, SECURED)
    assert mode(copy) == 0o600


CLUSTER = """\
cluster: shop
groups:
  - name: g0
    nodes: [{id: n0, address: "127.0.0.1:20911"}]
security:
  cluster_secret_file: cluster.secret
"""
MORE = [{"name": "g1", "nodes": [{"id": "m0", "address": "127.0.0.1:20951"}]}]


@pytest.mark.parametrize("given", ["the user's file", "the copy"])
def test_a_copy_with_groups_added_and_removed_knows_where_its_paths_begin(tmp_path: Path, given: str) -> None:
    own, copy = tmp_path / "cluster.yaml", tmp_path / "data" / "cluster.yaml"
    copy.parent.mkdir()
    own.write_text(CLUSTER)
    replace_file(copy, moved(CLUSTER, own), own)
    source = copy if given == "the copy" else own
    text = with_groups(source.read_text(), MORE)

    starter = GroupStarter(ClusterConfig.parse(text, str(source)), text, source, str(copy.parent), 1.0)
    for removed in ([], ["gone"]):
        starter.write(without=removed)
        assert groups_and_folder(copy) == (["g0", "g1"], tmp_path)

    forget_local_group(str(copy.parent), "shop", "g1")
    assert groups_and_folder(copy) == (["g0"], tmp_path)


def test_nodes_of_a_new_group_are_started_by_one_command_at_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own, copy = tmp_path / "cluster.yaml", tmp_path / "data" / "cluster.yaml"
    copy.parent.mkdir()
    own.write_text(CLUSTER)
    with socket.create_server(("127.0.0.1", 0)) as taken, ThreadPoolExecutor(1) as another:
        group = {"name": "g1", "nodes": [{"id": "m0", "address": f"127.0.0.1:{taken.getsockname()[1]}"}]}
        copy.write_text(with_groups(CLUSTER, [group]))
        config = ClusterConfig.load(str(copy))
        starter = GroupStarter(config, copy.read_text(), copy, str(copy.parent), 1.0)
        with one_at_a_time(copy.parent):
            adding = another.submit(starter.add, config.groups[1])
            said = wait_until(lambda: adding.done() or capfd.readouterr().err, "neither waits nor ended")
            assert not adding.done()
            assert "waiting for another command" in str(said)
        with pytest.raises(AddressInUseError):
            adding.result()


def groups_and_folder(file: Path) -> tuple[list[str], Path]:
    names = [group["name"] for group in yaml.safe_load(file.read_text())["groups"]]
    return names, Path(os.path.realpath(ClusterConfig.load(str(file)).folder))
