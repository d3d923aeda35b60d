"""The copy of a cluster file in a data folder: who may read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_cli.local.cluster_edit import replace_file

PLAIN = "cluster: c\ngroups: []\n"
SECURED = PLAIN + "security: {users: {required: true}}\n"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


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
