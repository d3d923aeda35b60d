"""The version of what is installed: the one answer to ``dledger --version``, ``dledger_client.__version__`` and a node's status."""

from __future__ import annotations

UNKNOWN = "0+unknown"  # modules that were copied without their metadata, as Spark does with shipped ones


def installed_version() -> str:
    """The version of the whole distribution or, without it, of the light one."""
    from importlib.metadata import PackageNotFoundError, version  # takes some time to load

    for distribution in ("dledger", "dledger-client"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return UNKNOWN
