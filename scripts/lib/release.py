"""Adds sources and checksums to the wheels of a release, and checks all of them: release.py DIR, after scripts/wheels DIR.

Owns what a release consists of: the three wheels, an archive of sources of each, SHA256SUMS.  An archive of sources gives the wheel beside
it, byte by byte; it is made from the same three projects (``wheel_projects.py``).  The repository's archive of a tag has tests and
documents.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

DISTRIBUTIONS = {"client": "dledger_client", "whole": "dledger", "drill": "dledger_drill"}  # folder of wheel_projects.py -> name in files
# What must not get lost: beside modules, and by the wheel that has it.
NEEDED = {
    "dledger_client": {"dledger_client/py.typed", "dledger_wire/py.typed", "pyspark_dledger/py.typed"},
    "dledger": {
        "dledger_cli/examples.toml",
        "dledger_cli/local-3.yaml",
        "broker/metrics/catalog.toml",
        "store/queues/sql92.lark",
        "dledger_console/static/",
        "dledger_console/layout/keys.js",
        "dledger_console/web/login.html",
        "share/dledger/hosts-3.yaml",
        "share/dledger/prometheus/alerts.yml",
        "share/dledger/grafana/",
    },
    "dledger_drill": {"dledger_drill/hosts/preload.c", "dledger_drill/report/templates/"},
}
FIELDS = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Description-Content-Type")
BUILD_SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


class ReleaseError(Exception):
    """What is wrong with a file of the release."""


def one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ReleaseError(f"{folder}/{pattern}: {len(found)} files; expected one")
    return found[0]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own tools
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def repacked(file: Path, epoch: int) -> bytes:
    """An archive of sources with nothing in it that depends on the time, the place or the user of the build."""
    raw = io.BytesIO()
    with tarfile.open(file) as source, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            content = source.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, content)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=epoch) as out:
        out.write(raw.getvalue())
    return packed.getvalue()


def add_sources(target: Path, version: str, epoch: int) -> None:
    with tempfile.TemporaryDirectory() as work:
        run([sys.executable, str(Path(__file__).with_name("wheel_projects.py")), version, work], Path.cwd())
        for project in DISTRIBUTIONS:
            folder = Path(work) / project
            name = run([sys.executable, "-c", BUILD_SDIST, str(folder / "made")], folder).splitlines()[-1]
            (target / name).write_bytes(repacked(folder / "made" / name, epoch))


def wheel_from(sources: Path, work: Path) -> Path:
    """The wheel that a user who builds from the sources gets."""
    with tarfile.open(sources) as archive:
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        archive.extractall(work, **safe)  # noqa: S202
    (folder,) = work.iterdir()
    made = work / "made"
    options = ["-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    run([sys.executable, "-m", "pip", "wheel", *options, "-w", str(made), str(folder)], work)
    return one(made, "*.whl")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def names_in(wheel: Path) -> list[str]:
    """Its files as they are installed."""
    with zipfile.ZipFile(wheel) as archive:
        return [name.partition(".data/data/")[2] or name for name in archive.namelist()]


def check_wheel(wheel: Path, name: str, version: str) -> None:
    fields, names = metadata_of(wheel), names_in(wheel)
    missing = [field for field in FIELDS if not fields[field]]
    missing += [path for path in sorted(NEEDED[name]) if not any(each.startswith(path) for each in names)]
    if missing:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(missing)}")
    if fields["Version"] != version:
        raise ReleaseError(f"{wheel.name} is of version {fields['Version']}; expected {version}")
    strange = [each for each in names if each.startswith("tests/") or each.endswith((".pyc", ".orig")) or "__pycache__" in each]
    if strange:
        raise ReleaseError(f"{wheel.name} has {', '.join(strange[:5])}")


def check(target: Path, version: str) -> None:
    for name in DISTRIBUTIONS.values():
        wheel, sources = one(target, f"{name}-{version}-py3-none-any.whl"), one(target, f"{name}-{version}.tar.gz")
        check_wheel(wheel, name, version)
        with tempfile.TemporaryDirectory() as work:
            again = wheel_from(sources, Path(work))
            if again.read_bytes() != wheel.read_bytes():
                raise ReleaseError(f"{sources.name} gives another wheel than {wheel.name}")


def write_sums(target: Path) -> None:
    files = sorted(each for each in target.iterdir() if each.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    (target / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def main() -> int:
    target, epoch = Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"])
    try:
        version = str(metadata_of(one(target, "dledger-*.whl"))["Version"])
        add_sources(target, version, epoch)
        check(target, version)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    write_sums(target)
    print("\n".join([version, *sorted(each.name for each in target.iterdir())]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
