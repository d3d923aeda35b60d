"""Spark jobs of a drill: ``python -m dledger_drill.workloads.spark_process FOLDER SPEC.json``, with commands on stdin.

A batch job reads everything new since the one before; a stream is read with ``foreachBatch``.  What they were given is written to
``spark.jsonl.gz`` in FOLDER, and that each of them has read to the end: a row without values, also of one that was given nothing at all.
A job that a fault ended gave nothing; the next one reads the same again, the stream from its checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from dledger_drill.workloads.bodies import consecutive_runs, of_queues
from dledger_drill.workloads.spec import LoadSpec, parse_command

HISTORY = "spark.jsonl.gz"
COLUMNS = ("group", "queue_id", "queue_offset", "body")
TRIGGER = "2 seconds"
RETRY_S = 1.0  # between tries of the last batch job


class SparkJobs:
    """The session, its batch jobs and its stream."""

    def __init__(self, spec: LoadSpec, folder: Path, writer: HistoryWriter) -> None:
        self.round = 0
        self.stopped = threading.Event()
        self._spec, self._folder, self._writer = spec, folder, writer
        self._session = _session(folder)
        self._positions: dict[str, int] = {}
        self._last_batch = -1

    def run(self) -> None:
        """Until ``stopped``; then both jobs read to the end once more."""
        query = self._start_stream() if "spark-stream" in self._spec.workloads else None
        while not self.stopped.wait(1 / self._spec.rate("spark-batch")):
            self._batch()
            if query is not None and not query.isActive:
                query = self._start_stream()
        while not self._batch():  # its parent waits so long and no longer
            time.sleep(RETRY_S)
        if query is not None:
            if not query.isActive:
                query = self._start_stream()
            query.processAllAvailable()
            query.stop()
            self._note_end("stream")
        if "spark-batch" in self._spec.workloads:
            self._note_end("batch")
        self._session.stop()

    def _options(self) -> dict[str, str]:
        spec = self._spec
        tls = {"tls.ca": spec.ca, "tls.cert": spec.cert, "tls.key": spec.key}
        return {"bootstrap": spec.bootstrap, "topic": spec.read_topic} | {name: value for name, value in tls.items() if value}

    def _batch(self) -> bool:
        """False when it failed."""
        if "spark-batch" not in self._spec.workloads:
            return True
        topic, invoked_ns, of_round = self._spec.read_topic, time.monotonic_ns(), self.round
        start = json.dumps({topic: self._positions}) if self._positions else "earliest"
        frame = self._session.read.format("dledger").options(**self._options(), startingOffsets=start).load()
        try:
            rows = frame.selectExpr(*COLUMNS).collect()
        except Exception as error:  # noqa: BLE001 - of Spark's own classes; the job was given nothing
            print(f"a batch job failed: {error}", file=sys.stderr, flush=True)
            return False
        self._record("batch", rows, invoked_ns, of_round)
        return True

    def _start_stream(self) -> Any:
        stream = self._session.readStream.format("dledger").options(**self._options(), startingOffsets="earliest").load()
        writer = stream.selectExpr(*COLUMNS).writeStream.foreachBatch(self._micro_batch)
        return writer.trigger(processingTime=TRIGGER).option("checkpointLocation", str(self._folder / "spark-checkpoint")).start()

    def _micro_batch(self, frame: Any, number: int) -> None:
        """Spark gives a micro-batch again if the query ended after it and before its checkpoint."""
        invoked_ns, of_round = time.monotonic_ns(), self.round
        rows = frame.collect()
        if number > self._last_batch:
            self._record("stream", rows, invoked_ns, of_round)
            self._last_batch = number

    def _record(self, job: str, rows: Iterable[Any], invoked_ns: int, of_round: int) -> None:
        for (group, queue), content in of_queues(rows).items():
            for first, values in consecutive_runs(content):
                self._write(job, {"group": group, "queue": queue, "first_offset": first, "values": values}, invoked_ns, of_round)
            if job == "batch":
                self._positions[f"{group}:{queue}"] = content[-1][0] + 1

    def _note_end(self, job: str) -> None:
        data = {"group": self._spec.groups[0], "queue": 0, "first_offset": 0, "values": []}
        self._write(job, data, time.monotonic_ns(), self.round)

    def _write(self, job: str, more: dict[str, Any], invoked_ns: int, of_round: int) -> None:
        data, now_ns = {"job": job, "topic": self._spec.read_topic} | more, time.monotonic_ns()
        self._writer.write(Operation(f"spark-{job}", OperationKind.SPARK, invoked_ns, now_ns, Outcome.OK, of_round, data))


def _session(folder: Path) -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession  # heavy, and only here if the package is

    builder = SparkSession.builder.master("local[2,3]").appName("dledger drill").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "spark-warehouse")).config(
        "spark.local.dir", str(folder / "spark-local")
    )
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    return builder.config("spark.sql.session.timeZone", "UTC").config("spark.log.level", "ERROR").getOrCreate()


def _obey(jobs: SparkJobs) -> None:
    for line in sys.stdin.buffer:
        command = parse_command(line)
        if command.round is not None:
            jobs.round = command.round
        if command.finish:
            jobs.stopped.set()
            return
    os._exit(1)  # its parent is gone; the JVM ends with its stdin


def main(folder: str, spec_file: str) -> int:
    with HistoryWriter(Path(folder, HISTORY)) as writer:
        jobs = SparkJobs(LoadSpec.read(Path(spec_file)), Path(folder), writer)
        threading.Thread(target=_obey, args=(jobs,), daemon=True).start()
        jobs.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
