"""Dispatch: queue units a second out of entries that are in memory, and index entries a second behind them.

    .venv/bin/python -m benchmarks.dispatch [--messages 1000000] [--body 100]

One replica without Raft and network.  The log is filled first, every message with a tag and a key; then, in a process of its own, all
entries are read into memory and applied by a store that knows nothing yet.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.recovery import NEVER_MS, fail, grow, in_a_process_of_its_own
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.runtime.real_env import real_environment
from dledger_wire.rpc.grpc_network import GrpcNetwork
from store.settings import StoreSettings
from store.store import MessageStore

AT_ONCE = 64  # entries
SETTINGS = StoreSettings(snapshot_interval_ms=NEVER_MS, store_host="127.0.0.1:10911")


async def dispatch(folder: str, *, index: bool) -> None:
    env = real_environment(folder, GrpcNetwork())
    log, _ = await Log.open(env.disk, LogConfig())
    entries: list[RawEntry] = []
    while not entries or entries[-1].index < log.last.index:
        entries += await log.read(entries[-1].index + 1 if entries else log.first_index, 8 << 20, log.last.index)
    store = MessageStore(replace(SETTINGS, messageIndexEnable=index), env, role_changed=lambda _event: None, failed=fail)
    await store.recover(log)
    begin, cpu = time.perf_counter(), time.process_time()
    for at in range(0, len(entries), AT_ONCE):
        await store.apply(entries[at : at + AT_ONCE])
        await asyncio.sleep(0)
    applied_s, applied_cpu = time.perf_counter() - begin, time.process_time() - cpu
    count = store.applied.messages
    print(f"index {'on' if index else 'off':3}  {count:,} units in {applied_s:.2f} s: {count / applied_s:,.0f} a second", end="")
    if index and store.index is not None:
        while store.index.files.covered < log.last.index:  # noqa: ASYNC110 - the index tells nobody
            await asyncio.sleep(0.005)
        indexed_s = time.perf_counter() - begin
        print(
            f"; {2 * count:,} keys and ids indexed {indexed_s:.2f} s after the first entry: {2 * count / indexed_s:,.0f} a second", end=""
        )
    print(f"  (CPU {applied_cpu:.2f} s)", flush=True)
    os._exit(0)  # nothing of it is kept: the next round begins from the log again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-dispatch-") as folder:
        in_a_process_of_its_own(grow, folder, arguments.messages * (arguments.body + 200), arguments.body, crash=True)
        for name in ("consumequeue", "index", "config"):
            for path in sorted(Path(folder).glob(f"{name}/**/*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        for index in (False, True, False, True):
            in_a_process_of_its_own(dispatch, folder, index=index)


if __name__ == "__main__":
    main()
