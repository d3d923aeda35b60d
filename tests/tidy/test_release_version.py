"""CHANGELOG.md and pyproject.toml agree on the version, and a build says that one; what ``scripts/release --check`` says otherwise."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dledger_wire.feature_levels import Level

ROOT = Path(__file__).resolve().parents[2]
LOG = "## [0.3.0] - 2026-12-01\n\n### Added\n- x\n{more}\n## [0.2.0] - 2026-11-22\n\n- y\n"
PROJECT = '[project]\nversion = "{0}"\n'


@pytest.fixture(scope="module")
def checklist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "scripts" / "lib" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_changelog_and_the_version_agree(checklist: ModuleType) -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "pyproject.toml")]
    assert checklist.lacks_of_files(*texts) == []
    assert checklist.lacks_of_levels(*texts) == []


@pytest.mark.parametrize("tag", ["", "v9.9.9"], ids=["no tag", "a tag of another version"])
def test_archives_and_clones_build_the_version_of_the_file(checklist: ModuleType, tmp_path: Path, tag: str) -> None:
    """Whatever is tagged, and without git as well."""
    version = checklist.version_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    clone, archive = tmp_path / "clone", tmp_path / "archive"
    for folder in (clone, archive):
        folder.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        (folder / "dledger").mkdir()
        (folder / "dledger" / "__init__.py").touch()
    git = ["git", "-C", str(clone), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    commands = [[*git, "init", "-q"], [*git, "add", "-A"], [*git, "commit", "-qm", "x"], *([[*git, "tag", tag]] if tag else [])]
    for command in commands:
        subprocess.run(command, check=True)
    for folder in (clone, archive):
        build = "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
        done = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == f"dledger-{version}.dist-info"


@pytest.mark.parametrize(
    ("changelog", "version", "wanted"),
    [
        (LOG, "0.3.0", []),
        (LOG, "0.4.0.dev0", []),
        (LOG, "0.3.1.dev0", []),
        (LOG, "0.2.9", ["pyproject.toml: version is 0.2.9; expected 0.3.0, as CHANGELOG.md says, or a later one with .dev0"]),
        (LOG, "0.3.0.dev0", ["pyproject.toml: version is 0.3.0.dev0; expected 0.3.0, as CHANGELOG.md says, or a later one with .dev0"]),
        (LOG.replace("0.3.0", "0.1.0"), "0.1.0", ["CHANGELOG.md: expected every version once, the newest first"]),
        (LOG.replace(" - 2026-12-01", ""), "x", ["CHANGELOG.md: [0.3.0]: expected a version and its date, ## [1.2.3] - 2026-01-31"]),
        ("# Changelog\n", "x", ["CHANGELOG.md: expected a section for each release, ## [1.2.3] - 2026-01-31"]),
    ],
)
def test_files_that_contradict_are_named(checklist: ModuleType, changelog: str, version: str, wanted: list[str]) -> None:
    assert checklist.lacks_of_files(changelog.format(more=""), PROJECT.format(version)) == wanted


def test_what_is_between_a_commit_and_its_release(checklist: ModuleType) -> None:
    ready = LOG.format(more="### Formats\n- z\n")
    assert checklist.lacks_of_tag(ready, PROJECT.format("0.3.0"), ["v0.3.0"], formats_changed=True) == []
    assert checklist.lacks_of_tag(LOG.format(more=""), PROJECT.format("0.4.0.dev0"), ["v0.2.9"], formats_changed=True) == [
        "pyproject.toml: version is 0.4.0.dev0; expected 0.3.0, as CHANGELOG.md says",
        "git: this commit has v0.2.9; expected v0.3.0, as CHANGELOG.md says",
        "CHANGELOG.md: formats changed since the release before; expected a part ### Formats in [0.3.0]",
    ]
    assert checklist.lacks_of_tag(ready, PROJECT.format("0.3.0"), [], formats_changed=False) == [
        "git: this commit has no tag; expected v0.3.0, as CHANGELOG.md says"
    ]


@pytest.mark.parametrize(
    ("version", "release", "expected"),
    [
        ("0.3.0", "0.2.0", ""),
        ("0.3.0", "0.4.0", "0.3.0, 0.2.0"),
        ("0.4.0.dev0", "0.4.0", ""),
        ("0.4.0.dev0", "0.5.0", "0.4.0, 0.3.0, 0.2.0"),
    ],
)
def test_a_feature_level_says_a_release_or_the_next_one(checklist: ModuleType, version: str, release: str, expected: str) -> None:
    changelog = LOG.format(more="")
    found = [f"dledger_wire/feature_levels.py: level 1 is of release {release}; expected one of {expected}"] if expected else []
    assert checklist.lacks_of_levels(changelog, PROJECT.format(version), [Level(0, "0.3.0", "a"), Level(1, release, "b")]) == found
