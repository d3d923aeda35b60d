"""The rules of the house that a machine can check: import directions, injected surroundings, sizes, documentation of modules, packaging."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from tests.tidy.source import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if "_pb" not in file.parts)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_LINES = 700
SERVERS = ("dledger/", "store/", "broker/")
# Server code takes these from its environment, so that the whole node runs in the simulator.
OUTSIDE = {"time", "random", "socket", "threading", "os", "subprocess", "multiprocessing", "tempfile", "shutil"}
MAY_TOUCH_THE_MACHINE = (
    "broker/nameserver/pysyncobj_quorum.py",
    "broker/nameserver/bounded_transport.py",
    "dledger/runtime/real_",
    "broker/main.py",
    "broker/config/",
    "broker/process/",
)


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_imports_run_one_way() -> None:
    done = subprocess.run([str(Path(sys.executable).parent / "lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def calls_open(file: Path) -> bool:
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id == "open" for call in calls)


def test_servers_take_the_machine_from_their_environment() -> None:
    found: list[str] = []
    for file in MODULES:
        if name(file).startswith(SERVERS) and not name(file).startswith(MAY_TOUCH_THE_MACHINE):
            found += [f"{name(file)}: imports {module}" for module in sorted(imports(file) & OUTSIDE)]
            found += [f"{name(file)}: calls open()"] if calls_open(file) else []
    assert not found, "\n".join(found)


def test_modules_are_small_and_say_what_they_own() -> None:
    found: list[str] = []
    for file in MODULES + TESTS:
        text = file.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        found += [f"{name(file)}: {lines} lines; expected at most {MAX_LINES}"] if lines > MAX_LINES else []
        found += [f"{name(file)}: no docstring"] if text.strip() and not ast.get_docstring(ast.parse(text)) else []
    assert not found, "\n".join(found)


def test_tests_of_a_layer_are_in_its_folders() -> None:
    """scripts/test looks for them nowhere else: others would never run."""
    folders = {
        "cluster": ("tests/cluster/", "tests/docs/", "tests/drill/"),
        "deploy": ("tests/deploy/",),
        "browser": ("tests/console/",),
        "spark": ("tests/spark/",),
        "docs": ("tests/docs/",),
    }
    found: list[str] = []
    for file in TESTS:
        marks = re.findall(r"mark\.(cluster|deploy|browser|spark|docs)\b", file.read_text(encoding="utf-8"))
        found += [f"{name(file)}: {mark}" for mark in marks if not name(file).startswith(folders[mark])]
    assert not found, "\n".join(found)


def test_every_dependency_has_a_reason_and_is_locked() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if "==" in line}
    project = tomllib.loads(text)["project"]
    extras = {name: extra for name, extra in project["optional-dependencies"].items() if name != "fuzz"}  # pinned there: no test needs it
    wanted = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    for requirement in wanted:
        line = next(line for line in text.splitlines() if f'"{requirement}"' in line)
        assert " # " in line, f"{requirement}: no reason"
        assert re.split(r"[<>=;\[ ]", requirement)[0].lower() in locked, f"{requirement} is not in requirements.lock"


@pytest.mark.parametrize("file", sorted((ROOT / "cluster-configs").glob("*.yaml")), ids=name)
def test_shipped_cluster_files_are_right(file: Path) -> None:
    assert ClusterConfig.load(str(file)).groups


def test_the_packaged_cluster_file_is_the_shipped_one() -> None:
    assert (ROOT / "dledger_cli" / "local-3.yaml").read_bytes() == (ROOT / "cluster-configs" / "local-3.yaml").read_bytes()


def test_a_benchmark_is_a_module() -> None:
    """``python -m benchmarks.NAME`` is how every page names one; README.md has a row for each command."""
    folder = ROOT / "benchmarks"
    modules = {file.stem for file in folder.glob("*.py")}
    found: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        starts = [node.module for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
        found += [f"{name(file)}: imports {module}; expected benchmarks.{module}" for module in starts if module in modules]
    for page in (folder / "README.md", *(folder / "history").glob("*.md"), ROOT / "docs" / "why" / "performance.md"):
        text = page.read_text(encoding="utf-8")
        found += [f"{name(page)}: {command}" for command in re.findall(r"python benchmarks/\w+", text)]
        found += [f"{name(page)}: no benchmarks.{each}" for each in re.findall(r"-m benchmarks\.(\w+)", text) if not named(folder / each)]
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for each in sorted(modules):
        command = f"python -m benchmarks.{each}"
        if command in (folder / f"{each}.py").read_text(encoding="utf-8") and f"`{command}`" not in listed:
            found.append(f"benchmarks/README.md: expected a row for {command}")
    assert not found, "\n".join(found)


def named(module: Path) -> bool:
    return module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def test_no_tracked_file_is_a_link() -> None:
    """A wheel leaves links out, and a copy for another system may."""
    done = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("120000")] == []
