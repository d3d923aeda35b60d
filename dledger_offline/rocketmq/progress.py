"""How far an import is: the file that says which messages of the old queues are stored, and where.

Owns the file and the translation of offsets.  The cluster itself counts what it stored of an import, under the producer id in this file, so
messages that were acknowledged after the file was written last are not sent twice.  A copy of the same store that is newer goes on where
the one before ended.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dledger_wire import strict_json
from dledger_wire.errors import ConfigError, StorageDamagedError

FORMAT = 1
Run = tuple[int, int, int]  # offset in the old queue, offset in the new one, count


@dataclass(slots=True)
class QueueProgress:
    """One queue.

    Attributes:
        forgotten: Messages of the import that the cluster does not count any more: it forgets a producer that was silent for a week.
        runs: What is stored.  Neighbours melt into one; a step in the new offsets is where other producers' messages lie.
        next_offset: The next offset of the old queue that is to be sent.
        unrecorded: Of the messages from there on so many are stored already.
        sequence: Of the next message in this run of the import.
    """

    topic: str
    queue_id: int
    forgotten: int = 0
    runs: list[Run] = field(default_factory=list)
    next_offset: int = 0
    unrecorded: int = 0
    sequence: int = 0

    @property
    def count(self) -> int:
        return sum(count for _, _, count in self.runs)

    @property
    def end(self) -> int:
        """Where the new queue ends, as far as is known."""
        return self.runs[-1][1] + self.runs[-1][2] if self.runs else 0

    def add(self, old: int, new: int, count: int) -> None:
        """Messages are stored; ``new`` below 0: somewhere behind those before."""
        new = new if new >= 0 else self.end
        if self.runs:
            last_old, last_new, last_count = self.runs[-1]
            if (last_old + last_count, last_new + last_count) == (old, new):
                self.runs[-1] = last_old, last_new, last_count + count
                return
        self.runs.append((old, new, count))

    def new_offset(self, old: int) -> int:
        """Where a group goes on that reads ``old`` next.  It passes no message that another producer stored among those of the import."""
        end = self.runs[0][1] if self.runs else 0
        for first, new, count in self.runs:
            if new != end:
                break
            if old < first + count:
                return new + max(old - first, 0)
            end = new + count
        return end


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    topic: str
    queue_id: int = Field(ge=0)
    forgotten: int = Field(ge=0)
    runs: list[list[int]]


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    format: int
    producer_id: str
    cluster: str
    replica_group: str
    pos: int
    anchor: list[int]
    made: list[str]
    queues: list[_Row]
    delayed_of: str
    delayed_pos: int
    delayed: int
    finished: bool


@dataclass(slots=True)
class Progress:
    """An import.

    Attributes:
        pos: Everything before this position of the old log is stored.
        anchor: Position and CRC of a message in front of it: another store has another one there.
        made: Topics that the import created.
        delayed_of: Which messages waited in the copy whose waiting ones were begun to be sent; empty: none were.
        delayed_pos: As ``pos``, of them.
        delayed: How many of them are stored.
    """

    path: Path
    cluster: str
    replica_group: str
    producer_id: str = field(default_factory=lambda: f"import-rocketmq-{uuid.uuid4().hex[:16]}")
    pos: int = 0
    anchor: tuple[int, int] | None = None
    made: list[str] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueProgress] = field(default_factory=dict)
    delayed_of: str = ""
    delayed_pos: int = 0
    delayed: int = 0
    finished: bool = False

    @classmethod
    def load(cls, path: Path) -> Progress | None:
        """What the file says; None without one.  StorageDamagedError for one that is no file of an import."""
        try:
            found = _File.model_validate(strict_json.parse(path.read_bytes()))
            rows = [(row, [(old, new, count) for old, new, count in row.runs]) for row in found.queues]
            anchor = (found.anchor[0], found.anchor[1]) if found.anchor else None
        except FileNotFoundError:
            return None
        except (ValueError, ValidationError, IndexError) as error:
            problem = str(error).splitlines()[0]
            raise StorageDamagedError(f"{path}: no state of an import ({problem}); expected what an import wrote", file=path) from None
        if found.format != FORMAT:
            raise StorageDamagedError(f"{path}: format {found.format} of an import, expected {FORMAT}", file=path)
        queues = {
            (row.topic, row.queue_id): QueueProgress(row.topic, row.queue_id, row.forgotten, runs, sum(runs[-1][::2]) if runs else 0)
            for row, runs in rows
        }
        same = ("cluster", "replica_group", "producer_id", "pos", "made", "delayed_of", "delayed_pos", "delayed", "finished")
        return cls(path, **{name: getattr(found, name) for name in same}, anchor=anchor, queues=queues)

    @classmethod
    def opened(cls, path: Path, cluster: str, replica_group: str) -> Progress:
        """Of an import into this replica group, begun or not.  ConfigError when the file is of an import into another one."""
        found = cls.load(path)
        if found is None:
            return cls(path, cluster, replica_group)
        if (found.cluster, found.replica_group) != (cluster, replica_group):
            text = f"{path} is of an import into replica group {found.replica_group} of cluster {found.cluster}"
            raise ConfigError(f"{text}, not into {replica_group} of {cluster}; expected another --state")
        return found

    def save(self) -> None:
        """Replace the file."""
        rows = [{name: value for name, value in asdict(row).items() if name in _Row.model_fields} for _, row in sorted(self.queues.items())]
        names = [name for name in _File.model_fields if name not in ("format", "queues", "anchor")]
        content = {"format": FORMAT} | {name: getattr(self, name) for name in names} | {"anchor": self.anchor or [], "queues": rows}
        new = self.path.with_name(f"{self.path.name}.new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)
