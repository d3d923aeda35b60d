"""``dledger dump`` shows the files of a log as they stand, with the faults in them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dledger.log.log import Log
from dledger.runtime.real_disk import RealDisk
from dledger_cli.app import app
from tests.unit.log.log_rig import TINY, add, promise

FIRST = "00000000000000000000"


def rows(file: Path, *options: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["dump", str(file), "--json", *options])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def make_log(folder: Path) -> None:
    async def write() -> None:
        log, _ = await Log.open(RealDisk(str(folder)), TINY)
        promise(log, 1)
        add(log, 6)
        await log.flush()
        await log.close()

    folder.mkdir()
    asyncio.run(write())


def test_units_hard_state_and_entries_are_shown(tmp_path: Path) -> None:
    make_log(tmp_path / "n0")
    units = rows(tmp_path / "n0" / "index-units" / FIRST)
    assert [unit["index"] for unit in units] == list(range(1, len(units) + 1))
    entries = [row for row in rows(tmp_path / "n0" / "commitlog" / FIRST) if row["what"] == "entry"]
    assert [(row["index"], row["at"], row["size"], row["crc"]) for row in entries] == [
        (unit["index"], unit["at"], unit["size"], "ok") for unit in units
    ]
    assert not [row for row in entries if "fault" in row]
    later = [
        row["index"] for row in rows(tmp_path / "n0" / "commitlog" / FIRST, "--from-pos", str(entries[2]["at"])) if row["what"] == "entry"
    ]
    assert later == [row["index"] for row in entries[2:]]


def test_a_changed_header_breaks_the_chain(tmp_path: Path) -> None:
    make_log(tmp_path / "n0")
    file = tmp_path / "n0" / "commitlog" / FIRST
    second = [row for row in rows(file) if row["what"] == "entry"][1]
    data = bytearray(file.read_bytes())
    data[second["at"] + 15] ^= 1
    file.write_bytes(data)
    shown = [row for row in rows(file) if row["what"] == "entry"]
    assert ["fault" in row for row in shown[:3]] == [False, True, False]
    assert shown[1]["fault"] == "the chain checksum does not follow the entry before"
    assert shown[1]["crc"] == "ok"


def test_a_folder_is_told_as_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["dump", str(tmp_path)])
    assert result.exit_code != 0
    assert str(result.exception) == f"{tmp_path}: a folder; expected one of the files in it"
