"""Folders of a RocketMQ broker, written byte by byte as its sources lay them out; nothing of the product is used."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

V1, BLANK = 0xDAA320A7, 0xCBD43194
FILE_BYTES = 1 << 14
QUEUE_UNITS = 50
BORN_MS, STORED_MS = 1_700_000_000_000, 1_700_000_001_000
IPV4 = bytes([10, 0, 0, 7]) + struct.pack(">i", 4711)
IPV6 = bytes(range(16)) + struct.pack(">i", 4711)
HALF, OP, SCHEDULE, TIMER = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
)


def java_hash(text: str) -> int:
    value = 0
    for unit in text.encode("utf-16-be")[1::2]:
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def unique_id(number: int) -> str:
    return f"{number:032X}"


@dataclass
class Fields:
    """Of a message, beside its properties.  ``due_ms``: in place of the tag's hash.  ``hosts``: of its producer, and of the broker."""

    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    due_ms: int | None = None
    dispatched: bool = True
    hosts: tuple[bytes, bytes] = (IPV4, IPV4)


@dataclass
class OldStore:
    """A store; ``wrapped``: with a DLedger log.  ``put`` returns where a message stands; ``write`` makes the files."""

    root: Path
    wrapped: bool = False
    topics: dict[str, tuple[int, int]] = field(default_factory=lambda: {"orders": (2, 6)})  # queues, permission
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    timers_read_ms: int | None = None
    committed_index: int | None = None
    stored_ms: int = STORED_MS
    file_bytes: int = FILE_BYTES
    log: bytearray = field(default_factory=bytearray)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    entries: int = 0

    def put(self, topic: str, queue_id: int, body: bytes, **given: Any) -> int:
        """``given``: what ``Fields`` has, ``unique``, ``keys``, ``tags``, and properties by their names."""
        fields = Fields(**{name: given.pop(name) for name in Fields.__dataclass_fields__ if name in given})
        queue, tags = self.queues[topic, queue_id], given.pop("tags", "")
        properties = {"UNIQ_KEY": given.pop("unique", ""), "KEYS": given.pop("keys", ""), "TAGS": tags} | given
        packed = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value).encode()
        born, stored = fields.hosts
        sys_flag = fields.sys_flag | (0x10 if len(born) == 20 else 0) | (0x20 if len(stored) == 20 else 0)
        size = 91 + len(body) + len(topic) + len(packed) + len(born) + len(stored) - 16
        header = 48 if self.wrapped else 0
        left = self.file_bytes - len(self.log) % self.file_bytes
        if header + size + 8 > left:
            self.log += (struct.pack(">ii", -1, left) if self.wrapped else struct.pack(">iI", left, BLANK)).ljust(left, b"\0")
        if self.wrapped:
            self.log += struct.pack(">iiqqqiiii", 1, 48 + size, self.entries, 3, len(self.log), 0, 0, 0, size)
            self.entries += 1
        at = len(self.log)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        frame = struct.pack(">iIiiiqqiq", size, V1, crc, queue_id, fields.flag, len(queue), at, sys_flag, BORN_MS)
        frame += born + struct.pack(">q", self.stored_ms) + stored + struct.pack(">iqi", fields.reconsume_times, 99, len(body)) + body
        frame += bytes([len(topic)]) + topic.encode() + struct.pack(">h", len(packed)) + packed
        assert len(frame) == size
        self.log += frame
        unit = struct.pack(">qiq", at, size, fields.due_ms if fields.due_ms is not None else java_hash(tags) if tags else 0)
        queue.append(unit if fields.dispatched else bytes(20))
        return at

    def delayed(self, topic: str, queue_id: int, body: bytes, *, level: int, due_ms: int, unique: str) -> int:
        place = {"REAL_TOPIC": topic, "REAL_QID": str(queue_id), "DELAY": str(level)}
        return self.put(SCHEDULE, level - 1, body, unique=unique, due_ms=due_ms, tags="late", **place)

    def timed(self, topic: str, queue_id: int, body: bytes, *, due_ms: int, unique: str, **more: Any) -> int:
        place = {"TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        return self.put(TIMER, 0, body, unique=unique, **place, **more)

    def write(self, root: Path | None = None) -> Path:
        root = root or self.root
        log = root / ("dledger-n0/data" if self.wrapped else "commitlog")
        log.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(self.log), self.file_bytes):
            (log / f"{first:020d}").write_bytes(bytes(self.log[first : first + self.file_bytes]).ljust(self.file_bytes, b"\0"))
        for (topic, queue_id), units in self.queues.items():
            folder = root / "consumequeue" / topic / str(queue_id)
            folder.mkdir(parents=True, exist_ok=True)
            for first in range(0, len(units), QUEUE_UNITS):
                data = b"".join(units[first : first + QUEUE_UNITS]).ljust(QUEUE_UNITS * 20, b"\0")
                (folder / f"{first * 20:020d}").write_bytes(data)
        self._write_config(root / "config")
        if self.committed_index is not None:
            (root / "dledger-n0" / "checkpoint").write_text(f"#time\ncommittedIndex={self.committed_index}\nendIndex={self.entries}\n")
        return root

    def _write_config(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        topics = {
            name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm, "order": False}
            for name, (queues, perm) in self.topics.items()
        }
        system = {
            "TBW102": {"readQueueNums": 8, "writeQueueNums": 8, "perm": 7},
            "broker-a": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 7},
        }
        version = {"counter": 1, "stateVersion": 0, "timestamp": BORN_MS}
        (folder / "topics.json").write_text(json.dumps({"topicConfigTable": topics | system, "dataVersion": version}, indent=1))
        (folder / "subscriptionGroup.json").write_text(
            json.dumps({"subscriptionGroupTable": self.groups | {"TOOLS_CONSUMER": {}}, "dataVersion": version})
        )
        rows = ",".join(
            f'\n"{name}":{{{",".join(f"{q}:{at}" for q, at in of_queues.items())}\n}}' for name, of_queues in self.offsets.items()
        )
        (folder / "consumerOffset.json").write_text(f'{{\n"offsetTable":{{{rows}\n}}\n}}')  # numbers without quotes, as fastjson does
        levels = ",".join(f"{level}:{offset}" for level, offset in self.delays.items())
        (folder / "delayOffset.json").write_text(f'{{"dataVersion":{{"counter":3}},"offsetTable":{{{levels}}}}}')
        if self.timers_read_ms is not None:
            (folder / "timercheck").write_bytes(struct.pack(">q", self.timers_read_ms).ljust(4096, b"\0"))
