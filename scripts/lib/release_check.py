"""What a release of this commit lacks, one line each; exit status 1 if there is anything.

Owns the checklist: a clean tree, a tag ``vX.Y.Z`` on this commit, and the version X.Y.Z in pyproject.toml and in the newest section of
CHANGELOG.md.  Between releases pyproject.toml says ``X.Y.Z.dev0``, the next release.  Formats that changed since the release before are
named in that section, and every feature level says a release that exists, or the next one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dledger_wire.feature_levels import LEVELS, Level

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$\n(?P<text>.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)
VERSION = re.compile(r"\d+\.\d+\.\d+")
FORMATS = ("docs/reference/formats.md", "dledger_wire/formats.py", "proto")


@dataclass(frozen=True)
class Section:
    """A section of CHANGELOG.md; ``date`` is empty where it has none."""

    name: str
    date: str
    text: str


def sections_of(changelog: str) -> list[Section]:
    return [Section(found["name"], found["date"] or "", found["text"].strip()) for found in SECTION.finditer(changelog)]


def version_of(pyproject: str) -> str:
    return str(tomllib.loads(pyproject)["project"]["version"])


def lacks_of_files(changelog: str, pyproject: str) -> list[str]:
    """What CHANGELOG.md and pyproject.toml lack, whatever is tagged: true between releases, too."""
    sections = sections_of(changelog)
    if not sections:
        return ["CHANGELOG.md: expected a section for each release, ## [1.2.3] - 2026-01-31"]
    found = [f"CHANGELOG.md: [{each.name}]: expected a version and its date, ## [1.2.3] - 2026-01-31"
             for each in sections if not VERSION.fullmatch(each.name) or not each.date]  # fmt: skip
    if not found:
        numbers = [tuple(map(int, each.name.split("."))) for each in sections]
        if numbers != sorted(set(numbers), reverse=True):
            found.append("CHANGELOG.md: expected every version once, the newest first")
        version, newest = version_of(pyproject), sections[0].name
        number = version.removesuffix(".dev0")
        is_next = version != number and VERSION.fullmatch(number) is not None and tuple(map(int, number.split("."))) > numbers[0]
        if version != newest and not is_next:
            found.append(f"pyproject.toml: version is {version}; expected {newest}, as CHANGELOG.md says, or a later one with .dev0")
    return found


def lacks_of_levels(changelog: str, pyproject: str, levels: Sequence[Level] = LEVELS) -> list[str]:
    """Feature levels whose first release is none, nor the next one."""
    names = list(dict.fromkeys([version_of(pyproject).removesuffix(".dev0"), *(each.name for each in sections_of(changelog))]))
    return [
        f"dledger_wire/feature_levels.py: level {level.number} is of release {level.release}; expected one of {', '.join(names)}"
        for level in levels
        if level.release not in names
    ]


def lacks_of_tag(changelog: str, pyproject: str, tags: list[str], *, formats_changed: bool) -> list[str]:
    """What is between this commit and a release.  ``tags``: those of this commit."""
    newest, *_ = sections_of(changelog)
    found = []
    if version_of(pyproject) != newest.name:
        found.append(f"pyproject.toml: version is {version_of(pyproject)}; expected {newest.name}, as CHANGELOG.md says")
    if f"v{newest.name}" not in tags:
        found.append(f"git: this commit has {'no tag' if not tags else ', '.join(tags)}; expected v{newest.name}, as CHANGELOG.md says")
    if formats_changed and "### Formats" not in newest.text:
        found.append(f"CHANGELOG.md: formats changed since the release before; expected a part ### Formats in [{newest.name}]")
    return found


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603, S607
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def main() -> int:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = lacks_of_files(changelog, pyproject)
    if not found:
        found += lacks_of_levels(changelog, pyproject)
    changed = git("status", "--porcelain")
    if changed:
        found.append(f"git: {len(changed)} files are changed or new; expected a clean tree: {changed[0][3:]}")
    if sections_of(changelog):
        before = git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
        differs = bool(before) and bool(git("diff", "--name-only", before[0], "HEAD", "--", *FORMATS))
        found += lacks_of_tag(changelog, pyproject, git("tag", "--points-at", "HEAD"), formats_changed=differs)
    for line in found:
        print(f"release: {line}", file=sys.stderr)
    if not found:
        print(f"ready: {sections_of(changelog)[0].name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
