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
            r"# (\d+)\. (.+)\n\n- Date: (\d{4}-\d\d-\d\d)\n- Status: (accepted(?:; .+)?|superseded by .+)\n",
            file.read_text(encoding="utf-8"),
        )
        assert head is not None, f"{file.name}: expected number, title, date and status"
        assert f"| {head[1]} | [{head[2]}]({file.name}) | {head[3]} | {re.split(r'[; ]', head[4])[0]}" in index, file.name


def test_the_guide_of_admin_names_all_its_calls() -> None:
    guide = (ROOT / "docs" / "guides" / "operate" / "administer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| (`.+`) \|$", guide, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    calls = {name for name in dir(Admin) if not name.startswith("_")}
    assert told == calls - {"close"}


def test_messages_that_the_operators_guides_quote_are_in_the_code() -> None:
    """A symptom that is searched for by its text must have the text that a node prints."""
    packages = ("broker", "dledger", "store", "dledger_cli", "dledger_client")
    code = "\n".join(file.read_text(encoding="utf-8") for package in packages for file in (ROOT / package).rglob("*.py"))
    for guide in ("index", "troubleshoot", "replace-a-node"):
        text = (ROOT / "docs" / "guides" / "operate" / f"{guide}.md").read_text(encoding="utf-8")
        cells = [cell for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) for cell in row.split(" | ")[:2]]
        for quote in (quote for cell in cells for quote in re.findall(r"`([a-z][a-z' -]+[: .].*?)`", cell) if " " in quote):
            if not quote.startswith(("dledger ", "docs/")):
                part = re.split(r"\.\.\.|\+|: [A-Z]", quote)[0].rstrip(": ").removeprefix("n0 ")
                assert part in code, f"{guide}.md: {part}"
