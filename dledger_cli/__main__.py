"""The ``dledger`` command; ``python -m dledger_cli`` is the same.

Owns that the command imports its own packages: ``broker`` and ``store`` are names that users' projects have, too, and a project on
PYTHONPATH comes before what is installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

COMMON_NAMES = ("broker", "store")
LIGHT = ("dledger_client", "dledger_wire")  # in the distribution dledger-client, which may have been removed alone


def _import_own(name: str, folder: str) -> None:
    """Import the package ``name`` that stands beside this one, whatever else of that name ``sys.path`` leads to."""
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or spec.loader is None:
        sys.exit(f"dledger: {folder}: the package {name!r} is missing; install dledger again")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main() -> None:
    missing = [name for name in LIGHT if find_spec(name) is None]
    if missing:
        sys.exit(f"dledger: the package {missing[0]!r} is missing: pip install --force-reinstall --no-deps dledger-client")
    folder = str(Path(__file__).resolve().parents[1])
    for name in COMMON_NAMES:
        _import_own(name, folder)
    import_module("dledger_cli.app").main()


if __name__ == "__main__":
    main()
