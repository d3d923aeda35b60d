"""Telling early, and in plain words, why Spark would not find the source.

Spark looks sources up in a Python process of its own; when that interpreter lacks the package, all it says is DATA_SOURCE_NOT_FOUND.  Owns
the check, the registration for sessions that were told of the package too late to look by themselves, and the way of the package to
executors where it is not installed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = "pyspark_dledger, pyarrow"
CHECK_TIMEOUT_S = 60
PACKAGES = ("pyspark_dledger", "dledger_client", "dledger_wire")  # what runs in executors; the rest of the project never does


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


def packed() -> str:
    """The path of a zip with this package and what it uses of ours; removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="dledger-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "dledger.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in PACKAGES:
            spec = find_spec(name)
            for place in (spec.submodule_search_locations or ()) if spec is not None else ():
                for file in sorted(Path(place).rglob("*.py")):
                    zipped.write(file, Path(name) / file.relative_to(place))
    return path


def register(spark: SparkSession, *, ship: bool = False) -> None:
    """Make ``format("dledger")`` work in this session, or say why it cannot.  Not needed where the package is installed for Spark.

    ``ship``: send the package to the executors, which then need only the libraries it uses (protobuf, numpy, pyarrow, tenacity,
    google-crc32c, lz4, zstandard).  ``--py-files`` does the same for batches; with streams Spark looks for such files in the wrong
    place on the driver, where the package must be installed.
    """
    connected = type(spark).__module__.startswith("pyspark.sql.connect")
    if not connected:  # of Spark Connect it is the server's interpreter, out of sight from here
        configured = spark.conf.get("spark.pyspark.python", None)
        check_interpreter(os.environ.get("PYSPARK_PYTHON") or configured or "python3")
    if ship:  # first: a source is registered with the files that there are
        if connected:
            spark.addArtifacts(packed(), pyfile=True)
        else:
            spark.sparkContext.addPyFile(packed())
    spark.dataSource.register(DefaultSource)
