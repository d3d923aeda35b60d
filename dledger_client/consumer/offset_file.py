"""A broadcast consumer's own offset file: FOLDER/CLIENT/GROUP/offsets.json.

Owns the file.  Two consumers of one machine never share a file: a client id given by the user must be free; without one, the first free
number is taken, so a restarted process finds its file again.  Writes run in a thread, one at a time.  Offsets whose write failed are not
remembered, so the caller retries.  Beside each offset is the epoch of the topic that it counts in: one made again has the same name.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from dledger_client.consumer.allocation import MessageQueue
from dledger_client.runtime.environment import RunInThread
from dledger_wire import strict_json
from dledger_wire.errors import BusyError, InvalidArgumentError, StorageDamagedError, StorageFailedError, StorageFullError

MAX_CLIENTS = 1000

_Rows: TypeAlias = list[tuple[str, str, int, int | str]]  # topic, replica group, queue id, and the offset or epoch


def check_client_folder(client_id: str) -> None:
    """InvalidArgumentError for a client whose folder would be elsewhere, where it could replace another client's offsets."""
    if client_id.startswith("/") or ".." in client_id.split("/"):
        raise InvalidArgumentError(f"client_id {client_id!r}: expected a name of a folder below offset_folder")


class OffsetFile:
    """The offsets of one broadcast client.  Locked until ``close``."""

    def __init__(self, folder: str, address: str, group: str, client_id: str = "", run_in_thread: RunInThread = asyncio.to_thread) -> None:
        root = Path(folder or os.environ.get("DLEDGER_OFFSETS", "") or Path.home() / ".dledger_offsets")
        names = [client_id] if client_id else [f"{address}@{number}" for number in range(MAX_CLIENTS)]
        for name in names:
            lock = _locked(root / name / group / "lock")
            if lock >= 0:
                self.client_id, self._lock = name, lock
                break
        else:
            raise BusyError(f"{root}: another consumer of group {group} uses the offset file of {' or '.join(names[:3])}")
        self._path = root / self.client_id / group / "offsets.json"
        self.topic_epochs: dict[MessageQueue, str] = {}
        try:
            self.offsets: dict[MessageQueue, int] = self._load()
        except BaseException:  # no caller gets this object, so none could unlock the file
            self.unlock()
            raise
        self.begun = {(queue.topic, queue.replica_group) for queue in self.offsets}  # (topic, replica group) of those that have an offset
        self._run_in_thread, self._writing = run_in_thread, asyncio.Lock()

    def _load(self) -> dict[MessageQueue, int]:
        try:
            found = strict_json.parse(self._path.read_text(encoding="utf-8"))
            self.topic_epochs = {MessageQueue(*place): epoch for *place, epoch in found["topicEpochs"]}
            return {MessageQueue(topic, group, queue_id): offset for topic, group, queue_id, offset in found["offsets"]}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageDamagedError(f"{self._path}: not an offset file ({error}); remove it to start over", file=self._path) from None
        except OSError as error:
            raise StorageFailedError(f"{self._path}: offsets could not be read: {error}", file=self._path) from None

    async def save(self, offsets: dict[MessageQueue, int], topic_epoch: str | None = None) -> None:
        """Add these; the file is replaced as a whole.  StorageFullError, StorageFailedError: the file is unchanged; retry.

        ``topic_epoch``: of the topic that they begin to count in; None: the same as before.
        """
        began = {} if topic_epoch is None else dict.fromkeys(offsets, topic_epoch)
        await asyncio.shield(self._save(offsets, began))  # a write that has started finishes before the next one

    async def _save(self, offsets: dict[MessageQueue, int], began: dict[MessageQueue, str]) -> None:
        async with self._writing:
            known = self.offsets | offsets
            content = {"offsets": _rows(known), "topicEpochs": _rows(self.topic_epochs | began)}
            try:
                await self._run_in_thread(lambda: self._replace(content))
            except OSError as error:
                kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageFailedError
                raise kind(f"{self._path}: offsets could not be saved: {error}", file=self._path) from None
            self.offsets = known
            self.begun.update((queue.topic, queue.replica_group) for queue in offsets)
            self.topic_epochs |= began

    def _replace(self, content: dict[str, _Rows]) -> None:
        new = self._path.with_suffix(".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)

    async def close(self) -> None:
        async with self._writing:
            self.unlock()

    def unlock(self) -> None:
        """Release the lock, as the end of the process does."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # closing it is not enough: a forked child may have a copy
            os.close(self._lock)
            self._lock = -1


def _rows(values: Mapping[MessageQueue, int | str]) -> _Rows:
    return [(queue.topic, queue.replica_group, queue.queue_id, values[queue]) for queue in sorted(values)]


def _locked(path: Path) -> int:
    """A descriptor of the locked file, or -1 when another process has locked it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageFailedError(f"{path}: offsets cannot be stored here: {error}", file=path) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    return descriptor
