"""The wheels of a release (docs/adr/0012, 0047): the light one alone, two in either order, one removed, with and without the
drill's; what a checkout installs.

``scripts/test docs`` builds them beside this folder (``scripts/lib/wheel.sh``).  Environments here get other people's packages as links to
those of the running one, so that nothing is fetched and nothing is there that a test did not name.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest

from dledger_cli.local.private_cluster import PrivateCluster
from tests import needs
from tests.cluster.attack import secured_cluster
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
LIGHT = {"dledger_wire", "dledger_client", "pyspark_dledger"}
WHOLE = {"dledger", "store", "broker", "dledger_cli", "dledger_console", "dledger_offline"}
DRILL = {"dledger_drill"}
# The gRPC side of nodes, and what issues certificates.
NODES_ONLY = {
    "dledger_wire.rpc.grpc_errors",
    "dledger_wire.rpc.grpc_server",
    "dledger_wire.security.certificates",
}

pytestmark = pytest.mark.docs

PROGRAM = """
import sys
from dledger_client import Admin, Message, Producer, PullConsumer, SendStatus

def main(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic("light", queues=1)
    with Producer(bootstrap, group="light") as producer:
        result = producer.send(Message("light", b"a body", tags="t"))
        status: SendStatus = result.status
        assert status is SendStatus.SEND_OK
    with PullConsumer(bootstrap, group="light") as consumer:
        bodies: list[bytes] = [message.body for message in consumer.fetch("light", result.queue_id, result.queue_offset)]
        assert bodies == [b"a body"], bodies

main(sys.argv[1])
"""

IMPORT_ALL = """
import importlib, json, pkgutil, sys
failed = []
for name in ("dledger_wire", "dledger_client", "pyspark_dledger"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            failed.append(module.name)
print(json.dumps(failed))
"""


def wheel(pattern: str) -> Path:
    found = sorted(ROOT.glob(pattern))
    if not found:
        needs.lacking("no wheels here: scripts/test docs builds them")
    return found[-1]


@pytest.fixture
def light() -> Path:
    return wheel("release/dledger_client-*.whl")


@pytest.fixture
def whole() -> Path:
    return wheel("release/dledger-*.whl")


@pytest.fixture
def drill() -> Path:
    return wheel("release/dledger_drill-*.whl")


def tops(file: Path) -> set[str]:
    with zipfile.ZipFile(file) as zipped:
        return {name.partition("/")[0] for name in zipped.namelist() if ".dist-info/" not in name and ".data/data/share/" not in name}


def metadata(file: Path) -> tuple[str, list[str]]:
    """(version, requirements) of a wheel."""
    with zipfile.ZipFile(file) as zipped:
        name = next(name for name in zipped.namelist() if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(zipped.read(name).decode())
    return fields["Version"], fields.get_all("Requires-Dist") or []


def closure(names: set[str]) -> Iterator[Distribution]:
    """What is installed here of ``names`` and all that they require."""
    seen: set[str] = set()
    left = sorted(names)
    while left:
        name = re.split(r"[^\w.-]", left.pop(), maxsplit=1)[0].lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform
        yield found
        left += [each for each in found.requires or [] if "extra ==" not in each]


def environment(folder: Path, needed: set[str]) -> Path:
    """A new environment with links to what is installed here of ``needed``; its interpreter."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    for found in closure(needed):
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))).resolve())
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str, fails: bool = False) -> str:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(python: Path, *files: Path) -> None:
    for file in files:
        pip(python, "install", "-q", "--no-index", "--no-deps", str(file))


def call(*command: str | Path, fails: bool = False) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/")
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def others() -> set[str]:
    return {each.name for each in distributions() if not each.name.startswith("dledger")}


def test_each_package_is_in_one_wheel_and_all_in_that_of_a_checkout(light: Path, whole: Path, drill: Path) -> None:
    checkout = wheel("checkout/dledger-*.whl")
    assert (tops(light), tops(whole), tops(drill), tops(checkout)) == (LIGHT, WHOLE, DRILL, LIGHT | WHOLE | DRILL)
    versions = {metadata(file)[0] for file in (light, whole, drill, checkout)}
    assert len(versions) == 1
    version = versions.pop()
    assert f"dledger-client=={version}" in metadata(whole)[1]
    assert f"dledger=={version}" in metadata(drill)[1]
    required = [each for file in (light, whole, drill) for each in metadata(file)[1]]
    apart = {each for each in required if "extra ==" not in each and "dledger" not in each}
    assert apart == {each for each in metadata(checkout)[1] if "extra ==" not in each}


