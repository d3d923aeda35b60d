"""Splits the project into three that are built as wheels: ``dledger-client``, ``dledger``, which requires it, and ``dledger-drill``, which
requires ``dledger``.

Owns the split (docs/adr/0012).  Everything else is taken from the root's pyproject.toml: [tool.dledger.client-wheel] and
[tool.dledger.drill-wheel] there name packages and dependencies of those two; ``dledger`` has the rest.  Call: wheel_projects.py VERSION
FOLDER makes FOLDER/client, FOLDER/whole and FOLDER/drill, ready for pip; wheel_projects.py without arguments prints the
project's packages, one a line.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("README.md", "LICENSE")
SHARED = "cluster-configs"  # the wheel of the nodes installs its files under share/dledger
DESCRIPTIONS = {
    "client": "Clients and Spark data source of dledger, a Raft-replicated message storage cluster",
    "drill": "Fault injection and benchmarks for dledger, a Raft-replicated message storage cluster",
}


def name_of(requirement: str) -> str:
    """The distribution's name in ``requirement``, such as ``numpy`` of ``numpy>=2,<3``."""
    return requirement.replace(";", "<").replace("[", "<").replace(">", "<").replace("=", "<").partition("<")[0].strip()


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def packages_of(document: dict[str, Any]) -> list[str]:
    """The packages of the project."""
    return [pattern.rstrip("*") for pattern in document["tool"]["setuptools"]["packages"]["find"]["include"]]


def split(document: dict[str, Any], version: str) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """folder -> ([project] table, packages) of each distribution."""
    project = document["project"]
    parts = {name: document["tool"]["dledger"][f"{name}-wheel"] for name in DESCRIPTIONS}
    needed = {name: _dependencies_of(document, name) for name in parts}
    named = [package for part in parts.values() for package in part["packages"]]
    common = {key: project[key] for key in project if key not in ("dynamic", "scripts", "optional-dependencies")} | {"version": version}
    projects = {
        name: common | {"name": f"dledger-{name}", "description": text, "dependencies": needed[name]} for name, text in DESCRIPTIONS.items()
    }
    extras, shared = project["optional-dependencies"], parts["client"]["extras"]
    projects["client"]["optional-dependencies"] = {name: extras[name] for name in shared}
    projects["drill"]["dependencies"] = [f"dledger=={version}", *needed["drill"]]
    rest = [each for each in project["dependencies"] if not any(each in taken for taken in needed.values())]
    whole = common | {"dependencies": [f"dledger-client=={version}", *rest], "scripts": project["scripts"]}
    whole["optional-dependencies"] = {name: [f"dledger-client[{name}]=={version}"] for name in shared} | {"console": extras["console"]}
    packages = {name: part["packages"] for name, part in parts.items()}
    packages["whole"] = [package for package in packages_of(document) if package not in named]
    return {name: (table, packages[name]) for name, table in (projects | {"whole": whole}).items()}


def _dependencies_of(document: dict[str, Any], name: str) -> list[str]:
    part = document["tool"]["dledger"][f"{name}-wheel"]
    needed = [each for each in document["project"]["dependencies"] if name_of(each) in part["dependencies"]]
    if len(needed) != len(part["dependencies"]) or not set(part["packages"]) <= set(packages_of(document)):
        raise SystemExit(f"pyproject.toml: [tool.dledger.{name}-wheel] names what the project does not have")
    return needed


def shared_files(folder: Path) -> dict[str, list[str]]:
    """[tool.setuptools.data-files]: folder in an installation -> the project's files for it."""
    found: dict[str, list[str]] = {}
    for file in sorted(each for each in (folder / SHARED).rglob("*") if each.is_file()):
        place = Path("share", "dledger", file.parent.relative_to(folder / SHARED))
        found.setdefault(str(place), []).append(str(file.relative_to(folder)))
    return found


def set_modes(folder: Path) -> None:
    """As in git, whatever the umask of who checked it out: a wheel keeps the modes."""
    for each in folder.rglob("*"):
        each.chmod(0o755 if each.is_dir() or each.stat().st_mode & 0o100 else 0o644)


def write(folder: Path, project: dict[str, Any], packages: list[str], document: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    data = {"*": document["tool"]["setuptools"]["package-data"]["*"]}
    data |= {key: each for key, each in document["tool"]["setuptools"]["package-data"].items() if key in packages}
    lines = ["[build-system]", 'requires = ["setuptools>=77"]', 'build-backend = "setuptools.build_meta"', "", "[project]"]
    lines += [f"{key} = {toml(value)}" for key, value in project.items()]
    lines += [
        "",
        "[tool.setuptools.packages.find]",
        f"include = {toml([each for package in packages for each in (package, f'{package}.*')])}",
    ]
    lines += ["", "[tool.setuptools.package-data]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in data.items())]
    if project["name"] == "dledger":
        shutil.copytree(ROOT / SHARED, folder / SHARED)
        lines += [
            "",
            "[tool.setuptools.data-files]",
            *(f"{json.dumps(key)} = {toml(value)}" for key, value in shared_files(folder).items()),
        ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in COPIED:
        shutil.copy(ROOT / name, folder / name)
    for package in packages:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    set_modes(folder)


def main() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if len(sys.argv) == 1:
        print(*packages_of(document), sep="\n")
        return
    version, target = sys.argv[1], Path(sys.argv[2])
    for name, (project, packages) in split(document, version).items():
        write(target / name, project, packages, document)


if __name__ == "__main__":
    main()
