"""The workload process: ``python -m dledger_drill.workloads.process FOLDER SPEC.json``.

Commands come on stdin, see ``commands``; four times a second a report goes to stdout, a JSON object with ``state``: ``starting``,
``running``, ``draining``, ``auditing``, and at last ``done``.  The history is written to FOLDER.  When stdin ends, so does the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dledger_drill.history.writer import HistoryWriter
from dledger_drill.workloads.base import Surroundings
from dledger_drill.workloads.load import Load
from dledger_drill.workloads.recorder import Recorder
from dledger_drill.workloads.spec import Command, LoadSpec, parse_command
from dledger_wire.errors import DledgerError

REPORT_S = 0.25
DELETE_S = 30.0  # that topics of a load that failed are asked to be deleted


class LoadProcess:
    """Runs a ``Load`` as commands say, and reports."""

    def __init__(self, spec: LoadSpec, writer: HistoryWriter, folder: Path) -> None:
        self._recorder = Recorder(writer)
        self._around = Surroundings(spec, self._recorder)
        self._load = Load(self._around, folder)
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._state = "starting"

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._report_again_and_again(), name="reports"),
                    tasks.create_task(self._take_commands(), name="commands"),
                ]
                await tasks.create_task(self._run(), name="load")
                for task in beside:
                    task.cancel()
        except* DledgerError:
            await self._delete_what_is_left()
            raise
        self._report({"state": "done"})

    async def _delete_what_is_left(self) -> None:
        """A cluster in use is not to keep topics of a load that failed."""
        try:
            async with asyncio.timeout(DELETE_S):
                await self._load.delete()
        except (DledgerError, TimeoutError) as error:
            print(f"topics named {self._around.spec.prefix}-* may be left: {error}", file=sys.stderr)

    async def _run(self) -> None:
        async with self._load.started():
            self._around.running.set()
            self._state = "running"
            while not await self._obey(await self._commands.get()):
                pass

    async def _take_commands(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            self._commands.put_nowait(parse_command(line))
        raise EOFError("stdin ended before everything was done")

    async def _obey(self, command: Command) -> bool:
        """True when everything is over."""
        if command.round is not None:
            self._recorder.round = command.round
            await self._load.new_round()
        if command.finish:
            self._state = "draining"
            left = await self._load.drain()
            self._state = "auditing"
            stored = await self._load.audit()
            await self._load.delete()
            self._report({"state": "audited", "stored": stored, "left": left})
        return command.finish

    async def _report_again_and_again(self) -> None:
        while True:
            self._report({"state": self._state})
            await asyncio.sleep(REPORT_S)

    def _report(self, more: dict[str, Any]) -> None:
        print(json.dumps(self._recorder.report() | more), flush=True)


def main(folder: str, spec_file: str) -> int:
    spec = LoadSpec.read(Path(spec_file))
    status = 0
    with HistoryWriter(Path(folder, spec.history)) as writer:
        try:
            asyncio.run(LoadProcess(spec, writer, Path(folder)).run())
        except* EOFError:
            status = 1  # its parent is gone
        except* DledgerError as errors:
            print(f"the load ended: {_first(errors)}", file=sys.stderr)
            status = 1
    return status


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
