"""Lines of Python in the product, by concern, and the budget that they have.  ``scripts/size`` runs it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_PRODUCT = ("tests", "benchmarks", "scripts", "docs", "dledger_wire/_pb", "broker/rocketmq_grpc/_pb")

# Concern -> folders and files; of several that fit a file the longest counts.
CONCERNS = {
    "Raft core": ("dledger/core",),
    "log, recovery, repair": ("dledger/log", "dledger/repair.py"),
    "rest of dledger": ("dledger",),
    "store": ("store",),
    "broker: services and node": ("broker",),
    "RocketMQ protocol": ("broker/remoting",),
    "client: producer, consumer, fetch": ("dledger_client",),
    "client: synchronous, partly generated": ("dledger_client/sync",),
    "name service, routing, spares": (
        "broker/nameserver",
        "broker/routes",
        "broker/membership/spare_binding.py",
        "broker/membership/waiting_spare.py",
        "dledger_client/cluster",
    ),
    "security, users, certificates, audit": (
        "broker/security",
        "broker/config/security.py",
        "dledger_wire/security",
        "dledger_client/admin/security.py",
        "dledger_client/admin/audit.py",
        "dledger_cli/commands/acl.py",
        "dledger_cli/commands/audit.py",
        "dledger_cli/commands/certs.py",
        "dledger_cli/commands/security.py",
        "dledger_cli/commands/user.py",
        "dledger_cli/connection.py",
    ),
    "admin API": ("dledger_client/admin",),
    "command line": ("dledger_cli",),
    "console": ("dledger_console",),
    "metrics, top, logs, tracing": (
        "broker/metrics",
        "broker/process/log_repeats.py",
        "broker/process/log_ring.py",
        "broker/process/logging_setup.py",
        "broker/api/diagnostics.py",
        "dledger_client/metrics",
        "dledger_client/tracing",
        "dledger_client/admin/diagnostics.py",
        "dledger_cli/top",
    ),
    "backup, restore, recovery, verify, dump": (
        "dledger_offline",
        "store/offline",
        "dledger_cli/commands/backup.py",
        "dledger_cli/commands/dump.py",
        "dledger_cli/commands/restore.py",
        "dledger_cli/commands/verify.py",
    ),
    "fault injection: drill and bench": ("dledger_drill",),
    "Spark": ("pyspark_dledger",),
    "wire: TCP and RPC": ("dledger_wire/tcp", "dledger_wire/rpc"),
    "wire: formats": ("dledger_wire",),
}


def code_lines(text: str) -> int:
    """Those that are neither blank, nor a comment alone, nor of a docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)


def is_within(file: str, place: str) -> bool:
    return file == place or file.startswith(f"{place}/")


def concern_of(file: str) -> str:
    """SystemExit for a file of a package that no concern has."""
    fitting = [(len(place), concern) for concern, places in CONCERNS.items() for place in places if is_within(file, place)]
    if not fitting:
        sys.exit(f"size: {file} belongs to no concern; expected its package in CONCERNS of scripts/lib/size.py")
    return max(fitting)[1]


def count(root: Path = ROOT) -> Counter[str]:
    """Concern -> lines, of all tracked files of the product."""
    command = ["git", "ls-files", "-z", "*.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    found: Counter[str] = Counter()
    for file in filter(None, done.stdout.split("\0")):
        if (root / file).exists() and not any(is_within(file, place) for place in NO_PRODUCT):
            found[concern_of(file)] += code_lines((root / file).read_text(encoding="utf-8"))
    return found


def verdict(total: int, budget: int) -> str:
    """What is wrong; empty when the lines are within their budget."""
    if total <= budget:
        return ""
    return (
        f"size: {total} lines, {total - budget} above size-budget: cut, or raise it in a commit whose body says why the size budget grows"
    )


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.exit(f"size: {' '.join(arguments)}: expected --check or nothing")
    found = count()
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["dledger"]["size-budget"]
    for concern in CONCERNS:
        print(f"{found[concern]:7} {concern} ({', '.join(CONCERNS[concern][:2])}{', ...' if len(CONCERNS[concern]) > 2 else ''})")
    total = found.total()
    print(f"{total:7} in all; size-budget in pyproject.toml: {budget}" + (f", lower it to {total}" if total < budget else ""))
    problem = verdict(total, budget) if arguments else ""
    if problem:
        print(problem, file=sys.stderr)
    return bool(problem)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
