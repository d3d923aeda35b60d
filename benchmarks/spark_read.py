"""How fast Spark reads a topic from the followers, against Parquet and a plain memory-mapped file through the same API, in one session.

    python -m benchmarks.spark_read [--megabytes 200] [--sizes 100,1024,512-1536,10240]

512-1536 is a topic of bodies of mixed sizes: those of one size take quicker ways (one stride, one CRC over a whole chunk), which few topics
in use do; the mapped file beside it has the mean size.  Each size is so many messages that they fill --megabytes (at most 1 000 000).
One JSON line a figure, the quickest of three rounds;
start-up is not counted.  "with body" has the same four columns in all three sources; processor seconds of nodes are of all its rounds.
"""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.bodies import parse_size
from benchmarks.spark_bench import Surroundings, best_of, everything, fill, surroundings, tell

FOUR = "queue_id,queue_offset,store_timestamp,body"
FOUR_SCHEMA = "queue_id int, queue_offset bigint, store_timestamp timestamp, body binary"
CHUNK_BYTES = 4 << 20
TASKS = 4


class MappedSource(DataSource):
    """Records of one size in a file, memory-mapped: 4 bytes queue, 8 offset, 8 microseconds, body."""

    @classmethod
    def name(cls) -> str:
        return "mapped"

    def schema(self) -> str:
        return FOUR_SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return MappedReader(self.options["path"], int(self.options["size"]), int(self.options["count"]))


class MappedReader(DataSourceReader):
    def __init__(self, path: str, size: int, count: int) -> None:
        self.path, self.size, self.count = path, size, count

    def partitions(self) -> list[InputPartition]:
        step = -(-self.count // 4)
        return [InputPartition((first, min(first + step, self.count))) for first in range(0, self.count, step)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        width = 20 + self.size
        schema = pa.schema(
            [
                pa.field("queue_id", pa.int32()),
                pa.field("queue_offset", pa.int64()),
                pa.field("store_timestamp", pa.timestamp("us", tz="UTC")),
                pa.field("body", pa.binary()),
            ]
        )
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            first, end = partition.value
            step = max(1, (4 << 20) // width)
            for at in range(first, end, step):
                count = min(step, end - at)
                piece = mapped[at * width : (at + count) * width]
                rows = np.frombuffer(piece, np.dtype([("q", ">i4"), ("o", ">i8"), ("t", ">i8"), ("b", f"V{self.size}")]))
                borders = np.empty(2 * count, np.int32)
                borders[0::2] = np.arange(count) * width + 20
                borders[1::2] = borders[0::2] + self.size
                spans = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(piece)])
                bodies = spans.take(pa.array(np.arange(0, 2 * count - 1, 2)))
                timestamps = pa.array(rows["t"].astype(np.int64), pa.timestamp("us", tz="UTC"))
                columns = [pa.array(rows["q"].astype(np.int32)), pa.array(rows["o"].astype(np.int64)), timestamps, bodies]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def write_mapped(path: Path, count: int, size: int) -> None:
    rows = np.zeros(count, np.dtype([("q", ">i4"), ("o", ">i8"), ("t", ">i8"), ("b", f"V{size}")]))
    rows["o"], rows["t"] = np.arange(count), np.arange(count)
    rows["b"] = np.frombuffer((bytes(range(256)) * (size // 256 + 1))[:size], f"V{size}")[0]
    rows.tofile(path)


def measure(around: Surroundings, sizes: str, megabytes: int) -> None:
    size = sum(parse_size(sizes)) // 2
    count = min(1_000_000, megabytes * 1_000_000 // size)
    topic = f"bench-{sizes}"
    fill(around, topic, count, sizes)
    for replica in around.cluster.processes:
        everything(around.source(topic, replica=replica))  # from here on files are in the page cache, as they are for the others
    leader, before = around.cluster.leader(), around.cpu_s()
    ours = best_of(lambda: everything(around.source(topic, columns=FOUR, minPartitions=TASKS)))
    used = {node: round(seconds - before[node], 2) for node, seconds in around.cpu_s().items()}
    followers = [seconds for node, seconds in used.items() if node != leader]
    local = best_of(lambda: everything(around.source(topic, columns=FOUR, minPartitions=TASKS, localFiles=True)))
    spark = around.spark
    file, folder = around.work / "mapped", str(around.work / f"parquet-{sizes}")
    write_mapped(file, count, size)
    spark.dataSource.register(MappedSource)
    reader = spark.read.format("mapped").option("path", str(file)).option("size", size).option("count", count)
    mapped = best_of(lambda: everything(reader.load()))
    around.source(topic, columns=FOUR).repartition(TASKS).write.parquet(folder)
    parquet = best_of(lambda: everything(spark.read.parquet(folder)))
    tell("with body", count, ours, size=sizes, of_mapped=round(mapped / ours, 2), leader_cpu_s=used[leader], follower_cpu_s=followers)
    tell("with body, localFiles", count, local, size=sizes, of_mapped=round(mapped / local, 2))
    tell("mapped file, with body", count, mapped, size=sizes)
    tell("parquet, with body", count, parquet, size=sizes)
    tell("all columns", count, best_of(lambda: everything(around.source(topic, minPartitions=TASKS))), size=sizes)
    bare = best_of(lambda: everything(around.source(topic, columns=FOUR.replace(",body", ""), minPartitions=TASKS)))
    tell("without body", count, bare, size=sizes)
    file.unlink()


def measure_small(around: Surroundings) -> None:
    """What a query takes that has next to nothing to read."""
    fill(around, "small", 40, "1024")
    for tasks in (1, TASKS):
        took_s = best_of(lambda tasks=tasks: everything(around.source("small", minPartitions=tasks)), rounds=12)  # type: ignore[misc]
        tell("a query of 40 messages", 40, took_s, tasks=tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--sizes", default="100,1024,512-1536,10240")
    arguments = parser.parse_args()
    with surroundings() as around:
        for sizes in arguments.sizes.split(","):
            measure(around, sizes, arguments.megabytes)
        measure_small(around)


if __name__ == "__main__":
    main()
