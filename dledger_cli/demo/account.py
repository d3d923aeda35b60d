"""What was read of the demo's messages, compared with what was sent.  Owns reading with a client, and the comparison."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dledger_cli.demo.load import KEY, TOPIC, Load
from dledger_client import PullConsumer

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages that were read: the number of the line, CRC-32 of the body, and the place of each."""

    lines: Numbers
    crcs: Numbers
    queues: Numbers
    offsets: Numbers
    replicas: list[str]


@dataclass(frozen=True, slots=True)
class Findings:
    """How many messages were read, what is wrong with them, and the replicas that they came from."""

    rows: int
    lost: int
    duplicated: int
    changed: int
    out_of_order: int
    replicas: list[str]

    @property
    def good(self) -> bool:
        return not (self.lost or self.duplicated or self.changed or self.out_of_order)


def line_number(key: str) -> int:
    return int(key.removeprefix(KEY))


def read_with_client(bootstrap: str) -> Rows:
    """Every message, from followers."""
    found: list[tuple[int, int, int, int]] = []
    replicas: set[str] = set()
    with PullConsumer(bootstrap, read_from="follower") as consumer:
        for (group, queue_id), held in consumer.offsets(TOPIC).items():
            for chunk in consumer.read_chunks(TOPIC, queue_id, held.min_offset, held.max_offset, replica_group=group):
                replicas.add(chunk.replica)
                found += [(line_number(each.keys), zlib.crc32(each.body), queue_id, each.queue_offset) for each in chunk.messages()]
    lines, crcs, queues, offsets = np.array(found, np.int64).reshape(-1, 4).T
    return Rows(lines, crcs, queues, offsets, sorted(replicas))


def compare(load: Load, rows: Rows) -> Findings:
    """Whether every acknowledged line was read once, unchanged, and in the order in which it was sent within its queue."""
    times = np.bincount(rows.lines, minlength=len(load.lines))
    sent_crcs = np.array([zlib.crc32(line.body) for line in load.lines], np.int64)
    order = np.lexsort((rows.offsets, rows.queues))
    same_queue = np.diff(rows.queues[order]) == 0
    return Findings(
        rows=len(rows.lines),
        lost=int((load.acknowledged & (times == 0)).sum()),
        duplicated=int((times > 1).sum()),
        changed=int((sent_crcs[rows.lines] != rows.crcs).sum()),
        out_of_order=int(((np.diff(rows.lines[order]) <= 0) & same_queue).sum()),
        replicas=rows.replicas,
    )
