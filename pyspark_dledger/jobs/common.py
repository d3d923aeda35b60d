"""Shared by all jobs: arguments, Spark session, output, exit codes.

Exit codes are those of the command line: 0 success, 1 error or finding (reported on stderr), 2 usage error.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryListener

from dledger_client import PullConsumer
from dledger_client.fetch.records import QueueOffsets
from dledger_wire.errors import DledgerError
from dledger_wire.printable import printable, printable_json
from dledger_wire.security import variables
from pyspark_dledger.options.access import VARIABLES
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS
from pyspark_dledger.options.parser import moment_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LISTENER_WAIT_S = 10.0
SKIP_LOST = "--skip-lost"
CREDENTIALS = (
    ("--user", variables.USER, "NAME", "user to come in as"),
    ("--password-file", variables.PASSWORD_FILE, "FILE", "file with its password, mode 0600"),
    ("--tls-ca", variables.CA, "FILE", "authorities of the nodes, PEM"),
    ("--tls-cert", variables.CERT, "FILE", "certificate of the user, PEM"),
    ("--tls-key", variables.KEY, "FILE", "its key, mode 0600"),
)

Builder = TypeVar("Builder", bound=Any)


class JobFailedError(DledgerError):
    """The job completed and found a problem."""


def parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Argument parser with the options of all jobs."""
    found = argparse.ArgumentParser(prog=f"dledger spark {name}", description=description, epilog=epilog)
    add_connection(found)
    found.add_argument("--master", default="", metavar="URL", help="Spark master (default: that of spark-submit, else local[*])")
    found.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="set a Spark configuration property")
    found.add_argument("--json", action="store_true", help="print JSON")
    return found


def add_connection(made: argparse.ArgumentParser) -> None:
    """The options of all programs that connect to a cluster."""
    made.add_argument("--bootstrap", required=True, metavar="HOST:PORT,...", help="brokers or name servers")
    for option, variable, metavar, text in CREDENTIALS:
        made.add_argument(option, action=_Credential, const=variable, default="", metavar=metavar, help=f"{text} (default: ${variable})")


class _Credential(argparse.Action):
    """Kept in the environment, from where clients of this process and ``connected`` take it."""

    def __call__(self, _parser: Any, _arguments: Any, value: Any, _option: Any = None) -> None:
        os.environ[str(self.const)] = str(value) if self.metavar == "NAME" else os.path.abspath(str(value))


def add_skip_lost(made: argparse.ArgumentParser) -> None:
    """The option of jobs that can go on without messages; ``lost_options`` passes it on."""
    made.add_argument(SKIP_LOST, action="store_true", help="go on without messages that expired or were deleted with their topic")


def lost_options(arguments: argparse.Namespace) -> dict[str, str]:
    """For a read with Spark."""
    return {"failOnDataLoss": "false"} if arguments.skip_lost else {}


def connected(builder: Builder, bootstrap: str, **options: Any) -> Builder:
    """A reader or a writer of this source.  This process's credentials are among its options: Spark's JVM may have another environment."""
    access = {option: os.environ[variable] for option, variable in VARIABLES.items() if os.environ.get(variable)}
    found: Builder = builder.format("dledger").options(bootstrap=bootstrap, **access, **options)
    return found


def session(arguments: argparse.Namespace, name: str) -> SparkSession:
    """Spark session of a job.  Local Python workers use this interpreter."""
    from pyspark.sql import SparkSession

    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    builder = SparkSession.builder.appName(f"dledger-{name}")
    # spark-submit has already set a master; keep it unless --master is given.
    if arguments.master or not os.environ.get("PYSPARK_GATEWAY_PORT"):
        builder = builder.master(arguments.master or "local[*]")
    settings: dict[str, Any] = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings |= {"spark.log.level": "ERROR", "spark.ui.enabled": "false"}
    for setting in arguments.conf:
        key, _, value = setting.partition("=")
        settings[key] = value
    return builder.config(map=settings).getOrCreate()


