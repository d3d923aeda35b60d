"""``register``: checks Spark's interpreter, registers the source in a session for the calling thread, and can ship the package.

Spark discovers sources in a separate Python process.  If that interpreter lacks the package, Spark reports only
DATA_SOURCE_NOT_FOUND; the check here says what is missing and where.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.extras import install_command
from pyspark_dledger.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = "pyspark_dledger, pyarrow"
CHECK_TIMEOUT_S = 60
PACKAGES = ("pyspark_dledger", "dledger_client", "dledger_wire")  # packages that run in executors


@cache  # threads of a pool register one after the other
def check_interpreter(python: str) -> None:
    """Raise InvalidArgumentError unless ``python`` runs and has the packages that the source needs."""
    path = shutil.which(python)
    if path is None:
        raise InvalidArgumentError(f"Spark's interpreter {python!r} (PYSPARK_PYTHON) is not found; set PYSPARK_PYTHON to this one's path")
    done = subprocess.run([path, "-c", f"import {NEEDED}"], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)  # noqa: S603
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InvalidArgumentError(
            f"Spark's interpreter {path} cannot load the source ({said[-1] if said else 'no reason given'}); "
            f"expected the wheel of dledger-client there, and {install_command('spark')}; or set PYSPARK_PYTHON to one that has both"
        )


def package_zip() -> str:
    """Path of a zip file with this package and the client packages; removed when the process ends."""
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
    """Make ``format("dledger")`` available in this session, and to writes that the calling thread starts.

    Needed in two cases only: the package is not installed in Spark's interpreter, or another thread than the one that made the session
    writes.  For a write Spark looks for sources in the active session, and a new thread has none.  So call it first in each such thread;
    in a pool of threads: ``ThreadPoolExecutor(4, initializer=register, initargs=(spark,))``.

    Args:
        spark: The session, classic or Spark Connect.
        ship: Send the package to the executors.  They then need only its libraries: protobuf, numpy, pyarrow, tenacity, google-crc32c,
            lz4, zstandard.  ``--py-files`` does the same for batch queries; for streams the driver needs the package installed, because
            Spark looks for such files in the wrong place there.

    Raises:
        InvalidArgumentError: Spark's interpreter is missing or lacks the package.

    Example:
        >>> register(spark, ship=True)  # doctest: +SKIP
    """
    connected = type(spark).__module__.startswith("pyspark.sql.connect")
    if not connected:  # Spark Connect: the interpreter is on the server
        configured = spark.conf.get("spark.pyspark.python", None)
        check_interpreter(os.environ.get("PYSPARK_PYTHON") or configured or "python3")
    if ship:  # first, because registration captures the current files
        if connected:
            spark.addArtifacts(package_zip(), pyfile=True)
        else:
            spark.sparkContext.addPyFile(package_zip())
    spark.dataSource.register(DefaultSource)
    if not connected:
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # of the calling thread
