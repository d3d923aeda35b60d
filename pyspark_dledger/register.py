"""Telling early, and in plain words, why Spark would not find the source.

Spark looks sources up in a Python process of its own; when that interpreter lacks the package, all it says is DATA_SOURCE_NOT_FOUND.  Owns
the check, and the registration for sessions that were told of the package too late to look by themselves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = "pyspark_dledger, pyarrow, grpc"
CHECK_TIMEOUT_S = 60


def check_interpreter(python: str) -> None:
    """InvalidArgumentError unless ``python`` runs and has what the source needs."""
    path = shutil.which(python)
    if path is None:
        raise InvalidArgumentError(f"Spark's interpreter {python!r} (PYSPARK_PYTHON) is not found; set PYSPARK_PYTHON to this one's path")
    done = subprocess.run([path, "-c", f"import {NEEDED}"], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)  # noqa: S603
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InvalidArgumentError(
            f"Spark's interpreter {path} cannot load the source ({said[-1] if said else 'no reason given'}); "
            "install dledger[spark] there, or set PYSPARK_PYTHON to one that has it"
        )


def register(spark: SparkSession) -> None:
    """Make ``format("dledger")`` work in this session, or say why it cannot.  Not needed where the package is installed for Spark."""
    configured = spark.conf.get("spark.pyspark.python", None)
    check_interpreter(os.environ.get("PYSPARK_PYTHON") or configured or "python3")
    spark.dataSource.register(DefaultSource)
