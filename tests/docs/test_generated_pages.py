"""Generated pages and pictures of the documentation are fresh, every error has advice, every decision is in the index."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dledger_client import Admin

ROOT = Path(__file__).resolve().parents[2]
ADRS = sorted((ROOT / "docs" / "adr").glob("0*.md"))


def test_generated_pages_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "lib" / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_decision_has_date_and_status_and_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "index.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| \d+ \|", index, re.MULTILINE)) == len(ADRS)
    for file in ADRS:
        head = re.match(
            r"# (\d+)\. (.+)\n\n- Date: (\d{4}-\d\d-\d\d)\n- Status: (accepted|superseded by .+)\n", file.read_text(encoding="utf-8")
        )
        assert head is not None, f"{file.name}: expected number, title, date and status"
        assert f"| {head[1]} | [{head[2]}]({file.name}) | {head[3]} | {head[4].split()[0]}" in index, file.name


def test_the_guide_of_admin_names_all_its_calls() -> None:
    guide = (ROOT / "docs" / "guides" / "administer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| (`.+`) \|$", guide, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    calls = {name for name in vars(Admin) if not name.startswith("_")}
    assert told == calls - {"close"}
