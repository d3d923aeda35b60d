"""``DefaultSource``: the class that Spark instantiates for ``format("dledger")``; it creates readers and writers from
options.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from dledger_wire.errors import DledgerError
from pyspark_dledger.options.model import parse_read_options, parse_write_options
from pyspark_dledger.per_process import freeze_loaded
from pyspark_dledger.schema import columns_of, ddl
from pyspark_dledger.user_errors import concise_errors


@concise_errors
class DefaultSource(DataSource):
    """The ``dledger`` source: batch and streaming reads of committed messages, from followers by default; batch and
    streaming writes.
    """

    @classmethod
    def name(cls) -> str:
        return "dledger"

    def schema(self) -> str:
        """Asked for by ``load()``: a mistake in any option is reported there, not when a query runs."""
        freeze_loaded()
        return ddl(parse_read_options(self.options, stream=True).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_dledger.read.batch import BatchReader, PushdownReader

        options = parse_read_options(self.options, columns_of(schema))
        return PushdownReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_dledger.read.stream import StreamReader

        try:
            return StreamReader(parse_read_options(self.options, columns_of(schema), stream=True))
        except DledgerError as error:  # of a schema that the user gave
            return _Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_dledger.write.direct_writer import DirectWriter
        from pyspark_dledger.write.writer import BatchWriter

        options = parse_write_options(self.options)
        return (DirectWriter if options.direct else BatchWriter)(schema, options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_dledger.write.writer import StreamWriter

        return StreamWriter(schema, parse_write_options(self.options), overwrite=overwrite)


@concise_errors
class _Refused(DataSourceStreamReader):
    """Raises an error when Spark asks it something.  Raised any earlier, an error of PySpark's own would be what users see: it ends
    readers that were never made."""

    def __init__(self, error: DledgerError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Any:
        raise self._error
