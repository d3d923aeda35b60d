"""What the jobs share: their common arguments, the session, what they print, how they end.

Owns exit codes, the command line's: 0 done, 1 an operating error or a finding told on stderr, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.streaming.listener import StreamingQueryListener

from dledger_client import PullConsumer
from dledger_client.fetch.records import QueueOffsets
from dledger_wire.errors import DledgerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_TIMEOUT_MS = 15_000
LISTENER_WAIT_S = 10.0


class JobFailedError(DledgerError):
    """The job ran and found what should not be."""


def parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """The arguments every job takes."""
    found = argparse.ArgumentParser(prog=f"dledger spark {name}", description=description, epilog=epilog)
    found.add_argument("--bootstrap", required=True, metavar="HOST:PORT,...", help="brokers or name servers")
    found.add_argument("--master", default="", metavar="URL", help="Spark master; default: the one of spark-submit, else local[*]")
    found.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of the Spark session")
    found.add_argument("--json", action="store_true", help="print JSON")
    return found


def session(arguments: argparse.Namespace, name: str) -> SparkSession:
    """The Spark session of a job.  Workers on this machine run this interpreter."""
    from pyspark.sql import SparkSession

    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    builder = SparkSession.builder.appName(f"dledger-{name}")
    # Under spark-submit the master is set already, and stays unless one is named.
    if arguments.master or not os.environ.get("PYSPARK_GATEWAY_PORT"):
        builder = builder.master(arguments.master or "local[*]")
    settings = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings |= {"spark.log.level": "ERROR", "spark.ui.enabled": "false"}
    for setting in arguments.conf:
        key, _, value = setting.partition("=")
        settings[key] = value
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def source(spark: SparkSession, bootstrap: str, topics: Sequence[str], **options: Any) -> Any:
    """A batch read of topics."""
    reader = spark.read.format("dledger").option("bootstrap", bootstrap).option("topic", ",".join(topics))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def bounds(bootstrap: str, topics: Sequence[str], timestamp_ms: int | None = None) -> dict[tuple[str, str, int], QueueOffsets]:
    """(topic, group, queue) -> what it holds."""
    with PullConsumer(bootstrap, timeout_ms=LOOK_TIMEOUT_MS) as consumer:
        return {(topic, *queue): offsets for topic in topics for queue, offsets in sorted(consumer.offsets(topic, timestamp_ms).items())}


class RowCounter(StreamingQueryListener):
    """Counts the rows of a query's batches, each once, and shows each batch; a query itself remembers the newest reports only."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self._rows: dict[tuple[str, int], int] = {}
        self._ended = threading.Event()

    @classmethod
    @contextmanager
    def listening(cls, spark: SparkSession, job: str) -> Iterator[RowCounter]:
        """A counter for the one query of a block.  It is taken away when it has heard all of the query: Spark tells it in a thread of Java,
        which prints its stack when the process ends under it."""
        counter = cls(job)
        spark.streams.addListener(counter)
        try:
            yield counter
            counter._ended.wait(LISTENER_WAIT_S)
        finally:
            spark.streams.removeListener(counter)

    def rows_of(self, query: StreamingQuery) -> int:
        """Of a query that has ended: its own reports count too, the listener may not have heard the last ones yet."""
        for report in query.recentProgress:
            self._note(report)
        return sum(rows for (run, _), rows in self._rows.items() if run == str(query.runId))

    def _note(self, report: Any) -> None:
        key = (str(report.runId), report.batchId)
        self._rows[key] = max(report.numInputRows, self._rows.get(key, 0))

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        report = event.progress
        self._note(report)
        if report.numInputRows:
            progress(f"{self._job}: batch {report.batchId}, {report.numInputRows} messages, {report.processedRowsPerSecond:.0f} a second")

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._ended.set()


def topic_list(text: str) -> list[str]:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def progress(text: str) -> None:
    """A line for who watches."""
    print(text, file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns two spaces apart; numbers to the right."""
    cells = [["-" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(header))]
    widths = [max(len(title), *(len(row[n]) for row in cells)) if cells else len(title) for n, title in enumerate(header)]
    for line in [list(header), *cells]:
        padded = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numeric, strict=True)]
        print("  ".join(padded).rstrip())
    sys.stdout.flush()


def finish(main: Callable[[Sequence[str] | None], dict[str, Any]], argv: Sequence[str] | None = None) -> int:
    """Run a job's ``main``; its exit code."""
    try:
        main(argv)
    except DledgerError as error:
        print(f"dledger: {error.message}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:  # noqa: BLE001 - Spark wraps ours: the line of ours is what says what is wrong
        print(f"dledger: {reason(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


def run_program(main: Callable[[Sequence[str] | None], dict[str, Any]], argv: Sequence[str] | None = None) -> NoReturn:
    """Run a job's ``main`` as all that this process does.  Its session is stopped: what Java still has to tell is told before the end."""
    from pyspark.sql import SparkSession

    code = finish(main, argv)
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.stop()
    sys.exit(code)


def reason(error: BaseException) -> str:
    """One line of an error that came through Spark: that of our own error in it, if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("dledger_wire.errors.")]
    if own:
        return own[-1].partition(": ")[2]
    if any("DATA_SOURCE_NOT_FOUND" in line for line in lines):
        python = os.environ.get("PYSPARK_PYTHON", "python3")
        return f"Spark's interpreter {python} does not find pyspark_dledger; install dledger[spark] there, or set PYSPARK_PYTHON"
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def print_report(arguments: argparse.Namespace, report: dict[str, Any], show: Callable[[], None]) -> None:
    """The report as JSON, or as ``show`` shows it."""
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False), flush=True)
    else:
        show()
