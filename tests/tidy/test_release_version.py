"""CHANGELOG.md, the version of a build without tags and the newest tag agree; what ``scripts/release --check`` says where they do not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dledger_wire.feature_levels import Level

ROOT = Path(__file__).resolve().parents[2]
LOG = "## [Unreleased]\n{open}\n## [0.3.0] - 2026-12-01\n\n### Added\n- x\n{more}\n## [0.2.0] - 2026-11-22\n\n- y\n"
PROJECT = '[tool.setuptools_scm]\nfallback_version = "{0}"\n'


@pytest.fixture(scope="module")
def checklist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "scripts" / "lib" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_changelog_and_the_version_without_tags_agree(checklist: ModuleType) -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "pyproject.toml")]
    assert checklist.lacks_of_files(*texts) == []
    assert checklist.lacks_of_levels(texts[0]) == []
    tag = checklist.git("describe", "--tags", "--abbrev=0", "--match=v*")
    if tag:
        assert tag[0] in {f"v{each.name}" for each in checklist.sections_of(texts[0])}, "the newest tag has a section"


@pytest.mark.parametrize(
    ("changelog", "fallback", "wanted"),
    [
        (LOG, "0.3.1.dev0", []),
        (LOG, "0.3.0.dev0", ["pyproject.toml: fallback_version is 0.3.0.dev0; expected 0.3.1.dev0, what follows 0.3.0"]),
        (LOG.replace("0.3.0", "0.1.0"), "0.1.1.dev0", ["CHANGELOG.md: expected every version once, the newest first"]),
        (LOG.replace(" - 2026-12-01", ""), "x", ["CHANGELOG.md: [0.3.0]: expected a version and its date, ## [1.2.3] - 2026-01-31"]),
        ("# Changelog\n", "x", ["CHANGELOG.md: expected a section [Unreleased] and the releases below it"]),
    ],
)
def test_files_that_contradict_are_named(checklist: ModuleType, changelog: str, fallback: str, wanted: list[str]) -> None:
    assert checklist.lacks_of_files(changelog.format(open="", more=""), PROJECT.format(fallback)) == wanted


def test_what_is_between_a_commit_and_its_release(checklist: ModuleType) -> None:
    ready = LOG.format(open="", more="### Formats\n- z\n")
    assert checklist.lacks_of_tag(ready, ["v0.3.0"], formats_changed=True) == []
    assert checklist.lacks_of_tag(LOG.format(open="\n- new\n", more=""), ["v0.2.9"], formats_changed=True) == [
        "CHANGELOG.md: [Unreleased] has entries; expected them under [0.3.0] or a new version",
        "git: this commit has v0.2.9; expected v0.3.0, as CHANGELOG.md says",
        "CHANGELOG.md: formats changed since the release before; expected a part ### Formats in [0.3.0]",
    ]
    assert checklist.lacks_of_tag(ready, [], formats_changed=False) == [
        "git: this commit has no tag; expected v0.3.0, as CHANGELOG.md says"
    ]


@pytest.mark.parametrize(
    ("unreleased", "release", "expected"),
    [
        ("", "0.2.0", ""),
        ("", "0.3.1", "0.3.0, 0.2.0"),
        ("\n- new\n", "0.3.1", ""),
        ("\n- new\n", "0.4.0", ""),
        ("\n- new\n", "1.0.0", ""),
        ("\n- new\n", "0.5.0", "1.0.0, 0.4.0, 0.3.1, 0.3.0, 0.2.0"),
    ],
)
def test_a_feature_level_says_a_release_or_the_next_one(checklist: ModuleType, unreleased: str, release: str, expected: str) -> None:
    changelog = LOG.format(open=unreleased, more="")
    found = [f"dledger_wire/feature_levels.py: level 1 is of release {release}; expected one of {expected}"] if expected else []
    assert checklist.lacks_of_levels(changelog, [Level(0, "0.3.0", "a"), Level(1, release, "b")]) == found
