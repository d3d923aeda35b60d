"""The folder of a RocketMQ broker (``storePathRootDir``): where its files are, and what its JSON files say.

Owns which folders can be imported, and the tables of ``config/``.  fastjson writes numbers as names of objects without quotes; RocketMQ
itself reads NAME.json.bak where NAME.json is missing or broken, and so does this.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dledger_offline.rocketmq.commit_log import CommitLog, LogFile
from dledger_offline.rocketmq.consume_queue import ConsumeQueue
from dledger_wire import strict_json
from dledger_wire.errors import ConfigError
from dledger_wire.names import RETRY_PREFIX, is_system_topic
from dledger_wire.status import Perm

INHERIT = 1  # a permission bit of what new topics copy: TBW102, and the topics named after cluster and broker
SYSTEM_PREFIX = "RMQ_SYS_"  # releases add topics: 5.5 has those of transactions in RocksDB
REPLY_SUFFIX = "_REPLY_TOPIC"  # answers to requests; each waits for one client, by its connection
SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CLIENT_INNER_PRODUCER",
        "__MONITOR_CONSUMER",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "CID_SYS_RMQ_TRANS",
    }
)
_FILE_NAME = re.compile(r"[0-9]{20}")
_STRING_OR_BARE_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?[0-9]+)(?=\s*:)')
_COMMITTED = re.compile(r"^committedIndex=(-?[0-9]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic as the broker has it; ``perm``: 2 write, 4 read."""

    name: str
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """A consumer group: its settings, and the next offset that it reads, by topic and queue."""

    name: str
    consume_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    consume_in_order: bool = False


