"""A process without file handles waits for one."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dledger.runtime import real_handles
from dledger.runtime.real_disk import RealDisk


def test_too_many_open_files_is_try_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    disk = RealDisk(str(tmp_path))
    real, failures = os.open, [errno.EMFILE, errno.ENFILE] * 3

    def scarce(*how: Any, **more: Any) -> int:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return real(*how, **more)

    monkeypatch.setattr(os, "open", scarce)

    async def scenario() -> None:
        await disk.write_atomic("config/x.json", b"{}")
        failures.extend([errno.EMFILE] * 3)
        file = await disk.open("config/x.json")
        assert await file.pread(0, 10) == b"{}"
        await file.close()
        monkeypatch.setattr(real_handles, "PATIENCE_S", 0.0)
        failures.extend([errno.EMFILE] * 1000)
        with pytest.raises(OSError, match="Too many open files"):
            await disk.open("config/x.json")
        failures.clear()

    asyncio.run(scenario())
    disk.close()
    assert "out of file descriptors" in caplog.text
