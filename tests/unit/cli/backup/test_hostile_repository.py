"""A repository that somebody else can write to: what its manifests may not say, and files that do not end."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger_offline.backup.manifest import MAX_STATE_BYTES, Manifest, encode
from dledger_offline.backup.manifest import decode as decoded
from dledger_offline.backup.reading import state_content
from dledger_offline.backup.repository import READ_BYTES, Repository
from dledger_wire.errors import StorageDamagedError
from tests.unit.cli.backup.backup_rig import GROUP, back_up, local, source

Table = dict[str, Any]


@pytest.fixture(scope="module")
def taken(module_folder: Path) -> tuple[Repository, Manifest]:

    async def scenario() -> tuple[Repository, Manifest]:
        repository = local(module_folder / "repository")
        async with source(module_folder / "n0") as replica:
            await replica.append(10)
            manifest, _ = await back_up(repository, replica.replica)
        return repository, manifest

    return asyncio.run(scenario())


def refused(manifest: Manifest, change: Callable[[Table], object]) -> str:
    """Why a manifest is refused after ``change``."""
    table = json.loads(encode(manifest).splitlines()[1])
    change(table["groups"][GROUP])
    text = json.dumps(table).encode()
    with pytest.raises(StorageDamagedError) as raised:
        decoded(json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n" + text + b"\n", "backups/x.json")
    assert raised.value.message.isprintable()
    return raised.value.message


@pytest.mark.parametrize(
    "path",
    [
        *("", "/tmp/x", "../x", "config/../../x.json", "config/x/../y.json", "/config/x.json"),
        *(
            "identity.json",
            "lock",
            "configuration.json",
            "hardstate",
            "commitlog/0000",
            "copy/x.json",
            "config/",
            "config/x",
            "config/.json",
        ),
        *("a\0b", "config/a\0.json", "config/x\n\x1b[31mred.json", "config/" + "x" * 300 + ".json", "config\\x.json"),
    ],
)
def test_state_is_written_only_where_a_node_has_it(taken: tuple[Repository, Manifest], path: str) -> None:
    text = refused(taken[1], lambda group: group["state"][0].update(path=path))
    assert text == (
        f"backups/x.json is damaged: groups.{GROUP}.state.0.path: Value error, expected the path of a file of the replicated state"
    )


@pytest.mark.parametrize("path", ["", "/etc/hostname", "../../etc/hostname", "g0/../x", "g0//x", "a\0b", "x\x1b[31m", "..\\x", "./x"])
@pytest.mark.parametrize("kind", ["state", "part"])
def test_nothing_outside_the_repository_is_read(taken: tuple[Repository, Manifest], kind: str, path: str) -> None:
    def change(group: Table) -> None:
        (group["state"][0] if kind == "state" else group["segments"][0]["parts"][0]).update(file=path)

    assert "expected the path of a file of the repository" in refused(taken[1], change)


@pytest.mark.parametrize("size", [-1, MAX_STATE_BYTES + 1, 1 << 62, "5"])
def test_sizes_that_cannot_be_are_refused(taken: tuple[Repository, Manifest], size: object) -> None:
    assert f"groups.{GROUP}.state.0.size_bytes" in refused(taken[1], lambda group: group["state"][0].update(size_bytes=size))
    if size not in (MAX_STATE_BYTES + 1, 1 << 62):
        assert "parts.0.size_bytes" in refused(taken[1], lambda group: group["segments"][0]["parts"][0].update(size_bytes=size))


def test_a_file_of_the_state_that_does_not_end_is_read_to_its_size(taken: tuple[Repository, Manifest]) -> None:
    repository, manifest = taken
    file = manifest.groups[GROUP].state[0]
    given = 0

    class Endless:
        def read(self, _path: str) -> Any:
            nonlocal given
            while True:
                given += 1
                yield bytes(READ_BYTES)

        def place(self, path: str) -> str:
            return repository.place(path)

    with pytest.raises(StorageDamagedError, match=f"expected {file.size_bytes}"):
        state_content(Endless(), file)  # type: ignore[arg-type]
    assert given == 1


def test_what_was_taken_is_read(taken: tuple[Repository, Manifest], tmp_path: Path) -> None:
    repository, manifest = taken
    assert [len(state_content(repository, file)) for file in manifest.groups[GROUP].state] == [
        file.size_bytes for file in manifest.groups[GROUP].state
    ]