class StoreFolder:
    """A copy of a broker's folder.  ConfigError when it is none, or one that cannot be imported.

    ``known_groups``: names of groups with settings or offsets.
    """

    known_groups: Set[str]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.log = CommitLog(self._log_files(), self._committed_index())
        with self._expecting("topics", "numbers of queues and a permission for each topic"):
            self.topics = dict(self._topics())
        with self._expecting("consumerOffset", "offsets by queue for each TOPIC@GROUP"):
            self._offsets = {
                place: {int(queue_id): int(offset) for queue_id, offset in of_queues.items()}
                for place, of_queues in self._table("consumerOffset", "offsetTable", needed=False).items()
            }
        with self._expecting("delayOffset", "offsets by level"):
            levels = self._table("delayOffset", "offsetTable", needed=False)
            self.delay_offsets = {int(level): int(offset) for level, offset in levels.items()}
        with self._expecting("subscriptionGroup", "settings of each consumer group"):
            self.groups = list(self._groups())

    # Files

    def _log_files(self) -> list[LogFile]:
        replicas = sorted(each for each in self.path.glob("dledger-*") if (each / "data").is_dir())
        if len(replicas) > 1:
            raise ConfigError(f"{self.path}: expected one dledger-ID folder, found {', '.join(each.name for each in replicas)}")
        folders = [(self.path / "commitlog", False), *((each / "data", True) for each in replicas)]
        found = [
            LogFile(str(file), int(file.name), file.stat().st_size, wrapped)
            for folder, wrapped in folders
            if folder.is_dir()
            for file in sorted(folder.iterdir())
            if _FILE_NAME.fullmatch(file.name) and file.stat().st_size
        ]
        if not found:
            raise ConfigError(f"{self.path}: expected the folder of a RocketMQ store, with files in commitlog/ or dledger-ID/data/")
        return found

    def _committed_index(self) -> int | None:
        """Of a log of DLedger, as far as its checkpoint says; None: it does not."""
        for file in self.path.glob("dledger-*/checkpoint"):
            if found := _COMMITTED.search(file.read_text(encoding="utf-8", errors="replace")):
                return int(found[1])
        return None

    @property
    def was_running(self) -> bool:
        """Whether the copy was made of a broker that ran, or that was killed."""
        return (self.path / "abort").exists()

    def queues(self) -> Iterator[tuple[tuple[str, int], ConsumeQueue]]:
        """The consume queues that have a folder."""
        root = self.path / "consumequeue"
        for topic in sorted(root.iterdir()) if root.is_dir() else ():
            for folder in sorted(topic.iterdir()) if topic.is_dir() else ():
                if folder.name.isdecimal() and folder.is_dir():
                    files = [file for file in sorted(folder.iterdir()) if _FILE_NAME.fullmatch(file.name)]
                    yield (topic.name, int(folder.name)), ConsumeQueue(files)

    def timers_read_ms(self) -> int | None:
        """Up to when the broker delivered timed messages; None: it has none, or does not say it."""
        file = self.path / "config" / "timercheck"
        data = file.read_bytes()[:8] if file.is_file() else b""
        return struct.unpack(">q", data)[0] if len(data) == 8 else None

    # Tables

    def _table(self, name: str, table: str, *, needed: bool = True) -> dict[str, Any]:
        problem = "not found"
        for file in (self.path / "config" / f"{name}.json", self.path / "config" / f"{name}.json.bak"):
            try:
                found = parse_fastjson(file.read_text(encoding="utf-8"))[table]
                if isinstance(found, dict):
                    return found
                problem = f"{table} is no object"
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                problem = str(error)
        if needed or problem != "not found":
            raise ConfigError(f"{self.path / 'config' / name}.json: {problem}; expected an object with {table}, as RocketMQ writes it")
        return {}

    @contextlib.contextmanager
    def _expecting(self, name: str, what: str) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.path / 'config' / name}.json: {type(error).__name__} ({error}); expected {what}") from None

    def _topics(self) -> Iterator[tuple[str, SourceTopic]]:
        for name, row in self._table("topics", "topicConfigTable").items():
            perm = int(row.get("perm", Perm.READ_WRITE))
            if is_system_topic(name) or name.startswith(SYSTEM_PREFIX) or name.endswith(REPLY_SUFFIX) or perm & INHERIT:
                continue
            yield name, SourceTopic(name, int(row["readQueueNums"]), int(row["writeQueueNums"]), perm & Perm.READ_WRITE)

    def _groups(self) -> Iterator[SourceGroup]:
        """Consumer groups of applications, by name."""
        settings = self._table("subscriptionGroup", "subscriptionGroupTable", needed=False)
        offsets: dict[str, dict[tuple[str, int], int]] = {}
        for place, of_queues in self._offsets.items():
            name, _, group = place.partition("@")
            offsets.setdefault(group, {}).update({(name, queue_id): offset for queue_id, offset in of_queues.items()})
        self.known_groups = settings.keys() | offsets.keys()
        for topic in self.topics.values():
            if topic.name.startswith(RETRY_PREFIX):  # read from its start by a group that has no offset there
                of_group = offsets.setdefault(topic.name.removeprefix(RETRY_PREFIX), {})
                for queue_id in range(max(topic.read_queues, topic.write_queues)):
                    of_group.setdefault((topic.name, queue_id), 0)
        for name in sorted(settings.keys() | offsets.keys()):
            if name and name not in SYSTEM_GROUPS and not name.startswith("CID_RMQ_SYS_"):
                row = settings.get(name, {})
                numbers = int(row.get("retryQueueNums", 1)), int(row.get("retryMaxTimes", 16))
                in_order = bool(row.get("consumeMessageOrderly", False))
                yield SourceGroup(name, bool(row.get("consumeEnable", True)), *numbers, offsets.get(name, {}), in_order)

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset that a group reads in a queue; 0 when it has none."""
        return self._offsets.get(f"{topic}@{group}", {}).get(queue_id, 0)

    def begins_at(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that is imported: of retries only those that their group has not read."""
        return self.offset(topic.removeprefix(RETRY_PREFIX), topic, queue_id) if topic.startswith(RETRY_PREFIX) else 0


def parse_fastjson(text: str) -> Any:
    """JSON as RocketMQ writes it: names that are numbers may stand without quotes."""
    return strict_json.parse(_STRING_OR_BARE_NAME.sub(lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], text))
