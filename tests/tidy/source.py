"""The project's own files, and what the tests of this folder ask of the Python ones: each is parsed once, its tree is not kept."""

from __future__ import annotations

import ast
import functools
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "dledger",
    "dledger_wire",
    "dledger_client",
    "pyspark_dledger",
    "store",
    "broker",
    "dledger_cli",
    "dledger_console",
    "dledger_drill",
    "dledger_offline",
)
OTHERS = ("tests", "benchmarks", "scripts")


@dataclass
class Source:
    """One Python file.  Lines count from 1."""

    name: str
    text: str
    lines: dict[str, int] = field(default_factory=dict)  # function -> its length without the docstring
    parameters: dict[str, int] = field(default_factory=dict)  # function -> how many it takes
    docstrings: list[tuple[int, str]] = field(default_factory=list)
    imports: list[tuple[int, str]] = field(default_factory=list)
    calls: list[tuple[int, str, frozenset[str]]] = field(default_factory=list)  # line, called function, names of its keywords


def look(node: ast.AST, prefix: str, into: Source) -> None:
    inner = prefix
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        called, taken = prefix + node.name, node.args
        documented = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
        into.lines[called] = (node.end_lineno or 0) - node.lineno + 1 - documented
        names = [argument.arg for argument in [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]]
        into.parameters[called] = len([each for each in names if each not in ("self", "cls")])
        inner = f"{called}."
    elif isinstance(node, ast.ClassDef):
        inner = f"{prefix}{node.name}."
    elif isinstance(node, ast.Import):
        into.imports += [(node.lineno, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        into.imports += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        called = f"{owner.id}.{called}" if isinstance(owner, ast.Name) else called
        into.calls.append((node.lineno, called, frozenset(word.arg or "**" for word in node.keywords)))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (found := ast.get_docstring(node)):
        into.docstrings.append((node.body[0].lineno, found))
    for child in ast.iter_child_nodes(node):
        look(child, inner, into)


@functools.cache
def sources(*folders: str) -> tuple[Source, ...]:
    """Files of the project in ``folders`` (default: all), without generated stubs."""
    if not folders:
        return tuple(source for folder in PACKAGES + OTHERS for source in sources(folder))
    made: list[Source] = []
    for file in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py") if "_pb" not in file.parts):
        made.append(Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")))
        look(ast.parse(made[-1].text), "", made[-1])
    return tuple(made)


@functools.cache
def tracked() -> frozenset[str]:
    """Paths of all files in git, and of the folders they are in."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = done.stdout.splitlines()
    return frozenset(files) | {parent.as_posix() for file in files for parent in Path(file).parents}
