"""RocketMQ's own clients in Java, Go, Python and Node.js: taken from their registries once, and programs of this folder run with them.

Owns where those in Java, Python and Node.js lie: in a folder of the user's cache, one for each version.  Go keeps its modules itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import needs

VERSIONS = ("4.9.8", "5.3.3", "5.5.0")
SPRING = "2.3.5"
GRPC_VERSION = "5.2.0"
PYTHON_VERSION = "5.1.2"
NODE_VERSION = "1.0.8"
GO_VERSION = "v2.1.3-0.20251226070945-2173d070fd1b"
GRPC_GO_VERSION = "v5.1.4"
FETCH_S = 300.0
COMPILE_S = 120.0
PROGRAMS, GRPC_PROGRAMS, SPRING_PROGRAMS = (Path(__file__).parent / name for name in ("java", "java5", "spring"))
GO_PROGRAMS, GRPC_GO_PROGRAMS = (Path(__file__).parent / name for name in ("go", "go5"))
PYTHON_PROGRAMS = Path(__file__).parent / "python"
NODE_PROGRAMS = Path(__file__).parent / "node"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger-tests" / "rocketmq"
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>dledger.tests</groupId><artifactId>clients</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
    {more}
  </dependencies>
</project>
"""
_NO_LOGS = "<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>"
_MODULE = """module dledger.test/clients

go 1.{minor}

require github.com/apache/{client} {version}
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
    return _compiled(version, "rocketmq-tools", _NO_LOGS, PROGRAMS, folder)


def grpc_java_client(folder: Path) -> JavaClient:
    """The same of the client that speaks gRPC."""
    return _compiled(GRPC_VERSION, "rocketmq-client-java", _NO_LOGS, GRPC_PROGRAMS, folder)


def spring_client(folder: Path) -> JavaClient:
    """rocketmq-spring, its program compiled in ``folder``.  The test is skipped where it cannot be had."""
    return _compiled(SPRING, "rocketmq-spring-boot-starter", "", SPRING_PROGRAMS, folder)


def _compiled(version: str, artifact: str, more: str, programs: Path, folder: Path) -> JavaClient:
    needs.java()
    jars, classes = _CACHE / version, folder / version
    if not any(jars.glob("rocketmq-client-*.jar")):
        _fetch(_PROJECT.format(artifact=artifact, version=version, more=more), f"{artifact} {version}", jars)
    classes.mkdir(parents=True)
    sources = [str(source) for source in sorted(programs.glob("*.java"))]
    command = [needs.program("javac"), "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *sources]
    subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_S)
    return JavaClient(version, jars, classes)


def _fetch(project: str, what: str, jars: Path) -> None:
    jars.mkdir(parents=True, exist_ok=True)
    (jars / "pom.xml").write_text(project)
    command = [needs.program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    done = subprocess.run(command, cwd=jars, capture_output=True, text=True, check=False, timeout=FETCH_S)
    if done.returncode:
        needs.lacking(f"{what} cannot be had from Maven's registry: {done.stdout.strip().splitlines()[:1]}")


def go_client(folder: Path) -> str:
    """The programs of the Go client, version 2, built in ``folder``.  The test is skipped where it cannot be had."""
    return _built(f"rocketmq-client-go/v2 {GO_VERSION}", 23, GO_PROGRAMS, folder)


def grpc_go_client(folder: Path) -> str:
    """The same of the client that speaks gRPC."""
    return _built(f"rocketmq-clients/golang/v5 {GRPC_GO_VERSION}", 24, GRPC_GO_PROGRAMS, folder)


def _built(module: str, minor: int, programs: Path, folder: Path) -> str:
    go, (client, version) = needs.go(minor), module.split()
    for source in programs.glob("*.go"):
        shutil.copy(source, folder)
    (folder / "go.mod").write_text(_MODULE.format(minor=minor, client=client, version=version))
    done = subprocess.run([go, "mod", "tidy"], cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_S)
    if done.returncode:
        needs.lacking(f"{module} cannot be had from Go's registry: {done.stderr.strip().splitlines()[-1:]}")
    subprocess.run([go, "build", "-o", "clients", "."], cwd=folder, capture_output=True, check=True, timeout=FETCH_S)
    return str(folder / "clients")


def python_client() -> str:
    """A Python that has the gRPC client.  The test is skipped where it cannot be had."""
    folder = _CACHE / f"python-{PYTHON_VERSION}-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=FETCH_S)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"rocketmq-python-client=={PYTHON_VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
        if done.returncode:
            needs.lacking(f"RocketMQ's Python client cannot be had from PyPI: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "complete").touch()
    return str(python)


def node_client() -> list[str]:
    """The command that runs a program of Node.js with the client.  The test is skipped where it cannot be had."""
    folder, npm = _CACHE / f"node-{NODE_VERSION}", needs.program("npm")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--prefix",
            str(folder),
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            f"rocketmq-client-nodejs@{NODE_VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
        if done.returncode:
            needs.lacking(f"RocketMQ's client for Node.js cannot be had from npm's registry: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "complete").touch()
    return ["env", f"NODE_PATH={folder / 'node_modules'}", needs.program("node")]
