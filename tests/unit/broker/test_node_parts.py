"""Folder identity, folder lock, health messages, units of the bench: the small parts a node and its commands are made of."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.api.health import CHECK, HealthService, ServiceNotFoundError
from broker.process.data_dir_lock import DataFolderLock, holder_pid, lost_folder
from broker.process.identity import open_identity
from dledger.runtime.env import Environment
from dledger.runtime.real_env import real_environment
from dledger_drill.bench.report import Figures, percentiles
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.rpc.transport import UnaryHandler
from dledger_wire.security.principal import ANONYMOUS
from tests.grpc_network import GrpcNetwork


def environment(folder: Path) -> Environment:
    return real_environment(str(folder), GrpcNetwork())


def test_a_folder_keeps_its_identity_and_refuses_others(tmp_path: Path) -> None:
    async def main() -> None:
        first = await open_identity(environment(tmp_path), "c", "g0", "n0")
        assert len(first.store_id) == 32
        assert await open_identity(environment(tmp_path), "c", "g0", "n0") == first
        for other in (("d", "g0", "n0"), ("c", "g1", "n0"), ("c", "g0", "n1")):
            with pytest.raises(DataDirectoryError, match="belongs to node n0 of replica group g0, cluster c, not to node"):
                await open_identity(environment(tmp_path), *other)
        fields = json.loads((tmp_path / "identity.json").read_text())
        (tmp_path / "identity.json").write_text(json.dumps(fields | {"format_version": 9}))
        with pytest.raises(DataDirectoryError, match=r"identity\.json: format 9; this build reads 1: start a newer release"):
            await open_identity(environment(tmp_path), "c", "g0", "n0")
        (tmp_path / "identity.json").write_text(json.dumps({"format_version": 3, "something": "new"}))
        with pytest.raises(DataDirectoryError, match=r"identity\.json: format 3; this build reads 1"):
            await open_identity(environment(tmp_path), "c", "g0", "n0")
        (tmp_path / "identity.json").write_text("{}")
        with pytest.raises(DataDirectoryError, match=r"identity\.json is damaged: no format_version in it"):
            await open_identity(environment(tmp_path), "c", "g0", "n0")
        (tmp_path / "identity.json").write_text("[]")
        with pytest.raises(DataDirectoryError, match=r"identity\.json is damaged: expected a JSON object, found list"):
            await open_identity(environment(tmp_path), "c", "g0", "n0")
        (tmp_path / "identity.json").write_text("[" * 200_000)
        with pytest.raises(DataDirectoryError, match=r"identity\.json is damaged: nested too deep"):
            await open_identity(environment(tmp_path), "c", "g0", "n0")
        (tmp_path / "identity.json").write_text("{")
        with pytest.raises(DataDirectoryError, match=r"identity\.json is damaged"):
            await open_identity(environment(tmp_path), "c", "g0", "n0")

    asyncio.run(main())


@pytest.mark.parametrize("folder", ["commitlog", "copy"])
def test_a_folder_with_a_log_but_no_identity_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    with pytest.raises(
        DataDirectoryError, match=rf"has {folder}/ but no identity\.json: .*; move it away, then restore it .* member remove --id n0 "
    ):
        asyncio.run(open_identity(environment(tmp_path), "c", "g0", "n0"))
    assert not (tmp_path / "identity.json").exists()


def test_a_folder_in_which_a_restore_has_not_ended_is_refused_whatever_is_in_it(tmp_path: Path) -> None:
    asyncio.run(open_identity(environment(tmp_path / "whole"), "c", "g0", "n0"))
    for folder in (tmp_path / "whole", tmp_path / "empty"):
        folder.mkdir(exist_ok=True)
        (folder / "restoring").touch()
        with pytest.raises(DataDirectoryError, match=r"a restore has not ended here \(file restoring\); remove the folder, restore again$"):
            asyncio.run(open_identity(environment(folder), "c", "g0", "n0"))
    assert not (tmp_path / "empty" / "identity.json").exists()


def test_the_lock_is_held_by_one_process_and_names_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "n0")
    assert holder_pid(folder) is None
    lock = DataFolderLock(folder)
    lock.acquire()
    assert holder_pid(folder) == os.getpid()
    attempt = "import sys; from broker.process.data_dir_lock import DataFolderLock; DataFolderLock(sys.argv[1]).acquire()"
    done = subprocess.run([sys.executable, "-c", attempt, folder], capture_output=True, text=True, check=False)
    assert f"DataDirectoryError: data folder {folder} is in use by pid {os.getpid()}" in done.stderr
    lock.release()
    assert holder_pid(folder) is None
    DataFolderLock(folder).acquire()


def test_a_data_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataFolderLock(str(tmp_path / "file" / "n0")).acquire()


def test_health_messages() -> None:
    health = HealthService({"": True, "dledger.master.g0": False}.get)

    class NoReceiver:
        peer = ""
        metadata: dict[str, str] = {}  # noqa: RUF012
        principal = ANONYMOUS

    class OneMethod:
        def add_unary(self, path: str, handler: UnaryHandler) -> None:
            self.path, self.handler = path, handler

    server = OneMethod()
    CHECK.serve(server, health.check)  # type: ignore[arg-type]

    def check(request: bytes) -> bytes:
        async def call() -> bytes:
            return await server.handler(request, NoReceiver())

        return asyncio.run(call())

    name, long_name = b"dledger.master.g0", b"s" * 200
    assert server.path == "/grpc.health.v1.Health/Check"
    assert check(b"") == b"\x08\x01"
    assert check(bytes((10, len(name))) + name) == b"\x08\x02"
    assert check(bytes((10, len(name))) + name + b"\x10\x01") == b"\x08\x02", "a field of a later version"
    with pytest.raises(ServiceNotFoundError, match="no health service 'x'"):
        check(b"\x0a\x01x")
    with pytest.raises(ServiceNotFoundError, match="no health service 's"):
        check(b"\x0a\xc8\x01" + long_name)
    for wrong in (b"\x0a", b"\x0a\x05x", b"\x0a\x01\xff"):
        with pytest.raises(InvalidArgumentError):
            check(wrong)


def test_percentiles_and_the_result_line() -> None:
    assert percentiles([]) == {}
    assert percentiles([float(n) for n in range(1000)]) == {50.0: 500.0, 95.0: 950.0, 99.0: 990.0, 99.9: 999.0}
    figures = Figures(acknowledged=1_236_004, failed=0, bytes=30 << 20, took_s=30.0, latencies_ms=[1.0, 2.0, 3.0])
    assert figures.line("sent").startswith("sent 1 236 004  failed 0  41 200 msgs/s  1.0 MiB/s  latency ms p50 2.00")
    assert figures.as_json()["messages_per_s"] == pytest.approx(41200.1, abs=0.1)
    assert Figures().as_json()["p50_ms"] is None


def test_a_lock_knows_that_its_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "n2"
    lock, another = DataFolderLock(str(folder)), DataFolderLock(str(folder))
    lock.acquire()
    lock.check()

    async def main() -> None:
        watched = asyncio.ensure_future(lost_folder(str(folder)))
        await asyncio.sleep(0)
        folder.rename(tmp_path / "away")
        another.acquire()  # in its place
        assert "n2 is gone: it was deleted or moved while n2 ran; " in (await watched).message

    asyncio.run(main())
    with pytest.raises(DataDirectoryError, match="dledger member remove --id n2 --yes; dledger member add --id n2; start it with an empty"):
        lock.check()
    for each in (lock, another):
        each.release()


def test_a_data_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        disk = environment(tmp_path / "n2").disk
        shutil.rmtree(tmp_path / "n2")
        with pytest.raises(FileNotFoundError, match="the data folder is gone"):
            await disk.write_atomic("config/topics.json", b"{}")
        with pytest.raises(FileNotFoundError):
            await disk.write_atomic("topics.json", b"{}")

    asyncio.run(main())
    assert not (tmp_path / "n2").exists()
