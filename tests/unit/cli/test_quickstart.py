"""What the quickstart prints when its Spark job fails."""

from __future__ import annotations

import pytest

from scripts.lib.quickstart import reason_of


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("p"), "KeyError: 'p'"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (RuntimeError("trace\n  [DATA_SOURCE_NOT_FOUND] no dledger\nmore"), "[DATA_SOURCE_NOT_FOUND] no dledger"),
    ],
)
def test_the_reason_of_a_failed_spark_job_names_the_error(error: Exception, expected: str) -> None:
    assert reason_of(error) == expected