def bounds(bootstrap: str, topics: Sequence[str], timestamp_ms: int | None = None) -> dict[tuple[str, str, int], QueueOffsets]:
    """Offsets of all queues, by (topic, replica group, queue id)."""
    with PullConsumer(bootstrap, timeout_ms=METADATA_TIMEOUT_MS) as consumer:
        return {(topic, *queue): offsets for topic in topics for queue, offsets in sorted(consumer.offsets(topic, timestamp_ms).items())}


class RowCounter(StreamingQueryListener):
    """Counts the rows of a query by its progress reports and prints one line per batch; a query itself keeps only
    recent reports.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self._rows: dict[tuple[str, int], int] = {}
        self._ended = threading.Event()

    @classmethod
    @contextmanager
    def listening(cls, spark: SparkSession, job: str) -> Iterator[RowCounter]:
        """Context manager: a counter for one query, removed after the query's last event.

        Spark delivers events in a Java thread, which prints a stack trace if the process ends during delivery.
        """
        counter = cls(job)
        spark.streams.addListener(counter)
        try:
            yield counter
            counter._ended.wait(LISTENER_WAIT_S)
        finally:
            spark.streams.removeListener(counter)

    def rows_of(self, query: StreamingQuery) -> int:
        """Rows of a terminated query; includes its own reports, because the last events may not have been delivered."""
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
            progress(f"{self._job}: batch {report.batchId}, {report.numInputRows} messages, {report.processedRowsPerSecond:.0f} per second")

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._ended.set()


def time_ms(text: str) -> int:
    """An argument: milliseconds since 1970, or an ISO date or time."""
    try:
        return moment_ms(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected milliseconds since 1970 (13 digits), or a time such as 2026-01-31") from None


def topic_list(text: str) -> list[str]:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def progress(text: str) -> None:
    """Print one progress line to stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numeric columns are right-aligned."""
    cells = [["-" if cell is None else f"{cell:g}" if isinstance(cell, float) else printable(str(cell)) for cell in row] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(header))]
    widths = [max(len(title), *(len(row[n]) for row in cells)) if cells else len(title) for n, title in enumerate(header)]
    for line in [list(header), *cells]:
        padded = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numeric, strict=True)]
        print("  ".join(padded).rstrip())
    sys.stdout.flush()


def finish(main: Callable[[Sequence[str] | None], dict[str, Any]], argv: Sequence[str] | None = None) -> int:
    """Run a job's ``main``; returns the exit code."""
    try:
        main(argv)
    except DledgerError as error:
        said = error.message
    except Exception as error:  # noqa: BLE001 - Spark wraps our errors; reason() extracts them
        said = reason(error)
    else:
        return 0
    said = said.replace("set failOnDataLoss to false", f"give {SKIP_LOST}")  # the option of a query is none of a job
    print(f"dledger: {printable(said)}", file=sys.stderr, flush=True)
    return 1


def run_program(main: Callable[[Sequence[str] | None], dict[str, Any]], argv: Sequence[str] | None = None) -> NoReturn:
    """Run a job's ``main`` as this process, then stop the session and exit."""
    from pyspark.sql import SparkSession

    code = finish(main, argv)
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.stop()
    sys.exit(code)


def reason(error: BaseException) -> str:
    """One line for an error raised by Spark: our own error in it, if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("dledger_wire.errors.")]
    if own:
        return own[-1].partition(": ")[2]
    if any("DATA_SOURCE_NOT_FOUND" in line for line in lines):
        python = os.environ.get("PYSPARK_PYTHON", "python3")
        return (
            f"Spark's interpreter {python} cannot import pyspark_dledger; install the wheel of dledger-client there, or set PYSPARK_PYTHON"
        )
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def print_report(arguments: argparse.Namespace, report: dict[str, Any], show: Callable[[], None]) -> None:
    """Print the report as JSON, or with ``show``."""
    if arguments.json:
        print(printable_json(report), flush=True)
    else:
        show()
