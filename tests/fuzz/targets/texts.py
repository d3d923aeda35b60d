"""Texts from outside: SQL filters, tags, names, cluster files, options of Spark, lines of ``dledger produce``."""

from __future__ import annotations

import json
import zlib

from broker.config.cluster_file import ClusterConfig
from broker.config.units import parse_duration_ms, parse_size
from dledger_cli.message_input import line_reader
from dledger_cli.message_text import LineFormat
from dledger_client.fetch.subscription import Subscription
from dledger_wire.errors import DledgerError
from dledger_wire.names import check_group, check_topic
from pyspark_dledger.options.model import parse_read_options
from pyspark_dledger.planning.checkpoint import from_json, to_json
from pyspark_dledger.planning.queue_offsets import QueueId, same_offsets
from pyspark_dledger.write.publisher import read_manifest
from store.queues.sql_filter import SqlFilter
from tests.fuzz.target import JSON_WORDS, Target
from tests.unit.spark.views import of_queues

_PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {"a": "1", "b": "x", "c": "true"},
    {"a": "9" * 400, "b": "1e999", "c": "-.5e-3"},
    {"a": "\ud800", "b": "''"},
)


def sql(data: bytes) -> None:
    """A filter is refused, or is true or false of every message."""
    found = SqlFilter(data.decode(errors="replace"))
    for properties in _PROPERTIES:
        assert found.matches(properties) in (True, False)


def tags(data: bytes) -> None:
    Subscription(data.decode(errors="replace")).tag_hashes  # noqa: B018 - made when it is asked for


def names(data: bytes) -> None:
    text = data.decode(errors="replace")
    for check in (check_topic, check_group):
        assert check(text).isprintable()
        assert text.isascii()


def cluster_file(data: bytes) -> None:
    found = ClusterConfig.parse(data.decode(errors="replace"), "cluster.yaml")
    for group in found.groups:
        for node in group.nodes:
            found.node(node.id)


def units(data: bytes) -> None:
    text = data.decode(errors="replace")
    assert parse_duration_ms(text) >= 0
    assert parse_size(text) >= 0


def spark_options(data: bytes) -> None:
    """``name=value`` lines, beside the ones that must be there."""
    lines = [line.partition("=") for line in data.decode(errors="replace").splitlines()]
    given = {"bootstrap": "10.0.0.1:9", "topic": "orders"} | {name: value for name, mark, value in lines if mark}
    parse_read_options(given, stream=True)


def spark_offsets(data: bytes) -> None:
    """The offset of a stream as it stands in a checkpoint, which Spark has parsed already."""
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return
    offsets, epochs = from_json(stored)
    again = from_json(to_json(offsets, epochs))
    assert same_offsets(again.offsets, offsets)
    assert again.topic_epochs == epochs


def line_format(data: bytes) -> None:
    LineFormat(data.decode(errors="replace"))


def produced_line(data: bytes) -> None:
    line_reader("", as_json=True)(data)


def manifest(data: bytes) -> None:
    """A control message of a write, whose compression is made right."""
    read_manifest(data)
    read_manifest(zlib.compress(data, 1))


_FILE = b"""cluster: shop
name_servers: [{id: ns0, address: "127.0.0.1:9876"}]
groups:
  - name: g0
    nodes:
      - {id: n0, address: "127.0.0.1:10911", priority: 1}
      - {id: n1, address: "[::1]:10912", listen: "0.0.0.0:10912"}
      - {id: n2, address: "127.0.0.1:10913"}
store: {flushDiskType: SYNC_FLUSH, mappedFileSizeCommitLog: 1GiB, fileReservedTime: 48h, deleteWhen: "04"}
broker: {messageDelayLevel: "1s 5s 10s"}
"""
_YAML = [
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!python/name:os.system",
    b"- ",
    b"{",
    b"[",
    b"? ",
    b"|\n",
    b"0x",
    b"1e999",
    b"9" * 30,
    b"2026-99-99",
    b"1:2:3",
    b"!!binary ",
    b"!!float ",
    b"!!int ",
    b"!!set",
    b"!!timestamp ",
    b"~",
    b".inf",
    b"\xc2\x85",
    b"\x1b[31m",
]
_SQL = [
    b" AND ",
    b" OR ",
    b" NOT ",
    b"(",
    b")",
    b"'",
    b"a",
    b"b",
    b"=",
    b"<>",
    b">",
    b" BETWEEN ",
    b" IN ",
    b" IS NULL",
    b" CONTAINS ",
    b"-",
    b"+",
    b"--",
    b"/*",
    b"*/",
    b"1",
    b"1e999",
    b"TRUE",
    b",",
    b"9" * 400,
    b"(a=" * 300,
    b"NOT " * 300,
]
_OPTIONS = [
    b"startingOffsets=",
    b"endingOffsets=",
    b"startingTimestamp=",
    b"maxMessagesPerTrigger=",
    b"assign=",
    b"queues=",
    b"minPartitions=",
    b"topicPattern=",
    b"{",
    b'"orders"',
    b'"0"',
    b":",
    b"}",
    b"-1",
    b"9" * 30,
    b"\n",
    b"[" * 3000,
    b"1e999",
    b"0001-01-01T00:00:00+23:59",
    b"latest",
    b"columns=",
    b"keys=",
]

TARGETS = [
    Target("sql", sql, [b"a > 5 AND (b = 'x' OR c IS NOT NULL) AND d NOT BETWEEN 1 AND 2.5", b"NOT a IN ('x', 'y''z') -- all"], _SQL),
    Target("tags", tags, [b"paid || created", b"*"], [b"||", b" ", b"*"]),
    Target("names", names, [b"orders", b"%RETRY%g"], [b"%", b"|", b"\n", b"\x1b"]),
    Target("cluster-file", cluster_file, [_FILE], [*_YAML, *_FILE.split()]),
    Target("units", units, [b"48", b"2"], [b"h", b"ms", b"GiB", b".", b"9" * 400, b"e9"], (DledgerError, ValueError)),
    Target(
        "spark-options", spark_options, [b'startingOffsets={"orders":{"g0:0":5,"1":-2}}\nmaxBytesPerTrigger=64m\nqueues=0,g0:1'], _OPTIONS
    ),
    Target("spark-offsets", spark_offsets, [json.dumps(to_json(of_queues({QueueId("t", "g0", 1): 7}), {"t": "e"})).encode()], JSON_WORDS),
    Target("spark-manifest", manifest, [json.dumps({"version": 1, "application": "a", "number": 1, "parts": []}).encode()], JSON_WORDS),
    Target("line-format", line_format, [b"%q %o %b\\n"], [b"%", b"\\"], (ValueError,)),
    Target("produced-line", produced_line, [b'{"body":"x","keys":"k","properties":{"a":"b"}}'], JSON_WORDS, (ValueError,)),
]
