"""What the other systems need, fetched once into a cache folder: jars by Maven, a Debian package, Python environments of their own.

Each thing is made in a folder beside its place and moved there when it is whole, so nothing is ever half there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

JAVA_MIN = 17
FETCH_LIMIT_S = 900


class UnavailableError(Exception):
    """Something cannot be had on this machine; the text says what and why."""


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "dledger-benchmarks"


def fetched(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name, made by ``make`` the first time.  UnavailableError when that fails."""
    place = cache_folder() / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {name} into {place}", file=sys.stderr, flush=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        make(partial)
        partial.rename(place)
    except OSError as error:
        if not place.is_dir():  # another run may have made it meanwhile
            raise UnavailableError(f"{name} could not be made: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def jars(name: str, *artifacts: str, groups: str = "") -> list[Path]:
    """Artifacts ``group:name:version`` with what they need at run time; ``groups``: only those groups' jars."""
    java()
    need("mvn", "maven")

    def make(folder: Path) -> None:
        (folder / "pom.xml").write_text(pom(artifacts), encoding="utf-8")
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        more = [f"-DincludeGroupIds={groups}"] if groups else []
        _run(name, ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *goal, *more])

    return sorted(fetched(name, make).glob("*.jar"))


def pom(artifacts: Sequence[str]) -> str:
    parts = [artifact.split(":") for artifact in artifacts]
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in parts
    )
    own = "<groupId>dledger.benchmarks</groupId><artifactId>fetched</artifactId><version>1</version>"
    return f'<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>{own}<dependencies>{wanted}</dependencies></project>\n'


def environment(name: str, *packages: str, constraints: Path | None = None) -> Path:
    """The interpreter of an environment with these packages."""
    # Another wish is another environment: what is there is never changed.
    digest = hashlib.sha256(" ".join((*packages, sys.version, constraints.read_text() if constraints else "")).encode()).hexdigest()[:8]

    def make(folder: Path) -> None:
        _run(name, [sys.executable, "-m", "venv", str(folder)])
        limits = ["-c", str(constraints)] if constraints else []
        _run(name, [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *limits, *packages])

    return fetched(f"{name}-{digest}", make) / "bin" / "python"


def nats_server() -> Path:
    """The installed nats-server, or the one of Debian's package, unpacked without installing it."""
    if installed := shutil.which("nats-server"):
        return Path(installed)
    if shutil.which("apt-get") is None:
        raise UnavailableError("nats-server is not installed, and there is no apt-get to fetch it")

    def make(folder: Path) -> None:
        _run("nats-server", ["apt-get", "download", "-q", "nats-server"], folder)
        _run("nats-server", ["dpkg", "-x", str(next(folder.glob("*.deb"))), str(folder)], folder)

    return fetched("nats-server", make) / "usr" / "sbin" / "nats-server"


def need(command: str, package: str) -> None:
    if shutil.which(command) is None:
        raise UnavailableError(f"the command {command} is missing (Debian: apt-get install {package})")


def java() -> tuple[Path, str]:
    """A Java that is new enough, and its version: of JAVA_HOME, on PATH, or where distributions put them."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    for candidate in (*candidates, *sorted(Path("/usr/lib/jvm").glob("*/bin/java"))):
        if candidate.exists():
            said = subprocess.run([str(candidate), "-version"], capture_output=True, text=True, check=False).stderr
            found = re.search(r'version "((\d+)[^"]*)"', said)
            if found and int(found[2]) >= JAVA_MIN:
                return candidate, found[1]
    raise UnavailableError(f"Java {JAVA_MIN} or newer is missing (Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless)")


def _run(name: str, command: list[str], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{name}: {command[0]} did not end within {FETCH_LIMIT_S} s") from None
    if done.returncode:
        raise UnavailableError(f"{name} could not be fetched: {reason(done.stdout + done.stderr)}")


def reason(output: str) -> str:
    """The line of a tool's output that says most: its first error, or its last line."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[ERROR\]|ERROR:|E:)", line)]
    return (errors or lines[-1:] or ["it said nothing"])[0][:300]
