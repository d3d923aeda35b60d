"""docs/semantics.md against the tests: every row is shown by a test that names it, and no test names a row that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from broker.config import StoreConfig
from dledger_client.options import UPSTREAM_NAMES, ProducerOptions
from dledger_client.push_options import UPSTREAM_NAMES as PUSH_NAMES
from dledger_wire.status import SendStatus

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


def test_every_row_has_a_test_and_every_test_its_row() -> None:
    rows = re.findall(r"^\| ([A-Z]+\d+) \|", TEXT, re.MULTILINE)
    assert len(rows) == len(set(rows)) > 10
    named: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for told in re.findall(r"docs/semantics\.md, rows? ([A-Z]\d[A-Z\d, and]*)", path.read_text(encoding="utf-8")):
            named.update(re.findall(r"[A-Z]+\d+", told))
    assert named == set(rows)


def test_statuses_and_settings_are_all_described() -> None:
    assert {status.value for status in SendStatus} <= set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    settings = TEXT.split("## Settings of a producer", 1)[1].split("\n## ", 1)[0]
    for upstream, own in UPSTREAM_NAMES.items():
        assert upstream in settings
        assert re.search(rf"\b{own}\b", settings)
    assert f"sendMsgTimeout [{ProducerOptions().send_timeout_ms}]" in settings
    push = TEXT.split("## Settings of a push consumer", 1)[1].split("\n## ", 1)[0]
    for upstream, own in PUSH_NAMES.items():
        assert upstream in push
        assert re.search(rf"\b{own}\b", push)
    assert "syncFlushTimeout" in StoreConfig.model_fields
