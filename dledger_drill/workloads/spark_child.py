"""The Spark jobs as a workload: a process of their own, because a Spark session brings its own threads and a JVM."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from dledger_drill.workloads.base import Surroundings, Workload
from dledger_drill.workloads.spec import Command
from dledger_wire.errors import DledgerError

END_S = 180.0  # the stream reads to the end, the session stops


class SparkChild(Workload):
    """Starts ``spark_process``, tells it of rounds, and ends it with the load."""

    def __init__(self, around: Surroundings, folder: Path, spec_file: Path) -> None:
        super().__init__(around)
        self._folder, self._spec_file = folder, spec_file
        self._stdin: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        command = [sys.executable, "-P", "-m", "dledger_drill.workloads.spark_process", str(self._folder), str(self._spec_file)]
        with (self._folder / "spark.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log)
        try:
            self._stdin = process.stdin
            self.ready.set()  # its first job comes when the session is up
            await self._tell(Command(round=self.recorder.round))
            stopped = asyncio.create_task(self._stopped.wait(), name="load stops")
            ended = asyncio.create_task(process.wait(), name="Spark ends")
            await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not ended.done():
                await self._tell(Command(finish=True))
            async with asyncio.timeout(END_S):
                status = await ended
            if status:
                raise DledgerError(f"the Spark process ended with status {status}; see {self._folder / 'spark.log'}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def new_round(self) -> None:
        await self._tell(Command(round=self.recorder.round))

    async def _tell(self, command: Command) -> None:
        if self._stdin is not None:
            with contextlib.suppress(ConnectionError):  # ``run`` sees that the process is gone
                self._stdin.write(command.encode())
                await self._stdin.drain()
