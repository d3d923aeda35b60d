"""What to install for an optional part of dledger, however dledger itself was installed.

The packages themselves are named: ``dledger[spark]`` is no name that a registry knows, and the extras are spread over two wheels.
``pyproject.toml`` has the same; ``tests/unit/wire/test_extras.py`` compares.
"""

from __future__ import annotations

PACKAGES = {
    "spark": ("pyspark>=4.1,<4.4", "pyarrow>=18"),
    "console": ("nicegui>=3.10,<4",),
    "arrow": ("pyarrow>=18",),
}


def install_command(extra: str) -> str:
    """The command that installs what ``extra`` adds, in the environment that is active."""
    return "pip install " + " ".join(f"'{package}'" for package in PACKAGES[extra])
