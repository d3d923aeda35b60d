"""RocketMQ's own Java clients: taken from Maven's registry once, and programs of this folder compiled against them.

Owns where they lie: in a folder of the user's cache, one for each version, beside what Maven keeps.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import needs

VERSIONS = ("4.9.8", "5.5.0")
FETCH_S = 300.0
COMPILE_S = 120.0
PROGRAMS = Path(__file__).parent / "java"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger-tests" / "rocketmq"
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>dledger.tests</groupId><artifactId>clients</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-tools</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


@dataclass(frozen=True, slots=True)
class JavaClient:
    """One version; ``classes`` has the compiled programs."""

    version: str
    jars: Path
    classes: Path

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command that runs a program, one of this folder or a class of RocketMQ's."""
        return [needs.program("java"), "-Xmx256m", "-cp", f"{self.classes}:{self.jars}/*", program, *arguments]


def java_client(version: str, folder: Path) -> JavaClient:
    """The client of that version, its programs compiled in ``folder``.  The test is skipped where it cannot be had."""
    needs.java()
    jars, classes = _CACHE / version, folder / version
    if not any(jars.glob("rocketmq-client-*.jar")):
        _fetch(version, jars)
    classes.mkdir(parents=True)
    sources = [str(source) for source in sorted(PROGRAMS.glob("*.java"))]
    command = [needs.program("javac"), "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *sources]
    subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_S)
    return JavaClient(version, jars, classes)


def _fetch(version: str, jars: Path) -> None:
    jars.mkdir(parents=True, exist_ok=True)
    (jars / "pom.xml").write_text(_PROJECT.format(version=version))
    command = [needs.program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    done = subprocess.run(command, cwd=jars, capture_output=True, text=True, check=False, timeout=FETCH_S)
    if done.returncode:
        needs.lacking(f"rocketmq-client {version} cannot be had from Maven's registry: {done.stdout.strip().splitlines()[:1]}")
