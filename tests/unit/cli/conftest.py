"""Each test begins in a process whose command did not get ``--json``."""

from __future__ import annotations

import pytest

from dledger_cli import output


@pytest.fixture(autouse=True)
def as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_as_json", False)
