"""The demo's Spark job: what it needs, and what it reads."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dledger_cli.demo.account import Rows, line_number
from dledger_cli.demo.load import TOPIC
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.extras import install_command

LEAST_JAVA = 17  # of Spark 4.1 and newer
INSTALL_JAVA = "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless"
COLUMNS = ("keys", "crc32(body) AS crc", "queue_id", "queue_offset", "replica")


def check_installed() -> None:
    """InvalidArgumentError, with the command that installs it, when Spark cannot run here."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise InvalidArgumentError(f"--spark: {package} is not installed: {install_command('spark')}")
    found = java_version()
    if found < LEAST_JAVA:
        problem = f"Java {found} is too old" if found else "Java was not found on PATH or in JAVA_HOME"
        raise InvalidArgumentError(f"--spark: {problem}; Spark needs Java {LEAST_JAVA} or newer ({INSTALL_JAVA})")


def java_version() -> int:
    """Of the Java that Spark would start; 0: there is none."""
    java = shutil.which("java", path=os.path.join(os.environ["JAVA_HOME"], "bin") if os.environ.get("JAVA_HOME") else None)
    if java is None:
        return 0
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - as Spark does
    found = re.search(r' version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


def read_with_spark(bootstrap: str, work: Path) -> Rows:
    """Every message, read by a Spark job from followers.  DledgerError with the end of Spark's log when the job fails."""
    log = work / "spark.log"
    try:
        with _stderr_to(log):
            table = _read(bootstrap, work)
    except Exception as error:  # whatever Spark throws
        sys.stderr.write(log.read_text(errors="replace")[-3000:])
        raise DledgerError(f"the Spark job failed: {reason_of(error)}") from error
    lines = np.array([line_number(key) for key in table.column("keys").to_pylist()], np.int64)
    crcs, queues, offsets = (table.column(name).to_numpy() for name in ("crc", "queue_id", "queue_offset"))
    return Rows(lines, crcs, queues, offsets, sorted(set(table.column("replica").to_pylist())))


def _read(bootstrap: str, work: Path) -> Any:
    os.environ["TMPDIR"] = str(work)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = _python(work)
    from pyspark.sql import SparkSession

    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "spark"),
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={work}"',
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local[2]").appName("dledger demo").config(map=settings).getOrCreate()
    try:
        reader = spark.read.format("dledger").option("bootstrap", bootstrap).option("topic", TOPIC).option("readFrom", "follower")
        return reader.load().selectExpr(*COLUMNS).toArrow()
    finally:
        spark.stop()


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """What the Java side prints goes to a file; it is shown only if something fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _python(work: Path) -> str:
    """The interpreter by a path without spaces: Spark gives it to a shell, unquoted, and finds no Python data source without it."""
    if not any(character.isspace() for character in sys.executable):
        return sys.executable
    link = work / "python"
    link.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    link.chmod(0o755)
    return str(link)


def reason_of(error: Exception) -> str:
    """The line that has Spark's name of the error, such as ``[DATA_SOURCE_NOT_FOUND]``; without one the error's type and first line."""
    lines = str(error).splitlines()
    named = next((line.strip() for line in lines if re.search(r"\[[A-Z][A-Z0-9_.]+\]", line)), "")
    return named or ": ".join([type(error).__name__, *lines[:1]])
