"""docs/reference/spark.md against the code: every option is in its table, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_dledger.options.model import KNOWN, WRITE_KNOWN
from pyspark_dledger.schema import ALL_COLUMNS
from pyspark_dledger.write.staged_batches import COLUMNS as WRITE_COLUMNS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_and_no_other() -> None:
    table = TEXT[TEXT.index("| option |") : TEXT.index("### From Kafka")]
    told = {name for row in table.splitlines()[2:] if row for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    assert told == {*KNOWN, *WRITE_KNOWN}


def test_the_columns_are_told() -> None:
    columns = TEXT[TEXT.index("## Columns") : TEXT.index("## Options")]
    assert all(re.search(rf"\b{name}\b", columns) for name in (*ALL_COLUMNS, *WRITE_COLUMNS))
