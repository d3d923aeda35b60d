"""``DefaultSource``: the class that Spark instantiates for ``format("dledger")``; it creates readers and writers from
options.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from pyspark_dledger.options.model import parse_read_options, parse_write_options, wanted_columns
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
        freeze_loaded()
        return ddl(wanted_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_dledger.read.batch import BatchReader, PushdownReader

        options = parse_read_options(self.options, columns_of(schema))
        return PushdownReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_dledger.read.stream import StreamReader

        return StreamReader(parse_read_options(self.options, columns_of(schema), stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_dledger.write.direct_writer import DirectWriter
        from pyspark_dledger.write.writer import BatchWriter

        options = parse_write_options(self.options)
        return (DirectWriter if options.direct else BatchWriter)(schema, options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_dledger.write.writer import StreamWriter

        return StreamWriter(schema, parse_write_options(self.options), overwrite=overwrite)
