"""Record batches as Spark gets them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dledger_client.fetch.arrow_chunks import arrow_schema
from pyspark_dledger.read import arrow_batches as arrow
from pyspark_dledger.schema import ALL_COLUMNS

ARROW_OF_DDL = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def test_every_column_has_the_type_that_spark_is_told() -> None:
    """Spark compares names, order, types and nullability."""
    columns = tuple(ALL_COLUMNS)
    assert arrow_schema(columns) == pa.schema([pa.field(name, ARROW_OF_DDL[ddl], nullable=True) for name, ddl in ALL_COLUMNS.items()])


def test_small_batches_are_put_together_and_large_ones_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ENOUGH_ROWS", 10)
    sizes = [1, 2, 3, 4, 12, 1, 0, 1]
    batches = [pa.RecordBatch.from_pydict({"n": pa.array(range(size), pa.int64())}) for size in sizes]
    found = list(arrow.coalesced(iter(batches)))
    assert [batch.num_rows for batch in found] == [10, 12, 2]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches(batches))
    assert found[1] is batches[4]
    assert list(arrow.coalesced(iter([]))) == []