def test_the_light_wheel_alone_serves_a_typed_client_and_spark(tmp_path: Path, light: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, requirements = metadata(light)
    python = environment(tmp_path / "light", {each for each in requirements if "extra ==" not in each})
    install(python, light)
    pip(python, "check")
    assert call(python, "-c", "import dledger_client; print(dledger_client.__version__)").strip() == version
    for module in (*WHOLE, *DRILL, "grpc", "typer", "rich", "pydantic", "uvloop", "psutil", "lark", "structlog", "yaml", "cryptography"):
        assert "ModuleNotFoundError" in call(python, "-c", f"import {module}", fails=True)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    call(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "--python-executable", python, program)
    with PrivateCluster(tmp_path / "data", nodes=1) as cluster:
        cluster.start()
        call(python, program, cluster.bootstrap)
    secured = secured_cluster.make(tmp_path / "secured", nodes=1)
    for name, value in secured_cluster.environment(secured.folder).items():
        monkeypatch.setenv(name, value)
    with secured.cluster as cluster:
        cluster.start()
        call(python, program, cluster.bootstrap)
    spark = environment(tmp_path / "spark", set(requirements) | {"pyspark", "pyarrow"})
    install(spark, light)
    assert set(re.findall(r'"([\w.]+)"', call(spark, "-c", IMPORT_ALL))) == NODES_ONLY
    call(spark, "-c", "from pyspark_dledger import DefaultSource; assert DefaultSource.name() == 'dledger'")


@pytest.mark.parametrize("first", ["light", "whole"])
def test_both_in_either_order_and_each_removed(tmp_path: Path, light: Path, whole: Path, first: str) -> None:
    python = environment(tmp_path / "both", others())
    install(python, *((light, whole) if first == "light" else (whole, light)))
    command = python.parent / "dledger"
    pip(python, "check")
    assert "topic" in call(command, "--help")
    version = call(command, "--version").split()[1]
    assert call(python, "-c", "import broker.main, dledger_client, pyspark_dledger; print(dledger_client.__version__)").strip() == version
    pip(python, "uninstall", "-q", "-y", "dledger" if first == "light" else "dledger-client")
    if first == "light":
        call(python, "-c", "import dledger_client.aio, pyspark_dledger")
    else:
        assert "requires dledger-client" in pip(python, "check", fails=True)
        assert "pip install --force-reinstall --no-deps dledger-client" in call(command, "--help", fails=True)


def test_drill_and_bench_come_with_a_wheel_of_their_own(tmp_path: Path, light: Path, whole: Path, drill: Path) -> None:
    needed = {name for file in (light, whole, drill) for each in metadata(file)[1] if not (name := each).startswith("dledger")}
    assert any(each.startswith("jinja2") for each in needed)
    python = environment(tmp_path / "nodes", {each for each in needed if "extra ==" not in each and not each.startswith("jinja2")})
    install(python, light, whole)
    pip(python, "check")
    command = python.parent / "dledger"
    assert not re.search(r"^  (drill|bench) ", call(command, "--help"), re.MULTILINE)
    for name in ("drill", "bench"):
        said = call(command, name, "--help", fails=True)
        assert said == f"dledger: dledger {name} needs the package dledger-drill: pip install dledger-drill\n"
    drilling = environment(tmp_path / "drill", others())
    install(drilling, light, whole, drill)
    pip(drilling, "check")
    command = drilling.parent / "dledger"
    assert len(re.findall(r"^  (drill|bench) ", call(command, "--help"), re.MULTILINE)) == 2
    assert "partition" in call(command, "drill", "--faults", "list")
    assert "acknowledged" in call(command, "drill", "--faults", "kill", "--rounds", "1", "--replica-groups", "1")
